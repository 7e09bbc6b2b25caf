-- The steps that several operations share.
--
-- Guarantees: a state that ends is in the history in the same step; an attempt that died is closed before the next
-- one begins; each attempt that starts has one entry in `:runs`.
local function close_run(account, state, status, reason)
  state.status, state.reason, state.finished_at = status, reason, NOW
  state.lease_until, state.not_before = 0, 0
  put(account, state)
end

local function end_run(account, state, status, reason, keep)
  close_run(account, state, status, reason)
  record_state(account, state, keep)
end

-- Close the attempt that died, and make the next one.
local function next_attempt(account, state, reason, keep)
  state.status, state.reason, state.finished_at = 'interrupted', reason, NOW
  record_state(account, state, keep)
  state.attempt = state.attempt + 1
  state.status, state.reason, state.error, state.finished_at = 'claimed', nil, nil, nil
  state.parked, state.retries, state.delivered = false, NOT_STARTED, nil
  state.publishes, state.releases, state.not_before = 0, 0, 0
  state.claimed_at, state.enqueued_at, state.started_at, state.task_id = nil, nil, nil, nil
  state.starts = true
end

local function log_start(account, state, by, keep)
  if not state.starts then return end
  state.starts = nil
  redis.call('XADD', key_of(account.name, 'runs'), 'MAXLEN', '~', int(keep), '*',
    'run', state.run, 'attempt', int(state.attempt), 'token', int(state.token), 'by', by)
end

local function past_deadline(state)
  return state.deadline and NOW > state.deadline and state.attempt == 1
end
