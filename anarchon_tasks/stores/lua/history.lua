-- The history of a job: one entry for each ended attempt and each stretch of slots.
--
-- Guarantees: an attempt has one entry, and a later one takes its place; entries are ordered by slot, key and attempt,
-- and the newest `keep` remain. What is more than that, or too old, goes oldest first, and a step removes only so many:
-- a history whose size was lowered does not hold up the server.
local TRIM_ENTRIES = 100

local function trim_entries(results, surplus)
  if surplus > 0 then redis.call('ZREMRANGEBYRANK', results, 0, int(math.min(surplus, TRIM_ENTRIES) - 1)) end
end

-- What orders entries of one slot, as bytes: the key (closed by two zero bytes, its own zeros escaped), the attempt.
local function mark_of(key)
  if string.find(key, '%z') then key = string.gsub(key, '%z', '\0\1') end
  return key .. '\0\0'
end

local function record(account, slot, key, attempt, text, keep)
  local results = key_of(account.name, 'results')
  local mark = mark_of(key) .. string.format('%06d', attempt)
  local beside = redis.call('ZRANGEBYSCORE', results, int(slot), int(slot))
  for i = 1, #beside do
    if string.sub(beside[i], 1, #mark) == mark then redis.call('ZREM', results, beside[i]) end
  end
  redis.call('ZADD', results, int(slot), mark .. text)
  trim_entries(results, redis.call('ZCARD', results) - keep)
end

-- The entry of a state's current attempt. Token and refusals come first, for `refuse`.
local function entry(s)
  local d = s.delivered
  return string.format(
    '["%d",0,%d,%s,%d,"%s","%s",%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%d,%d,%s,%s,1,null]',
    s.token, s.slot, cjson.encode(s.key), s.attempt, s.trigger, s.status, maybe_text(s.reason), tostring(s.tracked),
    maybe_int(s.due), maybe_text(s.instance), maybe_text(d and d[3]), maybe_int(d and d[4]), maybe_int(s.claimed_at),
    maybe_int(s.enqueued_at), maybe_int(s.started_at), maybe_int(s.finished_at), s.publishes, math.max(s.retries, 0),
    maybe_text(s.task_id), maybe_text(s.error))
end

local function record_state(account, state, keep)
  record(account, state.slot, state.key, state.attempt, entry(state), keep)
end

-- The entry of a stretch of slots that share one fate.
local function record_range(account, range, keep)
  local first, last, count, status, reason = unpack(range)
  local text = string.format(
    '["0",0,%d,"",0,"schedule","%s",%s,true,null,null,null,null,null,null,null,null,0,0,null,null,%d,%d]',
    last, status, maybe_text(reason), count, first)
  record(account, last, '', 0, text, keep)
end

-- Remove a hundred entries of slots before the given one, and as many of the attempts that started before it.
local function forget(account, before)
  local results = key_of(account.name, 'results')
  trim_entries(results, redis.call('ZCOUNT', results, '-inf', '(' .. int(before)))
  if before <= 0 then return end
  local runs = key_of(account.name, 'runs')
  local old = redis.call('XRANGE', runs, '-', int(before - 1), 'COUNT', TRIM_ENTRIES)
  for i = 1, #old do redis.call('XDEL', runs, old[i][1]) end
end

-- Count a refused write in the entry of the attempt that had this token, if there is one.
local function refuse(account, run, token)
  if token == 0 then return end
  local slot, key = parse_run(run)
  local results, mark = key_of(account.name, 'results'), mark_of(key)
  local beside = redis.call('ZRANGEBYSCORE', results, int(slot), int(slot))
  for i = 1, #beside do
    local member = beside[i]
    if string.sub(member, 1, #mark) == mark then
      local had, refused, tail = string.match(string.sub(member, #mark + 7), '^%["(%d+)",(%d+)(,.*)$')
      if had and tonumber(had) == token then
        redis.call('ZREM', results, member)
        redis.call('ZADD', results, int(slot),
          string.sub(member, 1, #mark + 6) .. '["' .. had .. '",' .. int(refused + 1) .. tail)
      end
    end
  end
end

-- The JSON of a stored member, without what orders it.
local function text_of(member)
  local _, last = string.find(member, '%z%z%d%d%d%d%d%d')
  return string.sub(member, last + 1)
end

-- Remove the skipped or missed slot, or the stretch that ends with it, if it has this fate and no story of its own;
-- return its count and its first slot, or nil.
local function take_stretch(account, slot, status, reason)
  local results = key_of(account.name, 'results')
  local beside = redis.call('ZRANGEBYSCORE', results, int(slot), int(slot))
  for i = 1, #beside do
    local v = cjson.decode(text_of(beside[i]))
    if v[4] == '' and (v[7] == 'skipped' or v[7] == 'missed') then
      if v[7] ~= status or v[8] ~= reason or v[18] > 0 or some(v[21]) then return nil end
      redis.call('ZREM', results, beside[i])
      return v[22], some(v[23]) or v[3]
    end
  end
end
