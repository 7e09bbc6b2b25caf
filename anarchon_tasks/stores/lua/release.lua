-- uses: base write index account history steps
--
-- release: a claim is handed back.
--
-- Guarantees: the run stays on record and claimable; after a failed publish it rests for a while. A claim that is no
-- longer the caller's is left alone.
local function release(account, state, item)
  local token, failed, unknown, at_most_once, history = tonumber(item[3]), item[4], item[5], item[6], item[7]
  if not state or state.token ~= token or state.status ~= 'claimed' then return false end
  if unknown and at_most_once then
    end_run(account, state, 'lost', 'publish_unknown', history)
    return true
  end
  if state.lease_until <= NOW and state.not_before > NOW then return true end
  if failed then
    state.releases = state.releases + 1
    state.error = some(item[8])
    state.not_before = NOW + math.min(30000, 1000 * 2 ^ math.min(state.releases - 1, 5))
  end
  state.lease_until, state.grant_id = NOW, ''
  put(account, state)
  return true
end

return each(cjson.decode(ARGV[4]), step(release))
