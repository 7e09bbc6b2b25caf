-- uses: base
--
-- definitions: the stored definitions, as [name, [fingerprint, document]].
local got, found = redis.call('HGETALL', PREFIX .. 'jobs'), {}
for i = 1, #got, 2 do found[#found + 1] = '[' .. cjson.encode(got[i]) .. ',' .. got[i + 1] .. ']' end
return reply(found)
