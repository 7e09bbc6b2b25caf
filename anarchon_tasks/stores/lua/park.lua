-- uses: base write index account history
--
-- park: the task asked for a retry of its own.
--
-- Guarantees: the run goes back to its queue, still under this token, which is what lets its retry in and nothing
-- else; a stale token changes nothing and is counted.
local function park(account, state, item)
  local token, eta, start_timeout = tonumber(item[3]), item[4], item[5]
  if not state or state.token ~= token then
    refuse(account, item[2], token)
    return false
  end
  if state.status == 'queued' and state.parked then return true end
  if state.status ~= 'running' then return false end
  state.status, state.parked, state.reason = 'queued', true, nil
  state.lease_until = math.max(NOW, eta) + start_timeout
  put(account, state)
  return true
end

return each(cjson.decode(ARGV[4]), step(park))
