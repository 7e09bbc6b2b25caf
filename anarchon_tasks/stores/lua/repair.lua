-- uses: base write index account
--
-- repair: put the open runs of these jobs back into the index of lease ends.
--
-- Guarantees: afterwards each open run is there, not later than its lease ends.
return each(cjson.decode(ARGV[4]), function(job)
  local states = open_runs({name = job, state_key = key_of(job, 'state')})
  for i = 1, #states do
    local state = states[i]
    local score = redis.call('ZSCORE', LEASES, job .. ':' .. state.run)
    if not score or tonumber(score) > ending(state) then index_put(job, state.run, ending(state)) end
  end
  return true
end)
