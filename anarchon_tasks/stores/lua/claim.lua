-- uses: base write index account history steps
--
-- claim: may I take this run?
--
-- Guarantees: at most one caller is told `won` for each attempt and token, and the same claim repeated is told so
-- again while its lease lives. A slot that is settled here (late, overlap, superseded, in a stretch) is settled for
-- everybody, in this same step.
local POLICIES = {}
local TRIM_STEP = 4

local function policy_from(v)
  return {
    overlap = v[1], delivery = v[2], max_attempts = v[3], claim_lease = v[4], coalesce = v[5], start_timeout = v[6],
    start_deadline = some(v[7]), takeover_delay = v[8], keep = v[9], history = v[10], history_ttl = some(v[11]),
  }
end

local function ask_from(v)
  return {
    run = v[2], slot = v[3], claim_id = v[4], instance = v[5], policy = POLICIES[v[6] + 1], due = v[7], latest = v[8],
    floor = v[9], ranges = v[10], tracked = v[11], late_reason = v[12], queue_begun = v[13], trigger = v[14], gap = v[15],
    takeover = v[16],
  }
end

-- Answer about a run; `reason`: why it ended, when this claim, or the one that it repeats, decided that.
local function answer(account, kind, state, till, reason)
  local floor = int(account.floor or 0)
  if not state then return '["' .. kind .. '",' .. floor .. ',' .. int(till or 0) .. ']' end
  return '["' .. kind .. '",' .. floor .. ',' .. int(till or state.lease_until) .. ',' .. int(state.attempt)
    .. ',"' .. int(state.token) .. '","' .. state.status .. '",' .. cjson.encode(state.run)
    .. (state.tracked and ',true,"' or ',false,"') .. state.trigger .. '",'
    .. maybe_text(reason) .. ']'
end

local function exclusive(ask)
  return ask.policy.overlap == 'skip' and ask.tracked
end

local function unstarted_claim(state)
  return state.status == 'claimed' and state.attempt == 1 and not state.first_enqueued_at
end

local function settle_ranges(account, ask)
  for i = 1, #ask.ranges do record_range(account, ask.ranges[i], ask.policy.history) end
end

local function raise_floor(account, ask)
  if ask.trigger == 'schedule' then account.floor = math.max(account.floor or 0, ask.slot) end
end

-- Drop the oldest ended states, a few per step; open ones at the bottom do not stop it. And what is too old. The run of
-- this very step is kept: it answers the repeat of its claim.
local function trim(account, policy, kept)
  if policy.history_ttl then forget(account, NOW - policy.history_ttl) end
  local slots = key_of(account.name, 'slots')
  local limit = TRIM_STEP + (account.open_count or redis.call('SCARD', key_of(account.name, 'active')))
  local oldest = redis.call('ZRANGEBYSCORE', slots, '-inf', '(' .. int(NOW - policy.keep), 'LIMIT', 0, limit)
  if #oldest == 0 then return end
  local active = key_of(account.name, 'active')
  account.dropped = account.dropped or {}
  for i = 1, #oldest do
    local run = oldest[i]
    if run ~= kept and redis.call('SISMEMBER', active, run) == 0 then
      redis.call('ZREM', slots, run)
      account.dropped[run] = true
      account.trimmed = math.max(account.trimmed, (parse_run(run)))
    end
  end
end

-- Add the slot to the stretch before it, if that one shares its fate: a long run is one entry, not thousands.
local function joined(account, ask, state)
  if ask.trigger ~= 'schedule' then return false end
  local before = #ask.ranges > 0 and ask.ranges[#ask.ranges][2] or ask.floor
  local count, first = take_stretch(account, before, state.status, state.reason)
  if not count then return false end
  record_range(account, {first, state.slot, count + 1, state.status, state.reason}, ask.policy.history)
  return true
end

