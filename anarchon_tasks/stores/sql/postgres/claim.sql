-- claim: may I take this run?
--
-- Guarantees: at most one caller is told `won` for each attempt and token, and the same claim repeated is told so again
-- while its lease lives. A slot that is settled here (late, overlap, superseded, in a stretch) is settled for
-- everybody, in this same step.

-- name: asks
-- Read claims, each with the policy that it names. An `ask` is such a row.
CREATE OR REPLACE FUNCTION {fn_asks}(
  items jsonb, policies jsonb, OUT n bigint, OUT job text, OUT run text, OUT slot bigint, OUT key text,
  OUT claim_id text, OUT instance text, OUT due bigint, OUT latest bigint, OUT floor bigint, OUT ranges jsonb,
  OUT tracked boolean, OUT late_reason text, OUT queue_begun bigint, OUT "trigger" text, OUT gap bigint,
  OUT takeover boolean, OUT exclusive boolean, OUT at_most_once boolean, OUT max_attempts integer,
  OUT claim_lease bigint, OUT coalesce_for bigint, OUT start_deadline bigint, OUT takeover_delay bigint,
  OUT keep_for bigint, OUT history integer, OUT history_ttl bigint
) RETURNS SETOF record LANGUAGE sql IMMUTABLE ROWS 100 AS $$
  SELECT
    n, item ->> 0, item ->> 1, (item ->> 2)::bigint, {fn_key_of}(item ->> 1), item ->> 3,
    item ->> 4, (item ->> 6)::bigint, (item ->> 7)::bigint, (item ->> 8)::bigint, item -> 9, (item ->> 10)::boolean,
    item ->> 11, (item ->> 12)::bigint, item ->> 13, (item ->> 14)::bigint, (item ->> 15)::boolean,
    policy ->> 0 = 'skip' AND (item ->> 10)::boolean, policy ->> 1 = 'at_most_once', (policy ->> 2)::integer,
    (policy ->> 3)::bigint, (policy ->> 4)::bigint, (policy ->> 6)::bigint, (policy ->> 7)::bigint,
    (policy ->> 8)::bigint, (policy ->> 9)::integer, (policy ->> 10)::bigint
  FROM jsonb_array_elements(items) WITH ORDINALITY AS of_batch(item, n),
    LATERAL (SELECT policies -> (item ->> 5)::integer OFFSET 0) AS named(policy)
$$;

-- name: answer
-- The answer to a claim, about a run; `decided`: this claim, or the one that it repeats, ended it.
CREATE OR REPLACE FUNCTION {fn_answer}(kind text, s {state}, floor bigint, until bigint, decided boolean)
RETURNS text LANGUAGE sql STABLE AS $$
  SELECT json_build_array(
    kind, floor, coalesce(until, s.lease_until), s.attempt, s.token::text, s.status, {fn_run_of}(s.slot, s.key),
    s.tracked, s."trigger", CASE WHEN decided THEN s.reason END)::text
$$;

-- name: bare_answer
CREATE OR REPLACE FUNCTION {fn_bare_answer}(kind text, floor bigint, until bigint) RETURNS text LANGUAGE sql STABLE
AS $$
  SELECT json_build_array(kind, floor, until)::text
$$;

