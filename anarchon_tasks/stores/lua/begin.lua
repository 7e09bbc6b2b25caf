-- uses: base write index account history steps
--
-- begin: may I execute the run of this message?
--
-- Guarantees: one execution is admitted per attempt and retry, and the same delivery repeated is admitted again while
-- nobody else was granted the run; whatever else carries the message is told to drop it.
local function ask_from(v)
  return {
    run = v[2], delivery_id = v[3], delivered = v[4], attempt = v[5], token = tonumber(v[6]), lease = v[7],
    max_attempts = v[8], history = v[9], trigger = v[10], takeover = v[11],
  }
end

local function answer(kind, status, till)
  return '["' .. kind .. '",' .. maybe_text(status) .. ',' .. int(till or 0) .. ']'
end

local function admitted(state)
  return string.format('["ok","%s",%d,%d,"%d"]', state.status, state.lease_until, state.attempt, state.token)
end

local function start(account, ask, state)
  account.doublings = 0
  state.status, state.parked, state.reason = 'running', false, nil
  state.token = next_token(account)
  state.grant_id, state.delivered, state.retries = ask.delivery_id, ask.delivered, ask.delivered[2]
  state.task_id = ask.delivered[1]
  state.lease_until, state.not_before = NOW + ask.lease, 0
  state.enqueued_at = state.enqueued_at or NOW
  state.first_enqueued_at = state.first_enqueued_at or NOW
  state.started_at = state.started_at or NOW
  log_start(account, state, ask.delivered[3], ask.history)
  put(account, state)
  return admitted(state)
end

local function is_retry_of(ask, state)
  return ask.delivered[2] > 0 and ask.token == state.token
end

local function begin_waiting(account, ask, state)
  if state.parked and not is_retry_of(ask, state) then return answer('busy', state.status, state.lease_until) end
  if past_deadline(state) and not state.parked then
    end_run(account, state, 'expired', 'deadline', ask.history)
    return answer('done', state.status)
  end
  return start(account, ask, state)
end

local function begin_running(account, ask, state)
  local alive = state.lease_until > NOW
  if state.grant_id == ask.delivery_id and not state.reason then
    state.lease_until = math.max(state.lease_until, NOW + ask.lease)
    put(account, state)
    index_again(account.name, state.run, ending(state))
    return admitted(state)
  end
  if is_retry_of(ask, state) then return start(account, ask, state) end
  if alive or not ask.takeover then return answer('busy', state.status, state.lease_until) end
  local reason = state.reason or 'taken_over'
  if state.attempt >= ask.max_attempts then
    end_run(account, state, 'interrupted', reason, ask.history)
    return answer('done', state.status)
  end
  next_attempt(account, state, reason, ask.history)
  return start(account, ask, state)
end

-- Let a run that was given up still run: a backlog makes runs late, not absent.
local function begin_lost(account, ask, state)
  local others = state.exclusive and open_runs(account) or {}
  local busy = state.reason ~= 'never_started'
  for i = 1, #others do busy = busy or others[i].attempt > 1 or others[i].retries > NOT_STARTED end
  if busy then return answer('done', state.status) end
  for i = 1, #others do end_run(account, others[i], 'skipped', 'overlap', ask.history) end
  state.reason, state.finished_at = nil, nil
  return start(account, ask, state)
end

-- Begin a run that the store does not know: a failover lost it, unless it is too old to be asked for.
local function begin_unknown(account, ask)
  local slot = parse_run(ask.run)
  if slot <= account.trimmed then return answer('done') end
  local state = new_state(ask.run, ask.trigger, 'queued', slot, NOW, true, true)
  state.attempt = ask.attempt
  return start(account, ask, state)
end

local function begin(account, state, item)
  local ask = ask_from(item)
  if not state then return begin_unknown(account, ask) end
  if state.status == 'enqueued' then return answer('untracked', state.status) end
  if state.status == 'claimed' or state.status == 'queued' then return begin_waiting(account, ask, state) end
  if state.status == 'running' then return begin_running(account, ask, state) end
  if state.status == 'lost' then return begin_lost(account, ask, state) end
  return answer('done', state.status)
end

return each(cjson.decode(ARGV[4]), step(begin))