local function settle(account, ask, state, kind, reason)
  close_run(account, state, kind == 'overlap' and 'skipped' or 'missed', reason)
  if not joined(account, ask, state) then record_state(account, state, ask.policy.history) end
  raise_floor(account, ask)
  trim(account, ask.policy, ask.run)
  return answer(account, kind, state, nil, reason)
end

local function grant(account, state, ask)
  state.status, state.grant_id, state.instance = 'claimed', ask.claim_id, ask.instance
  state.token = next_token(account)
  state.lease_until, state.not_before = NOW + ask.policy.claim_lease, 0
  state.claimed_at = state.claimed_at or NOW
  if ask.policy.start_deadline then state.deadline = state.due + ask.policy.start_deadline end
  log_start(account, state, ask.instance, ask.policy.history)
  put(account, state)
end

-- Whether a run would still be under way when the slot was due, had it been on time itself; or takes so long that there
-- is no time to catch up in.
local function overlaps(ask, other)
  if not other.first_enqueued_at then return false end
  local took = NOW - other.first_enqueued_at
  return other.due + took > ask.due or 2 * took >= ask.gap
end

local function older_claim(ask, other)
  return ask.trigger == 'schedule' and other.trigger == 'schedule' and unstarted_claim(other) and other.slot < ask.slot
end

-- Whether a claim that was never published is over, and past coalescing.
local function is_superseded(ask, other)
  return older_claim(ask, other) and other.lease_until <= NOW and NOW > other.due + ask.policy.coalesce
end

-- Answer that a slot is skipped, and name the run in its way: the caller sees whether that one must be recovered.
local function overlap(account, other)
  return answer(account, 'overlap', other, math.max(ending(other), NOW), 'overlap')
end

