-- begin, park and finish: what workers say of runs.
--
-- Guarantees: one execution is admitted per attempt and retry, and the same delivery repeated is admitted again while
-- nobody else was granted the run; whatever else carries the message is told to drop it. Only who executes a run, or
-- the parent of that very process, can end it; a stale token changes nothing and is counted.

-- name: begins
-- Read begins.
CREATE OR REPLACE FUNCTION {fn_begins}(
  items jsonb, OUT n bigint, OUT job text, OUT run text, OUT delivery_id text, OUT message_id text, OUT retries integer,
  OUT worker text, OUT pid bigint, OUT attempt integer, OUT token bigint, OUT lease bigint, OUT max_attempts integer,
  OUT history integer, OUT "trigger" text, OUT takeover boolean
) RETURNS SETOF record LANGUAGE sql IMMUTABLE ROWS 100 AS $$
  SELECT
    n, item ->> 0, item ->> 1, item ->> 2, item -> 3 ->> 0, (item -> 3 ->> 1)::integer, item -> 3 ->> 2,
    (item -> 3 ->> 3)::bigint, (item ->> 4)::integer, (item ->> 5)::bigint, (item ->> 6)::bigint,
    (item ->> 7)::integer, (item ->> 8)::integer, item ->> 9, (item ->> 10)::boolean
  FROM jsonb_array_elements(items) WITH ORDINALITY AS of_batch(item, n)
$$;

