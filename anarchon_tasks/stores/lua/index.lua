-- The index of lease ends, the only key that a run shares with other jobs.
--
-- Guarantees: the score of an open run is never later than the end of its lease. It may be earlier, because a lease
-- that is pushed forward leaves the index alone: `expired` looks at the run itself. What is lost here is put back by
-- `repair`.
local LEASES = PREFIX .. 'leases'

local function index_put(job, run, ending)
  redis.call('ZADD', LEASES, int(ending), job .. ':' .. run)
end

local function index_remove(job, run)
  redis.call('ZREM', LEASES, job .. ':' .. run)
end
