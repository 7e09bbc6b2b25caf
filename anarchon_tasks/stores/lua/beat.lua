-- uses: base write index account history
--
-- beat: push the end of a lease forward.
--
-- Guarantees: it works for the current token alone, also after the lease ran out, as long as nobody took the run over.
-- The state is patched without being decoded, and the index of lease ends is touched only when a lease gets shorter.
local function beat(item)
  local job, run, token, lease, phase = unpack(item)
  local state_key = key_of(job, 'state')
  local text = redis.call('HGET', state_key, run)
  local status, current, lease_until, not_before, rest
  if text then status, current, lease_until, not_before, rest = string.match(text, HEAD) end
  if status ~= phase or current ~= token then
    if text and not status then error('the state of this run cannot be read', 0) end
    if phase == 'running' and current ~= token then refuse({name = job}, run, tonumber(token)) end
    return false
  end
  if string.sub(rest, 1, 5) ~= 'null,' then return false end -- it was reported dead
  local till = NOW + lease
  if till < tonumber(lease_until) then index_put(job, run, math.max(till, tonumber(not_before))) end
  redis.call('HSET', state_key, run,
    '["' .. status .. '","' .. token .. '",' .. int(till) .. ',' .. not_before .. ',' .. rest)
  return true
end

return each(cjson.decode(ARGV[4]), beat)
