-- uses: base write index account
--
-- register: make jobs known.
--
-- Guarantees: a new job owes no slot of before its instance, one whose fingerprint changed none of before the change; a
-- job of which the store lost something gets the floor that the caller still knows.
local function register(item)
  local job, name, fingerprint, floor, definition = item[1], item[2], item[3], some(item[4]), item[5]
  local since = some(item[6])
  local state_key = key_of(job, 'state')
  local got = redis.call('HMGET', state_key, 'floor', 'fingerprint')
  local had = tonumber(got[1])
  local changed = (got[2] or '') ~= fingerprint
  local new = had
  if not had then
    new = math.min(floor or since or NOW, NOW)
    redis.call('HSET', state_key, 'registered_at', int(NOW))
  else
    new = math.max(had, changed and NOW or math.min(floor or 0, NOW))
  end
  if not CLUSTER then redis.call('HSET', PREFIX .. 'jobs', name, definition) end -- else by `define`
  if changed then redis.call('HSET', state_key, 'fingerprint', fingerprint, 'changed_at', int(NOW)) end
  if new ~= had then redis.call('HSET', state_key, 'floor', int(new)) end
  return '[' .. int(new) .. ',' .. tostring(changed) .. ']'
end

return each(cjson.decode(ARGV[4]), register)
