-- uses: base index
--
-- due: the first step of `expired` on a cluster: entries of the index whose score has passed, `most` at the most.
--
-- Payload: [most]. Reply: [now, ["job:run", ...], whether there may be more].
local most = cjson.decode(ARGV[4])[1]
local due = redis.call('ZRANGEBYSCORE', LEASES, '-inf', int(NOW), 'LIMIT', 0, most)
for i = 1, #due do due[i] = cjson.encode(due[i]) end
return reply(due, #due == most and ',true' or ',false')
