-- uses: base write index account
--
-- repair: put the open runs of these jobs back into the index of lease ends.
--
-- Guarantees: afterwards each open run is there, not later than its lease ends.
return each(cjson.decode(ARGV[4]), function(job)
  local states = open_runs({name = job, state_key = key_of(job, 'state')})
  for i = 1, #states do
    index_mend(job, states[i].run, ending(states[i]))
  end
  return true
end)
