-- The account of one job in its five keys, `{<prefix><job>}` and one of:
--
--   :state    hash    run -> its state (the JSON list that `encode` writes); floor, trimmed, token, doublings,
--                     fingerprint, registered_at, changed_at -> the job's own values. A run starts with a digit or '-'.
--   :active   set     the runs that have not ended
--   :slots    zset    every run in the state, by slot
--   :runs     stream  one entry for each attempt that started
--   :results  zset    by slot, one member for each ended attempt or stretch of slots: its order within the slot, then
--                     the JSON list that `entry` writes
--
-- Guarantees: what a step changes in `:state`, which alone decides, is written by one command at its end (`commit`).
-- A step that fails before has decided nothing; what it left in the other keys is overwritten, or skipped by readers.
local OPEN = {claimed = true, queued = true, running = true}
local NOT_STARTED = -1

local function key_of(job, kind)
  if job == '' then error('the name of a job must not be empty', 0) end
  return '{' .. PREFIX .. job .. '}:' .. kind
end

local function parse_run(run)
  local slot, key = tonumber(run), ''
  if not slot then
    slot, key = string.match(run, '^(%-?%d+):(.*)$')
    slot = tonumber(slot)
  end
  return slot, key
end

-- When nobody holds the run any more.
local function ending(state)
  return math.max(state.lease_until, state.not_before)
end

-- The first five places can be read without decoding the rest: see `HEAD`.
local HEAD = '^%["(%a+)","(%d+)",(%-?%d+),(%-?%d+),(.*)$'

-- Joined piece by piece, because that costs a third less than `string.format`.
local function encode(s)
  local d = s.delivered
  return '["' .. s.status .. '","' .. int(s.token) .. '",' .. int(s.lease_until) .. ',' .. int(s.not_before)
    .. ',' .. maybe_text(s.reason) .. ',' .. int(s.attempt) .. ',"' .. s.trigger .. '",' .. maybe_text(s.grant_id)
    .. ',' .. int(s.due) .. ',' .. int(s.latest) .. ',' .. maybe_text(s.instance)
    .. (s.tracked and ',true' or ',false') .. (s.exclusive and ',true,' or ',false,')
    .. int(s.releases) .. ',' .. int(s.publishes) .. ',' .. maybe_text(s.task_id)
    .. (s.parked and ',true,' or ',false,') .. int(s.retries) .. ',' .. (d and cjson.encode(d) or 'null')
    .. ',' .. maybe_int(s.deadline) .. ',' .. maybe_int(s.claimed_at) .. ',' .. maybe_int(s.enqueued_at)
    .. ',' .. maybe_int(s.first_enqueued_at) .. ',' .. maybe_int(s.started_at) .. ',' .. maybe_int(s.finished_at)
    .. ',' .. maybe_text(s.error) .. ']'
end

-- When the lease of a stored run ends, read without decoding it; nil: it is not open.
local function stored_ending(job, run)
  local text = redis.call('HGET', key_of(job, 'state'), run)
  local status, _, lease_until, not_before
  if text then status, _, lease_until, not_before = string.match(text, HEAD) end
  if not OPEN[status or ''] then return nil end
  return math.max(tonumber(lease_until), tonumber(not_before))
end

local function decode(run, text)
  local v = cjson.decode(text)
  local s = {
    run = run, status = v[1], token = tonumber(v[2]), lease_until = v[3], not_before = v[4], reason = some(v[5]),
    attempt = v[6], trigger = v[7], grant_id = some(v[8]), due = v[9], latest = v[10], instance = some(v[11]),
    tracked = v[12], exclusive = v[13], releases = v[14], publishes = v[15], task_id = some(v[16]), parked = v[17],
    retries = v[18], delivered = some(v[19]), deadline = some(v[20]), claimed_at = some(v[21]),
    enqueued_at = some(v[22]), first_enqueued_at = some(v[23]), started_at = some(v[24]), finished_at = some(v[25]),
    error = some(v[26]),
  }
  s.slot, s.key = parse_run(run)
  if OPEN[s.status] then
    s.active, s.indexed = true, ending(s)
  end
  return s
end

-- What may be missing is left out: a table grows, which costs as much as to make it, when it gets more than 32 fields.
local function new_state(run, trigger, status, due, latest, tracked, exclusive)
  local slot, key = parse_run(run)
  return {
    run = run, slot = slot, key = key, status = status, token = 0, lease_until = 0, not_before = 0, attempt = 1,
    trigger = trigger, due = due, latest = latest, tracked = tracked, exclusive = exclusive, releases = 0,
    publishes = 0, parked = false, retries = NOT_STARTED, starts = true, fresh = true, active = false,
  }
