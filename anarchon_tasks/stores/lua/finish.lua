-- uses: base write index account history steps
--
-- finish: the end of a run, or of an attempt whose worker died.
--
-- Guarantees: only who executes the run now, or the parent of that very process, can end it; the repeat answers as the
-- first did.
local function end_from(v)
  return {
    run = v[2], status = v[3], token = tonumber(v[4]), delivered = some(v[5]), attempt = v[6],
    header_token = tonumber(v[7]), reason = some(v[8]), error = some(v[9]), max_attempts = v[10], history = v[11],
  }
end

local function same_delivery(a, b)
  return a and a[1] == b[1] and a[2] == b[2] and a[3] == b[3] and a[4] == b[4]
end

-- Tell whether the report is about what the run does now.
local function concerns(report, state)
  if not report.delivered then return report.token == state.token and state.status ~= 'claimed' end
  if same_delivery(state.delivered, report.delivered) then return true end
  if state.status == 'running' or state.attempt ~= report.attempt then return false end
  if state.parked then return report.header_token == state.token end
  return report.delivered[2] == 0
end

local function finish(account, state, item)
  if not state then return false end
  local report = end_from(item)
  if not OPEN[state.status] then return state.status == report.status and concerns(report, state) end
  if not concerns(report, state) then
    refuse(account, report.run, report.token)
    return false
  end
  if report.status ~= 'interrupted' then
    state.enqueued_at = state.enqueued_at or NOW    -- its message was there, faster than the record of its publish
    state.error = report.error
    end_run(account, state, report.status, report.reason, report.history)
    return true
  end
  if state.status ~= 'running' then return false end
  state.reason, state.error = report.reason or 'worker_lost', report.error
  if state.attempt >= report.max_attempts then
    end_run(account, state, 'interrupted', state.reason, report.history)
  else
    state.lease_until = math.min(state.lease_until, NOW)
    put(account, state)
  end
  return true
end

return each(cjson.decode(ARGV[4]), step(finish))
