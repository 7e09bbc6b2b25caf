-- For scripts that write.
--
-- Guarantees: the store has a format before anything else is in it, and whatever keeps the server from writing at all
-- (a replica, full memory, a failed save, too few replicas) fails the whole call before its first item, instead of
-- looking like the failure of each item.
redis.call('SET', PREFIX .. 'format', int(FORMAT), 'NX')