-- name: claim_one
CREATE OR REPLACE FUNCTION {fn_claim_one}(item jsonb, policies jsonb, now_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  ask record;
  s {state};
  floor bigint;
BEGIN
  SELECT * INTO ask FROM {fn_asks}(jsonb_build_array(item), policies);
  SELECT j.floor INTO floor FROM {jobs} j WHERE j.job = ask.job;
  IF floor IS NULL THEN RETURN {fn_bare_answer}('unregistered', 0, 0); END IF;
  SELECT * INTO s FROM {state} t WHERE t.job = ask.job AND t.slot = ask.slot AND t.key = ask.key;
  IF NOT FOUND THEN RETURN {fn_claim_new}(ask, floor, now_ms); END IF;
  IF ask."trigger" = 'schedule' AND floor = ask.floor AND ask.floor < ask.slot THEN
    -- A worker brought the run back after the store had lost it: put the slot on the account.
    floor := {fn_settle_before}(ask, false);
  END IF;
  RETURN {fn_claim_known}(ask, s, floor, now_ms);
END
$$;

-- name: settle_before
-- Settle the stretches of slots before a claimed one, and raise the floor to it; return the floor. What would have been
-- superseded if the slot had won shares its fate when it is skipped.
CREATE OR REPLACE FUNCTION {fn_settle_before}(ask record, skipped boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  stretch jsonb;
  too boolean;
  raised bigint;
BEGIN
  FOR stretch IN SELECT * FROM jsonb_array_elements(ask.ranges) LOOP
    too := skipped AND stretch ->> 4 = 'superseded';
    PERFORM {fn_record_stretch}(
      ask.job, (stretch ->> 0)::bigint, (stretch ->> 1)::bigint, (stretch ->> 2)::integer,
      CASE WHEN too THEN 'skipped' ELSE stretch ->> 3 END, CASE WHEN too THEN 'overlap' ELSE stretch ->> 4 END,
      ask.history);
  END LOOP;
  UPDATE {jobs} j SET floor = CASE ask."trigger" WHEN 'schedule' THEN greatest(j.floor, ask.slot) ELSE j.floor END
  WHERE j.job = ask.job RETURNING j.floor INTO raised;
  RETURN raised;
END
$$;

-- name: claim_new
-- Claim a run without a state: a slot that nobody took yet, or a manual run.
CREATE OR REPLACE FUNCTION {fn_claim_new}(ask record, floor bigint, now_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  scheduled boolean := ask."trigger" = 'schedule';
  s {state};
  other {state};
  overlap boolean;
BEGIN
  IF scheduled AND ask.slot <= floor THEN RETURN {fn_bare_answer}('done', floor, 0); END IF;
  IF now_ms < ask.due THEN RETURN {fn_bare_answer}('early', floor, ask.due); END IF;
  IF scheduled AND floor <> ask.floor THEN RETURN {fn_bare_answer}('moved', floor, 0); END IF;
  s := {fn_new_state}(
    ask.job, ask.run, ask."trigger", 'claimed', ask.due, ask.latest, ask.tracked, ask.exclusive);
  s.grant_id := ask.claim_id;
  IF now_ms > ask.latest THEN
    RETURN {fn_settle}(ask, s, 'missed', ask.late_reason, now_ms);
  END IF;
  SELECT * INTO other FROM {fn_in_the_way}(ask, now_ms);
  IF other.job IS NOT NULL THEN
    IF {fn_overlaps}(ask, other, now_ms) THEN
      PERFORM {fn_settle}(ask, s, 'skipped', 'overlap', now_ms);
      RETURN {fn_overlap_answer}(other, CASE WHEN scheduled THEN greatest(floor, ask.slot) ELSE floor END, now_ms);
    END IF;
    RETURN {fn_answer}(
      'wait', other, floor, greatest(other.lease_until, other.not_before, now_ms), false);
  END IF;
  FOR other IN
    SELECT * FROM {state} o WHERE o.job = ask.job AND o.wake IS NOT NULL AND {fn_superseded}(ask, o, now_ms)
  LOOP
    PERFORM {fn_end_run}(other, 'missed', 'superseded', ask.history, now_ms);
  END LOOP;
  floor := {fn_settle_before}(ask, false);
  s := {fn_grant}(s, ask, now_ms);
  PERFORM {fn_trim_for}(ask, now_ms);
  RETURN {fn_answer}('won', s, floor, NULL, false);
END
$$;

-- name: overlap_answer
-- A slot is skipped, and this is the run in its way: the caller sees whether that one must be recovered.
CREATE OR REPLACE FUNCTION {fn_overlap_answer}(other {state}, floor bigint, now_ms bigint) RETURNS text LANGUAGE plpgsql
AS $$
BEGIN
  other.reason := 'overlap';
  RETURN {fn_answer}('overlap', other, floor, greatest(other.lease_until, other.not_before, now_ms), true);
END
$$;

-- name: in_the_way
-- The open run that keeps a slot from starting: before others one that the slot waits for, or else one that overlaps.
-- Beside others, only claims can matter, and a job may have thousands of runs in its queue.
CREATE OR REPLACE FUNCTION {fn_in_the_way}(ask record, now_ms bigint) RETURNS {state} LANGUAGE plpgsql AS $$
DECLARE
  other {state};
BEGIN
  SELECT * INTO other FROM {state} o
  WHERE o.job = ask.job AND o.wake IS NOT NULL
    AND (ask.exclusive OR o.status = 'claimed' AND {fn_older_claim}(ask, o))
    AND NOT {fn_superseded}(ask, o, now_ms)
  ORDER BY {fn_overlaps}(ask, o, now_ms), o.slot, o.key LIMIT 1;
  RETURN other;
END
$$;

-- name: older_claim
-- Whether a run is in its first claim (nothing of it ever started or waits in a queue), and for an older slot.
CREATE OR REPLACE FUNCTION {fn_older_claim}(ask record, other {state}) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN ask."trigger" = 'schedule' AND other."trigger" = 'schedule' AND other.status = 'claimed'
    AND other.attempt = 1 AND other.first_enqueued_at IS NULL AND other.slot < ask.slot;
END
$$;

-- name: superseded
-- Whether such a claim is over, and past coalescing.
CREATE OR REPLACE FUNCTION {fn_superseded}(ask record, other {state}, now_ms bigint) RETURNS boolean LANGUAGE plpgsql
AS $$
BEGIN
  RETURN {fn_older_claim}(ask, other) AND other.lease_until <= now_ms AND now_ms > other.due + ask.coalesce_for;
END
$$;

-- name: overlaps
-- Whether a run would still be under way when the slot was due, had it been on time itself; or takes so long that there
-- is no time to catch up in. After an outage, workers first have the time to say which runs have ended meanwhile.
CREATE OR REPLACE FUNCTION {fn_overlaps}(ask record, other {state}, now_ms bigint) RETURNS boolean LANGUAGE plpgsql
AS $$
BEGIN
  RETURN ask.takeover AND coalesce(
    other.due + now_ms - other.first_enqueued_at > ask.due OR 2 * (now_ms - other.first_enqueued_at) >= ask.gap, false);
END
$$;

-- name: settle
-- Settle a slot as skipped or missed, and what stands before it. It joins the stretch before it, if that one shares its
-- fate: a long run is one entry, not thousands.
CREATE OR REPLACE FUNCTION {fn_settle}(ask record, s {state}, status text, reason text, now_ms bigint)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  floor bigint := {fn_settle_before}(ask, status = 'skipped');
  before {runs};
BEGIN
  s := {fn_end_run}(s, status, reason, NULL, now_ms);
  IF ask."trigger" = 'schedule' THEN
    before := {fn_take_stretch}(ask.job, coalesce((ask.ranges -> -1 ->> 1)::bigint, ask.floor), status, reason);
  END IF;
  IF before.job IS NULL THEN
    PERFORM {fn_record_state}(s, ask.history);
  ELSE
    PERFORM {fn_record_stretch}(
      ask.job, coalesce(before.first_slot, before.slot), ask.slot, before.count + 1, status, reason, ask.history);
  END IF;
  PERFORM {fn_trim_for}(ask, now_ms);
  RETURN {fn_answer}(CASE status WHEN 'skipped' THEN 'overlap' ELSE 'late' END, s, floor, NULL, true);
END
$$;

-- name: trim_for
CREATE OR REPLACE FUNCTION {fn_trim_for}(ask record, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF ask.history_ttl IS NOT NULL THEN
    PERFORM {fn_drop_oldest}(ARRAY[ask.job], ARRAY[{fn_old_entries}(ask.job, now_ms - ask.history_ttl)]);
  END IF;
  PERFORM {fn_trim}(ARRAY[ask.job], ARRAY[now_ms - ask.keep_for], ARRAY[ask.slot], ARRAY[ask.key]);
END
$$;

-- name: grant
CREATE OR REPLACE FUNCTION {fn_grant}(s {state}, ask record, now_ms bigint) RETURNS {state} LANGUAGE plpgsql AS $$
BEGIN
  s.status := 'claimed'; s.grant_id := ask.claim_id; s.instance := ask.instance;
  s.token := {fn_next_token}(ask.job, false, now_ms);
  s.lease_until := now_ms + ask.claim_lease; s.not_before := 0; s.claimed_at := coalesce(s.claimed_at, now_ms);
  IF ask.start_deadline IS NOT NULL THEN s.deadline := s.due + ask.start_deadline; END IF;
  PERFORM {fn_put}(s);
  RETURN s;
END
$$;

-- name: claim_known
-- Claim a run that has a state.
CREATE OR REPLACE FUNCTION {fn_claim_known}(ask record, s {state}, floor bigint, now_ms bigint)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  mine boolean := s.grant_id = ask.claim_id;
  other {state};
BEGIN
  IF mine AND s.status = 'skipped' AND s.reason = 'overlap' THEN
    SELECT * INTO other FROM {state} o
    WHERE o.job = ask.job AND o.wake IS NOT NULL AND NOT {fn_superseded}(ask, o, now_ms)
    ORDER BY o.slot, o.key LIMIT 1;
    IF FOUND THEN RETURN {fn_overlap_answer}(other, floor, now_ms); END IF;
  END IF;
  IF NOT {fn_is_open}(s.status) THEN
    RETURN {fn_answer}({fn_settled_kind}(CASE WHEN mine THEN s.status END), s, floor, NULL, mine);
  ELSIF s.lease_until > now_ms AND s.status = 'claimed' AND mine THEN
    RETURN {fn_answer}('won', s, floor, NULL, false);
  ELSIF s.lease_until <= now_ms AND s.not_before <= now_ms THEN
    s := {fn_recover}(ask, s, now_ms);
    IF NOT {fn_is_open}(s.status) THEN
      RETURN {fn_answer}({fn_settled_kind}(s.status), s, floor, NULL, true);
    ELSIF s.status IN ('claimed', 'queued') AND s.lease_until <= now_ms AND s.not_before <= now_ms AND NOT s.parked THEN
      RETURN {fn_answer}('won', {fn_grant}(s, ask, now_ms), floor, NULL, false);
    END IF;
  END IF;
  RETURN {fn_answer}('running', s, floor, greatest(s.lease_until, s.not_before, now_ms), false);
END
$$;

-- name: settled_kind
CREATE OR REPLACE FUNCTION {fn_settled_kind}(status text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE status WHEN 'skipped' THEN 'overlap' WHEN 'missed' THEN 'late' ELSE 'done' END
$$;

-- name: recover
-- Prepare a run whose lease is over for its next claim, or end it and remember the claim for its repeat. A run that was
-- begun and is to be left to its worker comes back as it was: running, or parked in its queue.
CREATE OR REPLACE FUNCTION {fn_recover}(ask record, s {state}, now_ms bigint) RETURNS {state} LANGUAGE plpgsql AS $$
DECLARE
  status text;
  reason text;
BEGIN
  IF s.status = 'claimed' THEN
    IF ask.at_most_once AND s.grant_id NOT IN ('', ask.claim_id) THEN
      status := 'lost'; reason := 'publish_unknown'; -- its holder died without a word: it may have published
    ELSIF s.attempt = 1 AND s.first_enqueued_at IS NULL AND now_ms > s.latest THEN
      status := 'missed'; reason := CASE WHEN s.releases > 0 THEN 'publish_failed' ELSE 'no_instance' END;
    END IF;
  ELSIF s.status = 'queued' AND NOT s.parked THEN
    IF {fn_past_deadline}(s, now_ms) THEN
      status := 'expired'; reason := 'deadline';
    ELSIF ask.at_most_once
      OR s.publishes >= ask.max_attempts AND ask.queue_begun > coalesce(s.enqueued_at, 0) THEN
      status := 'lost'; reason := 'never_started';
    END IF;
  ELSIF ask.takeover THEN
    s.not_before := s.lease_until + ask.takeover_delay;
    IF s.not_before > now_ms THEN
      PERFORM {fn_put}(s);
      RETURN s;
    END IF;
    reason := CASE WHEN s.parked THEN 'retry_lost' ELSE coalesce(s.reason, 'taken_over') END;
    IF s.attempt < ask.max_attempts THEN RETURN {fn_next_attempt}(s, reason, ask.history, now_ms); END IF;
    status := 'interrupted';
  END IF;
  IF status IS NULL THEN RETURN s; END IF;
  s.grant_id := ask.claim_id;
  RETURN {fn_end_run}(s, status, reason, ask.history, now_ms);
END
$$;
