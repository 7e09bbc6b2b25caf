-- uses: base write index account history steps
--
-- release: a claim is handed back.
--
-- Guarantees: the run stays on record and claimable; after a failed publish it rests for a while. A claim that is no
-- longer the caller's is left alone. The repeat of a release answers yes and counts nothing.
local function release(account, state, item)
  local token, failed, unknown, at_most_once, history = tonumber(item[3]), item[4], item[5], item[6], item[7]
  if not state or state.token ~= token then return false end
  local handed_back = (state.grant_id or '') == ''
  if state.status ~= 'claimed' then return handed_back and state.status == 'lost' end -- the repeat of what ended it
  if unknown and at_most_once then
    state.grant_id = ''
    end_run(account, state, 'lost', 'publish_unknown', history)
    return true
  end
  if handed_back and state.lease_until <= NOW then return true end
  if failed and not handed_back then
    state.releases = state.releases + 1
    state.error = some(item[8])
    state.not_before = NOW + math.min(30000, 1000 * 2 ^ math.min(state.releases - 1, 5))
  end
  state.lease_until, state.grant_id = NOW, ''
  put(account, state)
  return true
end

return each(cjson.decode(ARGV[4]), step(release))
