-- What only reads: it needs no more than SELECT on the tables.

-- name: time
-- The store's time, and whether its format can be read.
CREATE OR REPLACE FUNCTION {fn_time}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN coalesce({fn_newer}(newest), {fn_reply}({fn_now_ms}(at), '{{}}'));
END
$$;

-- name: definitions
-- The stored definitions, as [name, [fingerprint, document]].
CREATE OR REPLACE FUNCTION {fn_definitions}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql
AS $$
BEGIN
  RETURN coalesce({fn_newer}(newest), {fn_reply}({fn_now_ms}(at), (
    SELECT array_agg(json_build_array(d.job, json_build_array(d.fingerprint, d.document))::text)
    FROM {definitions} d)));
END
$$;

-- name: queues
-- What workers said of their queues, at most a day ago, as [queue, announced, begun].
CREATE OR REPLACE FUNCTION {fn_queues}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN coalesce({fn_newer}(newest), {fn_reply}({fn_now_ms}(at), (
    SELECT array_agg(json_build_array(q.queue, q.announced, q.begun)::text) FROM {queues} q
    WHERE q.announced > {fn_now_ms}(at) - 86400000)));
END
$$;

-- name: told
-- An entry of the history, in the order of places that readers unpack.
CREATE OR REPLACE FUNCTION {fn_told}(e {runs}) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT json_build_array(
    e.token::text, e.refused, e.slot, e.key, e.attempt, e."trigger", e.status, e.reason, e.tracked, e.due, e.instance,
    e.worker, e.pid, e.claimed_at, e.enqueued_at, e.started_at, e.finished_at, e.publishes, e.retries, e.task_id,
    e.error, e.count, e.first_slot)::text
$$;

-- name: read_runs
-- The newest entries of some jobs: for each one the `limit` newest of its history and all its open runs, as they stood
-- at one instant; an open run comes after the entry of the same attempt and replaces it.
--
-- Payload: [limit, [job, ...]].
CREATE OR REPLACE FUNCTION {fn_read_runs}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET cpu_tuple_cost = 10 SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
  refusal text := {fn_newer}(newest);
  most bigint := greatest((payload ->> 0)::bigint, 0);
  answers text[];
BEGIN
  IF refusal IS NOT NULL THEN RETURN refusal; END IF;
  SELECT array_agg('[' || concat_ws(',', kept.told, alive.told) || ']' ORDER BY wanted.n) INTO answers
  FROM jsonb_array_elements_text(payload -> 1) WITH ORDINALITY AS wanted(job, n)
  CROSS JOIN LATERAL (
    SELECT string_agg({fn_told}(e), ',') AS told FROM (
      SELECT r.* FROM {runs} r WHERE r.job = wanted.job
      ORDER BY r.slot DESC, r.key DESC, r.attempt DESC LIMIT most) e
  ) kept
  CROSS JOIN LATERAL (
    SELECT string_agg({fn_told}({fn_entry}(s)), ',') AS told FROM {state} s
    WHERE s.job = wanted.job AND s.wake IS NOT NULL AND most > 0
  ) alive;
  RETURN {fn_reply}({fn_now_ms}(at), answers);
END
$$;
