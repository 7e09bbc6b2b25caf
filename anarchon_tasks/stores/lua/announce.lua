-- uses: base write
--
-- announce: a worker that loads the integration consumes these queues.
--
-- Guarantees: when a run of a queue last began only moves forward, whatever the order in which workers tell it.
local queues = cjson.decode(ARGV[4])
for i = 1, #queues do
  local queue, begun = unpack(queues[i])
  local had = redis.call('HGET', PREFIX .. 'queues', queue)
  if had then begun = math.max(begun, cjson.decode(had)[2]) end
  redis.call('HSET', PREFIX .. 'queues', queue, '[' .. int(NOW) .. ',' .. int(begun) .. ']')
end
return reply({})