-- name: begin_one
CREATE OR REPLACE FUNCTION {fn_begin_one}(item jsonb, now_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  ask record;
  s {state};
  retried boolean;
BEGIN
  SELECT * INTO ask FROM {fn_begins}(jsonb_build_array(item));
  SELECT * INTO s FROM {state} t
  WHERE t.job = ask.job AND t.slot = {fn_slot_of}(ask.run) AND t.key = {fn_key_of}(ask.run);
  IF NOT FOUND THEN RETURN {fn_begin_unknown}(ask, now_ms); END IF;
  retried := ask.retries > 0 AND ask.token = s.token;
  IF s.status = 'enqueued' THEN
    RETURN {fn_begin_answer}('untracked', s, 0);
  ELSIF s.status IN ('claimed', 'queued') THEN
    IF s.parked AND NOT retried THEN RETURN {fn_begin_answer}('busy', s, s.lease_until); END IF;
    IF NOT {fn_past_deadline}(s, now_ms) OR s.parked THEN RETURN {fn_start}(ask, s, now_ms); END IF;
    s := {fn_end_run}(s, 'expired', 'deadline', ask.history, now_ms);
  ELSIF s.status = 'running' THEN
    RETURN {fn_begin_running}(ask, s, retried, now_ms);
  ELSIF s.status = 'lost' THEN
    RETURN {fn_begin_lost}(ask, s, now_ms);
  END IF;
  RETURN {fn_begin_answer}('done', s, 0);
END
$$;

-- name: begin_answer
CREATE OR REPLACE FUNCTION {fn_begin_answer}(kind text, s {state}, until bigint) RETURNS text LANGUAGE sql STABLE
AS $$
  SELECT CASE kind
    WHEN 'ok' THEN json_build_array(kind, s.status, until, s.attempt, s.token::text)
    ELSE json_build_array(kind, s.status, until)
  END::text
$$;

-- name: begin_unknown
-- Begin a run that the store does not know: a failover lost it, unless it is too old to be asked for.
CREATE OR REPLACE FUNCTION {fn_begin_unknown}(ask record, now_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  s {state} := {fn_new_state}(
    ask.job, ask.run, ask."trigger", 'queued', {fn_slot_of}(ask.run), now_ms, true, true);
BEGIN
  PERFORM FROM {jobs} j WHERE j.job = ask.job AND j.trimmed >= s.slot;
  IF FOUND OR s.slot <= -1 THEN RETURN json_build_array('done', NULL, 0); END IF;
  s.attempt := ask.attempt;
  RETURN {fn_start}(ask, s, now_ms);
END
$$;

-- name: begin_running
CREATE OR REPLACE FUNCTION {fn_begin_running}(ask record, s {state}, retried boolean, now_ms bigint)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  reason text := coalesce(s.reason, 'taken_over');
BEGIN
  IF s.grant_id = ask.delivery_id AND s.reason IS NULL THEN
    -- The same call again. Also after an outage that outlived the lease, as long as nobody else was granted the run.
    s.lease_until := greatest(s.lease_until, now_ms + ask.lease);
    PERFORM {fn_put}(s);
    RETURN {fn_begin_answer}('ok', s, s.lease_until);
  ELSIF retried THEN
    RETURN {fn_start}(ask, s, now_ms);
  ELSIF s.lease_until > now_ms OR NOT ask.takeover THEN
    RETURN {fn_begin_answer}('busy', s, s.lease_until);
  ELSIF s.attempt >= ask.max_attempts THEN
    RETURN {fn_begin_answer}('done', {fn_end_run}(s, 'interrupted', reason, ask.history, now_ms), 0);
  END IF;
  RETURN {fn_start}(ask, {fn_next_attempt}(s, reason, ask.history, now_ms), now_ms);
END
$$;

-- name: begin_lost
-- Let a run that was given up still run: a backlog makes runs late, not absent.
CREATE OR REPLACE FUNCTION {fn_begin_lost}(ask record, s {state}, now_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  other {state};
BEGIN
  IF s.reason IS DISTINCT FROM 'never_started' THEN RETURN {fn_begin_answer}('done', s, 0); END IF;
  IF s.exclusive THEN
    PERFORM FROM {state} o
    WHERE o.job = s.job AND o.wake IS NOT NULL AND (o.attempt > 1 OR o.retries > -1) LIMIT 1;
    IF FOUND THEN RETURN {fn_begin_answer}('done', s, 0); END IF;
    FOR other IN SELECT * FROM {state} o WHERE o.job = s.job AND o.wake IS NOT NULL ORDER BY o.slot, o.key LOOP
      PERFORM {fn_end_run}(other, 'skipped', 'overlap', ask.history, now_ms);
    END LOOP;
  END IF;
  s.reason := NULL; s.finished_at := NULL;
  RETURN {fn_start}(ask, s, now_ms);
END
$$;

-- name: start
CREATE OR REPLACE FUNCTION {fn_start}(ask record, s {state}, now_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  s.token := {fn_next_token}(ask.job, true, now_ms);
  s.status := 'running'; s.parked := false; s.reason := NULL; s.grant_id := ask.delivery_id;
  s.message_id := ask.message_id; s.message_retries := ask.retries; s.worker := ask.worker; s.pid := ask.pid;
  s.retries := ask.retries; s.task_id := ask.message_id; s.lease_until := now_ms + ask.lease; s.not_before := 0;
  s.enqueued_at := coalesce(s.enqueued_at, now_ms);
  s.first_enqueued_at := coalesce(s.first_enqueued_at, now_ms);
  s.started_at := coalesce(s.started_at, now_ms);
  PERFORM {fn_put}(s);
  RETURN {fn_begin_answer}('ok', s, s.lease_until);
END
$$;

-- name: park_one
-- The run goes back to its queue, still under its token, which is what lets its retry in and nothing else.
CREATE OR REPLACE FUNCTION {fn_park_one}(item jsonb, now_ms bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  s {state} := {fn_state_of}(item);
BEGIN
  IF s.job IS NULL OR s.token <> (item ->> 2)::bigint THEN
    PERFORM {fn_refuse}(item ->> 0, item ->> 1, (item ->> 2)::bigint);
    RETURN false;
  ELSIF s.status <> 'running' THEN
    RETURN s.status = 'queued' AND s.parked;
  END IF;
  s.status := 'queued'; s.parked := true; s.reason := NULL;
  s.lease_until := greatest(now_ms, (item ->> 3)::bigint) + (item ->> 4)::bigint;
  PERFORM {fn_put}(s);
  RETURN true;
END
$$;

-- name: state_of
-- The state of the run that an item names.
CREATE OR REPLACE FUNCTION {fn_state_of}(item jsonb) RETURNS {state} LANGUAGE plpgsql AS $$
DECLARE found {state};
BEGIN
  SELECT * INTO found FROM {state} s
  WHERE s.job = item ->> 0 AND s.slot = {fn_slot_of}(item ->> 1) AND s.key = {fn_key_of}(item ->> 1);
  RETURN found;
END
$$;

-- name: ends
-- Read ends: the present token, or a delivery that the run must be executing, or still wait for.
CREATE OR REPLACE FUNCTION {fn_ends}(
  items jsonb, OUT n bigint, OUT job text, OUT run text, OUT status text, OUT token bigint, OUT delivered boolean,
  OUT message_id text, OUT retries integer, OUT worker text, OUT pid bigint, OUT attempt integer,
  OUT header_token bigint, OUT reason text, OUT error text, OUT max_attempts integer, OUT history integer
) RETURNS SETOF record LANGUAGE sql IMMUTABLE ROWS 100 AS $$
  SELECT
    n, item ->> 0, item ->> 1, item ->> 2, (item ->> 3)::bigint, jsonb_typeof(item -> 4) = 'array',
    item -> 4 ->> 0, (item -> 4 ->> 1)::integer, item -> 4 ->> 2, (item -> 4 ->> 3)::bigint, (item ->> 5)::integer,
    (item ->> 6)::bigint, item ->> 7, item ->> 8, (item ->> 9)::integer, (item ->> 10)::integer
  FROM jsonb_array_elements(items) WITH ORDINALITY AS of_batch(item, n)
$$;

-- name: finish_one
CREATE OR REPLACE FUNCTION {fn_finish_one}(item jsonb, now_ms bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  report record;
  s {state} := {fn_state_of}(item);
BEGIN
  IF s.job IS NULL THEN RETURN false; END IF;
  SELECT * INTO report FROM {fn_ends}(jsonb_build_array(item));
  IF NOT {fn_is_open}(s.status) THEN RETURN s.status = report.status AND {fn_concerns}(report, s); END IF;
  IF NOT {fn_concerns}(report, s) THEN
    PERFORM {fn_refuse}(report.job, report.run, report.token);
    RETURN false;
  ELSIF report.status <> 'interrupted' THEN
    s.enqueued_at := coalesce(s.enqueued_at, now_ms); -- its message was there, faster than the record of its publish
    s.error := report.error;
    PERFORM {fn_end_run}(s, report.status, report.reason, report.history, now_ms);
    RETURN true;
  ELSIF s.status <> 'running' THEN
    RETURN false;
  END IF;
  s.reason := coalesce(report.reason, 'worker_lost'); s.error := report.error;
  IF s.attempt >= report.max_attempts THEN
    PERFORM {fn_end_run}(s, 'interrupted', s.reason, report.history, now_ms);
  ELSE
    s.lease_until := least(s.lease_until, now_ms);
    PERFORM {fn_put}(s);
  END IF;
  RETURN true;
END
$$;

-- name: concerns
-- Whether the report is about what the run does now.
CREATE OR REPLACE FUNCTION {fn_concerns}(report record, s {state}) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF NOT report.delivered THEN RETURN report.token = s.token AND s.status <> 'claimed'; END IF;
  IF (report.message_id, report.retries, report.worker, report.pid)
    IS NOT DISTINCT FROM (s.message_id, s.message_retries, s.worker, s.pid) THEN
    RETURN true;
  ELSIF s.status = 'running' OR s.attempt <> report.attempt THEN
    RETURN false;
  END IF;
  RETURN CASE WHEN s.parked THEN report.header_token = s.token ELSE report.retries = 0 END;
END
$$;
