-- uses: base index account history
--
-- read_runs: the newest entries of some jobs.
--
-- Guarantees: for each job, the `limit` newest entries of its history and all its open runs, as they stood at one
-- instant; an open run comes after the entry of the same attempt and replaces it. In no order.
--
-- Payload: [limit, [job, ...]].
local limit, jobs = unpack(cjson.decode(ARGV[4]))

return each(jobs, function(job)
  local entries = {}
  if limit > 0 then
    local members = redis.call('ZREVRANGE', key_of(job, 'results'), 0, int(limit - 1))
    for i = 1, #members do entries[i] = text_of(members[i]) end
    local states = open_runs({name = job, state_key = key_of(job, 'state')})
    for i = 1, #states do entries[#entries + 1] = entry(states[i]) end
  end
  return '[' .. table.concat(entries, ',') .. ']'
end)
