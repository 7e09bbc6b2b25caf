-- uses: base write
--
-- define: put definitions on the list that readers see, after `register`. For a cluster.
--
-- Payload: [[name, definition], ...].
return each(cjson.decode(ARGV[4]), function(item)
  redis.call('HSET', PREFIX .. 'jobs', item[1], item[2])
  return true
end)
