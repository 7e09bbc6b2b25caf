-- uses: base write index
--
-- reindex: write to the index of a cluster what other nodes decided.
--
-- Guarantees: an entry is moved to a later score by `moved` alone. Runs change while their entries travel, so whoever
-- moves or removes an entry of a run that may be open looks at the run again afterwards, and puts it back in `earlier`.
-- No other caller removes one: a run that ended stays so, but for a lost one, which is left to `expired`.
--
-- Payload: [earlier, moved, gone]: two lists of [member, score], one of members.
local earlier, moved, gone = unpack(cjson.decode(ARGV[4]))
for i = 1, #earlier do
  local member, score = unpack(earlier[i])
  local had = redis.call('ZSCORE', LEASES, member)
  if not had or tonumber(had) > score then redis.call('ZADD', LEASES, int(score), member) end
end
for i = 1, #moved do redis.call('ZADD', LEASES, int(moved[i][2]), moved[i][1]) end
for i = 1, #gone do redis.call('ZREM', LEASES, gone[i]) end
return reply({})