-- Find the open run that keeps this slot from starting: `wait` for one that only we delayed, else `overlap`. Claims that never started and are past coalescing are added to `superseded`.
local function in_the_way(account, ask, superseded)
  local alone = exclusive(ask)
  -- Beside others, only claims can matter, and a job may have thousands of runs in its queue.
  local others = open_runs(account, not alone and function(text) return string.sub(text, 3, 9) == 'claimed' end)
  local first
  for i = 1, #others do
    local other = others[i]
    if is_superseded(ask, other) then
      superseded[#superseded + 1] = other
    elseif alone or older_claim(ask, other) then
      -- After an outage, workers first have the time to say which runs have ended meanwhile.
      if not (ask.takeover and overlaps(ask, other)) then return 'wait', other end
      first = first or other
    end
  end
  if first then return 'overlap', first end
end

local function claim_new(account, ask)
  local scheduled = ask.trigger == 'schedule'
  if scheduled and ask.slot <= account.floor then return answer(account, 'done') end
  if NOW < ask.due then return answer(account, 'early', nil, ask.due) end
  if scheduled and account.floor ~= ask.floor then return answer(account, 'moved') end
  local state = new_state(ask.run, ask.trigger, 'claimed', ask.due, ask.latest, ask.tracked, exclusive(ask))
  state.grant_id = ask.claim_id
  if NOW > ask.latest then
    settle_ranges(account, ask)
    return settle(account, ask, state, 'late', ask.late_reason)
  end
  local superseded = {}
  local kind, other = in_the_way(account, ask, superseded)
  if kind then
    if kind == 'overlap' then
      -- What would have been superseded if this slot had won shares its fate.
      for i = 1, #ask.ranges do
        local range = ask.ranges[i]
        if range[5] == 'superseded' then range[4], range[5] = 'skipped', 'overlap' end
      end
      settle_ranges(account, ask)
      settle(account, ask, state, kind, 'overlap')
      return overlap(account, other)
    end
    return answer(account, kind, other, math.max(other.lease_until, other.not_before, NOW))
  end
  for i = 1, #superseded do end_run(account, superseded[i], 'missed', 'superseded', ask.policy.history) end
  settle_ranges(account, ask)
  raise_floor(account, ask)
  grant(account, state, ask)
  trim(account, ask.policy, ask.run)
  return answer(account, 'won', state)
end

-- End a run that was to be taken over, and remember the claim for its repeat.
local function end_by_claim(account, ask, state, status, reason)
  state.grant_id = ask.claim_id
  end_run(account, state, status, reason, ask.policy.history)
  return answer(account, status == 'missed' and 'late' or 'done', state, nil, reason)
end

local function recover_queued(account, ask, state)
  local policy, status, reason = ask.policy, nil, nil
  if past_deadline(state) then
    status, reason = 'expired', 'deadline'
  elseif policy.delivery == 'at_most_once' then
    status, reason = 'lost', 'never_started'
  elseif state.publishes >= policy.max_attempts and ask.queue_begun > (state.enqueued_at or 0) then
    status, reason = 'lost', 'never_started'
  end
  if not status then return nil end
  return end_by_claim(account, ask, state, status, reason)
end

-- Prepare a run whose lease is over for its next claim, or end it and return the answer; or tell that it is left alone.
local function recover(account, ask, state)
  local policy = ask.policy
  if state.status == 'claimed' then
    local silent = state.grant_id ~= '' and state.grant_id ~= ask.claim_id
    if policy.delivery == 'at_most_once' and silent then -- its holder died without a word: it may have published
      return end_by_claim(account, ask, state, 'lost', 'publish_unknown')
    end
    if not (unstarted_claim(state) and NOW > state.latest) then return nil end
    return end_by_claim(account, ask, state, 'missed', state.releases > 0 and 'publish_failed' or 'no_instance')
  end
  if state.status == 'queued' and not state.parked then return recover_queued(account, ask, state) end
  if not ask.takeover then return nil, true end
  state.not_before = state.lease_until + policy.takeover_delay
  if state.not_before > NOW then
    put(account, state)
    return nil
  end
  local reason = state.parked and 'retry_lost' or state.reason or 'taken_over'
  if state.attempt >= policy.max_attempts then return end_by_claim(account, ask, state, 'interrupted', reason) end
  next_attempt(account, state, reason, policy.history)
end

-- Claim a run that has a state. Nil: somebody has it, or it is not its time.
local function claim_known(account, ask, state)
  if not OPEN[state.status] then
    local repeated, kind = state.grant_id == ask.claim_id, 'done'
    if repeated and state.status == 'skipped' and state.reason == 'overlap' then
      local others = open_runs(account)
      for i = 1, #others do
        if not is_superseded(ask, others[i]) then return overlap(account, others[i]) end
      end
    end
    if repeated then
      kind = state.status == 'skipped' and 'overlap' or state.status == 'missed' and 'late' or 'done'
    end
    return answer(account, kind, state, nil, repeated and state.reason)
  end
  if state.lease_until > NOW then
    if state.status ~= 'claimed' or state.grant_id ~= ask.claim_id then return nil end
    put(account, state) -- written again, so that who waits for replicas waits for this grant, on any connection
    index_again(account.name, state.run, ending(state))
    return answer(account, 'won', state)
  end
  if state.not_before > NOW then return nil end
  local ended, left = recover(account, ask, state)
  if ended or left then return ended end
  if state.lease_until > NOW or state.not_before > NOW then return nil end
  grant(account, state, ask)
  return answer(account, 'won', state)
end

local function claim(account, state, item)
  if not account.floor then return '["unregistered",0,0]' end
  local ask = ask_from(item)
  if not state then return claim_new(account, ask) end
  if ask.trigger == 'schedule' and account.floor == ask.floor and ask.floor < ask.slot then
    -- A worker brought the run back after the store had lost it: put the slot on the account.
    settle_ranges(account, ask)
    raise_floor(account, ask)
  end
  return claim_known(account, ask, state)
    or answer(account, 'running', state, math.max(state.lease_until, state.not_before, NOW))
end

local payload = cjson.decode(ARGV[4])
for i = 1, #payload[1] do POLICIES[i] = policy_from(payload[1][i]) end
return each(payload[2], step(claim))
