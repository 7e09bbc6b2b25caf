-- For scripts that write.
--
-- Guarantees: the store has a format before anything else is in it (on a cluster the caller sees to that, with `open`),
-- and whatever keeps the server from writing at all (a replica, full memory, a failed save, too few replicas) fails the
-- whole call before its first item, instead of looking like the failure of each item.
if FORMAT_IS_HERE then
  redis.call('SET', PREFIX .. 'format', int(FORMAT), 'NX')
else
  local key = KEYS[3] or KEYS[1] -- a job's sorted set, or one that jobs share
  local tried = redis.pcall('ZADD', key, 'XX', 0, '') -- needs what every write needs, and changes nothing
  if type(tried) == 'table' and tried.err and not string.find(tried.err, '^WRONGTYPE') then return tried end
end
