-- uses: base write
--
-- forget: take definitions off the list that readers see. The account of the job stays.
return each(cjson.decode(ARGV[4]), function(name)
  return redis.call('HDEL', PREFIX .. 'jobs', name) == 1
end)
