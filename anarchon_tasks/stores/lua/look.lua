-- uses: base index account
--
-- look: the second step of `expired` on a cluster: when do the leases of these runs end?
--
-- Payload: [[job, run], ...]. Answers: the end of the lease, or null for a run that is not open.
return each(cjson.decode(ARGV[4]), function(item) return maybe_int(stored_ending(item[1], item[2])) end)
