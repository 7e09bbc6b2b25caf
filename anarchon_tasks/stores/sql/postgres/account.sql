-- The account of a job: the states of its runs, its fencing tokens, and what leaves the state.
--
-- Guarantees: `wake` and `lowest` hold what tables.sql says of them; a token is higher than each one before it, also
-- when a failover lost the last ones.

-- name: put
-- Store a run's state, new or changed. The row may be younger than what the caller read, in `wake` alone.
CREATE OR REPLACE FUNCTION {fn_put}(s {state}) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  s.wake := CASE WHEN {fn_is_open}(s.status) THEN greatest(s.lease_until, s.not_before) END;
  UPDATE {state} AS t SET
    token = s.token, lease_until = s.lease_until, not_before = s.not_before, due = s.due, latest = s.latest,
    wake = CASE WHEN s.wake IS NOT NULL THEN least(t.wake, s.wake) END, deadline = s.deadline,
    claimed_at = s.claimed_at, enqueued_at = s.enqueued_at, first_enqueued_at = s.first_enqueued_at,
    started_at = s.started_at, finished_at = s.finished_at, pid = s.pid, attempt = s.attempt, releases = s.releases,
    publishes = s.publishes, retries = s.retries, message_retries = s.message_retries, tracked = s.tracked,
    exclusive = s.exclusive, parked = s.parked, "trigger" = s."trigger", status = s.status, grant_id = s.grant_id,
    instance = s.instance, task_id = s.task_id, message_id = s.message_id, worker = s.worker, reason = s.reason,
    error = s.error
  WHERE t.job = s.job AND t.slot = s.slot AND t.key = s.key;
  IF NOT FOUND THEN
    INSERT INTO {state} SELECT s.*;
    UPDATE {jobs} j SET lowest = least(j.lowest, s.slot)
    WHERE j.job = s.job AND (j.lowest IS NULL OR j.lowest > s.slot);
  END IF;
END
$$;

-- name: new_state
CREATE OR REPLACE FUNCTION {fn_new_state}(
  job text, run text, "trigger" text, status text, due bigint, latest bigint, tracked boolean, exclusive boolean
) RETURNS {state} LANGUAGE plpgsql AS $$
DECLARE s {state};
BEGIN
  s.job := job; s.slot := {fn_slot_of}(run); s.key := {fn_key_of}(run); s."trigger" := "trigger"; s.status := status;
  s.attempt := 1; s.token := 0; s.lease_until := 0; s.not_before := 0; s.grant_id := ''; s.due := due;
  s.latest := latest; s.tracked := tracked; s.exclusive := exclusive; s.releases := 0; s.publishes := 0;
  s.parked := false; s.retries := -1;
  RETURN s;
END
$$;

-- name: next_token
-- Take the job's next fencing token. `begun`: for a run that begins, which ends the doubling of start timeouts.
CREATE OR REPLACE FUNCTION {fn_next_token}(of_job text, begun boolean, now_ms bigint) RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
  granted bigint;
BEGIN
  INSERT INTO {jobs} AS j (job, token) VALUES (of_job, greatest(1, now_ms * 1000))
  ON CONFLICT (job) DO UPDATE SET
    token = greatest(j.token + 1, now_ms * 1000), doublings = CASE WHEN begun THEN 0 ELSE j.doublings END
  RETURNING j.token INTO granted;
  RETURN granted;
END
$$;

-- name: end_run
-- End a run, and put it into the history (keep NULL: the caller does that).
CREATE OR REPLACE FUNCTION {fn_end_run}(s {state}, status text, reason text, keep integer, now_ms bigint)
RETURNS {state} LANGUAGE plpgsql AS $$
BEGIN
  s.status := status; s.reason := reason; s.finished_at := now_ms; s.lease_until := 0; s.not_before := 0;
  PERFORM {fn_put}(s);
  IF keep IS NOT NULL THEN PERFORM {fn_record_state}(s, keep); END IF;
  RETURN s;
END
$$;

-- name: next_attempt
-- Close the attempt that died, and make the next one.
CREATE OR REPLACE FUNCTION {fn_next_attempt}(s {state}, reason text, keep integer, now_ms bigint)
RETURNS {state} LANGUAGE plpgsql AS $$
BEGIN
  s.status := 'interrupted'; s.reason := reason; s.finished_at := now_ms;
  PERFORM {fn_record_state}(s, keep);
  s.attempt := s.attempt + 1;
  s.status := 'claimed'; s.reason := NULL; s.error := NULL; s.finished_at := NULL; s.parked := false; s.retries := -1;
  s.message_id := NULL; s.message_retries := NULL; s.worker := NULL; s.pid := NULL;
  s.publishes := 0; s.releases := 0; s.not_before := 0;
  s.claimed_at := NULL; s.enqueued_at := NULL; s.started_at := NULL; s.task_id := NULL;
  RETURN s;
END
$$;

-- name: past_deadline
CREATE OR REPLACE FUNCTION {fn_past_deadline}(s {state}, now_ms bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(now_ms > s.deadline, false) AND s.attempt = 1
$$;

-- name: trim
-- Drop the oldest ended states of some jobs, a few of each per step; open ones at the bottom do not stop it. The runs
-- of this very step, if they may be among them, are kept: they answer the repeat of their claims.
CREATE OR REPLACE FUNCTION {fn_trim}(jobs text[], below bigint[], kept_slots bigint[], kept_keys text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  touched text[];
  tops bigint[];
BEGIN
  WITH oldest AS MATERIALIZED (
    SELECT a.job, a.kept_slot, a.kept_key, o.slot, o.key, o.wake
    FROM unnest(jobs, below, kept_slots, kept_keys) AS a(job, below, kept_slot, kept_key)
    CROSS JOIN LATERAL (SELECT FROM {jobs} t WHERE t.job = a.job AND t.lowest < a.below OFFSET 0) j
    CROSS JOIN LATERAL (
      SELECT s.slot, s.key, s.wake FROM {state} s WHERE s.job = a.job AND s.slot < a.below ORDER BY s.slot, s.key
      LIMIT 4 + (SELECT count(*) FROM {state} c WHERE c.job = a.job AND c.wake IS NOT NULL)) o
  ), gone AS (
    DELETE FROM {state} s USING oldest o
    WHERE s.job = o.job AND s.slot = o.slot AND s.key = o.key AND o.wake IS NULL
      AND (o.slot, o.key) IS DISTINCT FROM (o.kept_slot, o.kept_key)
    RETURNING s.job, s.slot
  )
  SELECT array_agg(of_job.job), array_agg(of_job.top) INTO touched, tops
  FROM (SELECT g.job, max(g.slot) AS top FROM gone g GROUP BY g.job) of_job;
  UPDATE {jobs} j SET
    trimmed = greatest(j.trimmed, t.top),
    lowest = (SELECT s.slot FROM {state} s WHERE s.job = j.job ORDER BY s.slot LIMIT 1)
  FROM unnest(touched, tops) t(job, top) WHERE j.job = t.job;
END
$$;
