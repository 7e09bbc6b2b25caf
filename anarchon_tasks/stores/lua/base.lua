-- Every script starts with this: the store's time, and the shape of a reply.
--
-- Guarantees: the time of every decision of one call is the server's, taken once; a store of a newer format is not
-- read.
--
-- KEYS: none on a single server or the primary of a replicated one: scripts build the keys of their jobs from the
-- prefix. A node of a cluster has a part of the keys: there a call is about one job and gets its five keys (state,
-- active, slots, runs, results), or about one key that jobs share and gets that. What a script would write to other
-- keys, the caller does: see `index.lua`.
-- ARGV: prefix, now (0: ask the server; anything else is used by tests only), format, payload (one JSON text).
-- Reply: the JSON text [now, answers, ...], or {"format": found} for a store that is newer than the caller.
local redis, cjson, string, math, table = redis, cjson, string, math, table -- found faster than globals

pcall(redis.replicate_commands) -- for servers that replicate scripts and not their effects; does nothing since 7

local PREFIX, NOW, FORMAT = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local CLUSTER = #KEYS > 0
local FORMAT_IS_HERE = not CLUSTER or KEYS[1] == PREFIX .. 'format'

if NOW == 0 then
  local time = redis.call('TIME')
  NOW = time[1] * 1000 + math.floor(time[2] / 1000)
end

if FORMAT_IS_HERE then
  local found = redis.call('GET', PREFIX .. 'format')
  if found and not (tonumber(found) and tonumber(found) <= FORMAT) then
    return cjson.encode({format = found})
  end
end

-- cjson writes 14 digits and a token has 16: numbers are written here. Most occur many times in a batch.
local INTS = {}
local function int(number)
  local text = INTS[number]
  if not text then
    text = string.format('%d', number)
    INTS[number] = text
  end
  return text
end

-- JSON of a number, a text, or a yes-or-no that may be missing.
local function maybe_int(number)
  return number and int(number) or 'null'
end

local function maybe_text(text)
  return text and cjson.encode(text) or 'null'
end

-- What JSON's null left in a decoded list, as Lua's nil.
local function some(value)
  if value ~= cjson.null then return value end
end

local function reply(answers, more)
  return '[' .. int(NOW) .. ',[' .. table.concat(answers, ',') .. ']' .. (more or '') .. ']'
end

-- The text of an error: a table since Redis 7, a string before.
local function message_of(failure)
  return type(failure) == 'table' and tostring(failure.err) or tostring(failure)
end

-- What the caller has to write to the index, on a cluster: texts of JSON.
local NOTES = {}

-- Decide each item apart from the others: one that fails answers ["error", text] and spoils none.
local function each(items, decide)
  local answers = {}
  for i = 1, #items do
    local fine, answer = pcall(decide, items[i])
    if not fine then
      local text = message_of(answer)
      -- One node of a cluster that is taken for a single server: every answer of it would be wrong.
      if not CLUSTER and string.find(text, 'access a non local key', 1, true) then return {err = text} end
      answer = '["error",' .. cjson.encode(text) .. ']'
    elseif answer == true then
      answer = 'true'
    elseif answer == false then
      answer = 'false'
    end
    answers[i] = answer
  end
  return reply(answers, CLUSTER and ',[' .. table.concat(NOTES, ',') .. ']')
end
