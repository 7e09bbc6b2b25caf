-- The history of a job: one entry for each ended attempt and each stretch of slots.
--
-- Guarantees: an attempt has one entry, and a later one takes its place; the newest `keep` entries of a job remain, by
-- slot, key and attempt, and are never counted by reading them: `entries` of the job is their number.

-- name: record
CREATE OR REPLACE FUNCTION {fn_record}(e {runs}, keep integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  number bigint;
BEGIN
  INSERT INTO {runs} SELECT e.* ON CONFLICT DO NOTHING;
  IF FOUND THEN
    UPDATE {jobs} j SET entries = j.entries + 1 WHERE j.job = e.job RETURNING j.entries INTO number;
  ELSE
    DELETE FROM {runs} r WHERE r.job = e.job AND r.slot = e.slot AND r.key = e.key AND r.attempt = e.attempt;
    INSERT INTO {runs} SELECT e.*;
    SELECT j.entries INTO number FROM {jobs} j WHERE j.job = e.job;
  END IF;
  IF number > keep THEN PERFORM {fn_drop_oldest}(ARRAY[e.job], ARRAY[least(number - keep, 100)]); END IF;
END
$$;

-- name: drop_oldest
-- Drop so many of the oldest entries of some jobs.
CREATE OR REPLACE FUNCTION {fn_drop_oldest}(jobs text[], surplus bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  WITH oldest AS MATERIALIZED (
    SELECT a.job, o.slot, o.key, o.attempt FROM unnest(jobs, surplus) AS a(job, surplus) CROSS JOIN LATERAL (
      SELECT r.slot, r.key, r.attempt FROM {runs} r WHERE r.job = a.job ORDER BY r.slot, r.key, r.attempt
      LIMIT a.surplus) o
  ), gone AS (
    DELETE FROM {runs} r USING oldest o
    WHERE r.job = o.job AND r.slot = o.slot AND r.key = o.key AND r.attempt = o.attempt RETURNING r.job
  )
  UPDATE {jobs} j SET entries = j.entries - g.number
  FROM (SELECT gone.job, count(*) AS number FROM gone GROUP BY gone.job) g WHERE j.job = g.job;
END
$$;

-- name: old_entries
-- How many entries of a job are of slots before the given one; a hundred at most.
CREATE OR REPLACE FUNCTION {fn_old_entries}(of_job text, before bigint) RETURNS bigint LANGUAGE plpgsql STABLE
AS $$
BEGIN
  RETURN (SELECT count(*) FROM (SELECT FROM {runs} r WHERE r.job = of_job AND r.slot < before LIMIT 100) entries);
END
$$;

-- name: entry
-- The entry of a state's current attempt.
CREATE OR REPLACE FUNCTION {fn_entry}(s {state}) RETURNS {runs} LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE e {runs};
BEGIN
  e.job := s.job; e.slot := s.slot; e.key := s.key; e.attempt := s.attempt; e."trigger" := s."trigger";
  e.token := s.token; e.status := s.status; e.reason := s.reason; e.count := 1; e.tracked := s.tracked; e.due := s.due;
  e.instance := s.instance; e.worker := s.worker; e.pid := s.pid; e.claimed_at := s.claimed_at;
  e.enqueued_at := s.enqueued_at; e.started_at := s.started_at; e.finished_at := s.finished_at;
  e.publishes := s.publishes; e.retries := greatest(s.retries, 0); e.refused := 0; e.task_id := s.task_id;
  e.error := s.error;
  RETURN e;
END
$$;

-- name: record_state
CREATE OR REPLACE FUNCTION {fn_record_state}(s {state}, keep integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM {fn_record}({fn_entry}(s), keep);
END
$$;

-- name: record_stretch
-- The entry of a stretch of slots that share one fate.
CREATE OR REPLACE FUNCTION {fn_record_stretch}(
  job text, first bigint, last bigint, count integer, status text, reason text, keep integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE e {runs};
BEGIN
  e.job := job; e.slot := last; e.key := ''; e.attempt := 0; e."trigger" := 'schedule'; e.token := 0;
  e.status := status; e.reason := reason; e.count := count; e.first_slot := first; e.tracked := true;
  e.publishes := 0; e.retries := 0; e.refused := 0;
  PERFORM {fn_record}(e, keep);
END
$$;

-- name: take_stretch
-- Remove the skipped or missed slot, or the stretch that ends with it, if it has this fate and no story of its own;
-- return it, or NULL.
CREATE OR REPLACE FUNCTION {fn_take_stretch}(of_job text, at_slot bigint, status text, reason text)
RETURNS {runs} LANGUAGE plpgsql AS $$
DECLARE e {runs};
BEGIN
  SELECT * INTO e FROM {runs} r
  WHERE r.job = of_job AND r.slot = at_slot AND r.key = '' AND r.status IN ('skipped', 'missed')
  ORDER BY r.attempt LIMIT 1;
  IF NOT FOUND OR e.status <> status OR e.reason IS DISTINCT FROM reason OR e.publishes > 0 OR e.error <> '' THEN
    RETURN NULL;
  END IF;
  DELETE FROM {runs} r WHERE r.job = of_job AND r.slot = at_slot AND r.key = '' AND r.attempt = e.attempt;
  UPDATE {jobs} j SET entries = j.entries - 1 WHERE j.job = of_job;
  RETURN e;
END
$$;

-- name: refuse
-- Count a refused write in the entry of the attempt that had this token, if there is one.
CREATE OR REPLACE FUNCTION {fn_refuse}(of_job text, run text, of_token bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
  UPDATE {runs} r SET refused = r.refused + 1
  WHERE r.job = of_job AND r.slot = {fn_slot_of}(run) AND r.key = {fn_key_of}(run) AND r.token = of_token
    AND of_token <> 0;
END
$$;
