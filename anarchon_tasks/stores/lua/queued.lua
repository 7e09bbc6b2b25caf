-- uses: base write index account history steps
--
-- queued: the broker confirmed the message of a claimed run.
--
-- Guarantees: it changes a run only while that very claim stands; a worker that was faster is not undone. The repeat
-- of a record answers yes.
local DAY, MAX_DOUBLINGS = 86400000, 20

local function queued(account, state, item)
  local token, task_id, eta, start_timeout, history = tonumber(item[3]), item[4], item[5], item[6], item[7]
  if not state or state.token ~= token then return false end
  if state.status ~= 'claimed' then return state.status == 'queued' or state.status == 'enqueued' end
  state.publishes = state.publishes + 1
  state.releases = 0
  state.task_id = task_id
  state.enqueued_at = state.enqueued_at or NOW
  if not state.tracked then
    end_run(account, state, 'enqueued', nil, history)
    return true
  end
  state.first_enqueued_at = state.first_enqueued_at or NOW
  local timeout = math.min(start_timeout * 2 ^ math.min(account.doublings, MAX_DOUBLINGS), DAY)
  account.doublings = math.min(account.doublings + 1, MAX_DOUBLINGS)
  state.status = 'queued'
  state.lease_until = math.max(NOW, eta) + math.max(timeout, start_timeout)
  if state.deadline then
    state.lease_until = math.max(NOW + 1, math.min(state.lease_until, state.deadline + 1))
  end
  put(account, state)
  return true
end

return each(cjson.decode(ARGV[4]), step(queued))