end

-- Open the account of a job together with the state of one run (nil when there is none).
local function open_account(job, run)
  local state_key = key_of(job, 'state')
  local got = redis.call('HMGET', state_key, run, 'floor', 'trimmed', 'token', 'doublings')
  local floor, trimmed = tonumber(got[2]), tonumber(got[3]) or -1
  local token, doublings = tonumber(got[4]) or 0, tonumber(got[5]) or 0
  local account = {
    name = job, state_key = state_key, changed = {}, open_count = nil, dropped = nil,
    floor = floor, trimmed = trimmed, token = token, doublings = doublings,
    floor_was = floor, trimmed_was = trimmed, token_was = token, doublings_was = doublings,
  }
  return account, got[1] and decode(run, got[1]) or nil
end

-- Compare as bytes: Lua's own comparison of strings follows the locale.
local function bytes_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function ref_before(a, b)
  if a.slot ~= b.slot then return a.slot < b.slot end
  return bytes_before(a.key, b.key)
end

-- The stored runs that have not ended, lowest slot first. `wanted`, if given, looks at the undecoded state.
local function open_runs(account, wanted)
  local runs = redis.call('SMEMBERS', key_of(account.name, 'active'))
  account.open_count = #runs
  local states = {}
  for first = 1, #runs, 1000 do
    local last = math.min(first + 999, #runs)
    local texts = redis.call('HMGET', account.state_key, unpack(runs, first, last))
    for i = 1, last - first + 1 do
      local text = texts[i]
      if text and (not wanted or wanted(text)) then
        local state = decode(runs[first + i - 1], text)
        if OPEN[state.status] then states[#states + 1] = state end
      end
    end
  end
  if #states > 1 then table.sort(states, ref_before) end
  return states
end

-- Note a changed state for `commit`, and keep the lists of runs in step.
local function put(account, state)
  if state.fresh then
    redis.call('ZADD', key_of(account.name, 'slots'), int(state.slot), state.run)
    state.fresh = nil
  end
  local open = OPEN[state.status] or false
  if open and not state.active then
    redis.call('SADD', key_of(account.name, 'active'), state.run)
    if account.open_count then account.open_count = account.open_count + 1 end
  elseif state.active and not open then
    redis.call('SREM', key_of(account.name, 'active'), state.run)
    if account.open_count then account.open_count = account.open_count - 1 end
  end
  state.active = open
  if not state.changed then
    state.changed = true
    account.changed[#account.changed + 1] = state
  end
end

local function commit_index(account, state)
  if state.active then
    local now_ending = ending(state)
    if not state.indexed or now_ending < state.indexed then index_put(account.name, state.run, now_ending) end
  elseif state.indexed and not (CLUSTER and state.status == 'lost') then -- that one may still begin: see `reindex`
    index_remove(account.name, state.run)
  end
end

-- What the job itself has, and what it had when its account was opened.
local COUNTERS = {
  'floor', 'floor_was', 'trimmed', 'trimmed_was', 'token', 'token_was', 'doublings', 'doublings_was',
}

local function commit(account)
  local fields, n, dropped = {}, 0, account.dropped
  for i = 1, #COUNTERS, 2 do
    local name, value = COUNTERS[i], account[COUNTERS[i]]
    if value ~= account[COUNTERS[i + 1]] then fields[n + 1], fields[n + 2], n = name, int(value), n + 2 end
  end
  for i = 1, #account.changed do
    local state = account.changed[i]
    commit_index(account, state)
    if not (dropped and dropped[state.run]) then
      fields[n + 1], fields[n + 2], n = state.run, encode(state), n + 2
    end
  end
  for first = 1, n, 1000 do
    redis.call('HSET', account.state_key, unpack(fields, first, math.min(first + 999, n)))
  end
  if dropped then
    for run in pairs(dropped) do redis.call('HDEL', account.state_key, run) end
  end
end

-- The first step of each operation on a run; `decide` answers as the rules do.
local function step(decide)
  return function(item)
    local account, state = open_account(item[1], item[2])
    local answer = decide(account, state, item)
    commit(account)
    return answer
  end
end

local function next_token(account)
  account.token = math.max(account.token + 1, NOW * 1000)
  return account.token
end
