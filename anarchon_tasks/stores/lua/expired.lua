-- uses: base write index account
--
-- expired: which runs are over their lease?
--
-- Guarantees: it looks at no more than `most` due entries of the index, drops those of ended runs and moves those that
-- live on to where their lease ends now; so a caller that asks again gets further. An entry whose job cannot be read is
-- put off by a minute. On a cluster `due`, `look` and `reindex` do the same in steps.
--
-- Payload: [most]. Reply: [now, [[ending, "job:run"], ...], whether there may be more].
local function look(member)
  return stored_ending(string.match(member, '^([^:]*):(.*)$'))
end

local most = cjson.decode(ARGV[4])[1]
local due = redis.call('ZRANGEBYSCORE', LEASES, '-inf', int(NOW), 'LIMIT', 0, most)
local over = {}
for i = 1, #due do
  local member = due[i]
  local fine, ends = pcall(look, member)
  if not fine then
    redis.call('ZADD', LEASES, int(NOW + 60000), member)
  elseif not ends then
    redis.call('ZREM', LEASES, member)
  elseif ends > NOW then
    redis.call('ZADD', LEASES, int(ends), member)
  else
    over[#over + 1] = '[' .. int(ends) .. ',' .. cjson.encode(member) .. ']'
  end
end
return reply(over, #due == most and ',true' or ',false')
