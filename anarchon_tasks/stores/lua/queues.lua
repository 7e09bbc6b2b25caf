-- uses: base
--
-- queues: what workers said of their queues, at most a day ago, as [queue, announced, begun].
local DAY = 86400000
local got, fresh = redis.call('HGETALL', PREFIX .. 'queues'), {}
for i = 1, #got, 2 do
  local announced, begun = unpack(cjson.decode(got[i + 1]))
  if announced > NOW - DAY then
    fresh[#fresh + 1] = '[' .. cjson.encode(got[i]) .. ',' .. int(announced) .. ',' .. int(begun) .. ']'
  end
end
return reply(fresh)
