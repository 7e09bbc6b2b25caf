-- The index of lease ends, the only key that a run shares with other jobs.
--
-- Guarantees: the score of an open run is never later than the end of its lease. It may be earlier, because a lease
-- that is pushed forward leaves the index alone: `expired` looks at the run itself. What is lost here is put back by
-- `repair`.
--
-- On a cluster the index is on a node of its own: what would be written is noted in the reply as [member, score] or
-- [member, null], and the caller writes it afterwards with `reindex`, which moves no entry to a later score. A caller
-- that dies in between leaves a hole until `repair`, and is asked again (`index_again`) when it only lost the reply.
local LEASES = PREFIX .. 'leases'
local index_put, index_remove, index_again, index_mend

if CLUSTER then
  index_put = function(job, run, ending)
    NOTES[#NOTES + 1] = '[' .. cjson.encode(job .. ':' .. run) .. ',' .. int(ending) .. ']'
  end
  index_remove = function(job, run)
    NOTES[#NOTES + 1] = '[' .. cjson.encode(job .. ':' .. run) .. ',null]'
  end
  index_again, index_mend = index_put, index_put
else
  index_put = function(job, run, ending)
    redis.call('ZADD', LEASES, int(ending), job .. ':' .. run)
  end
  index_remove = function(job, run)
    redis.call('ZREM', LEASES, job .. ':' .. run)
  end
  index_again = function() end -- the first call wrote it together with the run
  index_mend = function(job, run, ending)
    local score = redis.call('ZSCORE', LEASES, job .. ':' .. run)
    if not score or tonumber(score) > ending then index_put(job, run, ending) end
  end
end
