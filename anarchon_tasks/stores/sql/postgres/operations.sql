-- What clients call, by the names of the operations: a payload, the time (0: ask the server) and the newest format that
-- the caller can read give the text of [now, answers, ...].

-- name: claim
CREATE OR REPLACE FUNCTION {fn_claim}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN {fn_run}('claim', payload -> 1, payload -> 0, false, at, newest);
END
$$;

-- name: queued
CREATE OR REPLACE FUNCTION {fn_queued}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN {fn_run}('queued', payload, NULL, false, at, newest);
END
$$;

-- name: release
CREATE OR REPLACE FUNCTION {fn_release}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN {fn_run}('release', payload, NULL, false, at, newest);
END
$$;

-- name: beat
CREATE OR REPLACE FUNCTION {fn_beat}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN {fn_run}('beat', payload, NULL, true, at, newest);
END
$$;

-- name: begin
CREATE OR REPLACE FUNCTION {fn_begin}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN {fn_run}('begin', payload, NULL, false, at, newest);
END
$$;

-- name: park
CREATE OR REPLACE FUNCTION {fn_park}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN {fn_run}('park', payload, NULL, false, at, newest);
END
$$;

-- name: finish
CREATE OR REPLACE FUNCTION {fn_finish}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN {fn_run}('finish', payload, NULL, false, at, newest);
END
$$;

-- name: register
CREATE OR REPLACE FUNCTION {fn_register}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN {fn_run}('register', payload, NULL, false, at, newest);
END
$$;

-- name: forget
CREATE OR REPLACE FUNCTION {fn_forget}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN {fn_run}(
    'forget', (SELECT coalesce(jsonb_agg(jsonb_build_array(name) ORDER BY n), '[]')
               FROM jsonb_array_elements(payload) WITH ORDINALITY AS named(name, n)), NULL, false, at, newest);
END
$$;

-- name: repair
-- The indexes are written in the step that changes a run, so there is nothing to put back.
CREATE OR REPLACE FUNCTION {fn_repair}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN coalesce(
    {fn_newer}(newest), {fn_reply}({fn_now_ms}(at), array_fill('true'::text, ARRAY[jsonb_array_length(payload)])));
END
$$;

-- name: expired
-- Which runs are over their lease? Looks at no more than `most` due entries of the index and moves those of runs that
-- live on to where their lease ends now, so that a caller that asks again gets further. It waits for nobody: rows that
-- another call holds stay where they are.
--
-- Payload: [most]. Reply: [now, [[ending, [job, run]], ...], whether there may be more].
CREATE OR REPLACE FUNCTION {fn_expired}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET cpu_tuple_cost = 10 SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
  refusal text := {fn_newer}(newest);
  now_ms bigint := {fn_now_ms}(at);
  most bigint := (payload ->> 0)::bigint;
  found_all bigint;
  over json;
BEGIN
  IF refusal IS NOT NULL THEN RETURN refusal; END IF;
  WITH due AS MATERIALIZED (
    SELECT s.job, s.slot, s.key, greatest(s.lease_until, s.not_before) AS ending
    FROM {state} s WHERE s.wake <= now_ms ORDER BY s.wake LIMIT most
  ), alive AS MATERIALIZED (
    SELECT s.job, s.slot, s.key FROM due d CROSS JOIN LATERAL (
      SELECT s.job, s.slot, s.key FROM {state} s
      WHERE s.job = d.job AND s.slot = d.slot AND s.key = d.key AND s.wake <= now_ms FOR NO KEY UPDATE SKIP LOCKED) s
    WHERE d.ending > now_ms
  ), moved AS (
    UPDATE {state} s SET wake = greatest(s.lease_until, s.not_before)
    FROM alive a WHERE s.job = a.job AND s.slot = a.slot AND s.key = a.key AND s.wake IS NOT NULL
  )
  SELECT count(*), coalesce(
    json_agg(json_build_array(d.ending, json_build_array(d.job, {fn_run_of}(d.slot, d.key)))
             ORDER BY d.ending) FILTER (WHERE d.ending <= now_ms), '[]')
  INTO found_all, over FROM due d;
  RETURN json_build_array(now_ms, over, found_all = most);
END
$$;

-- name: announce
-- When a run of a queue last began only moves forward, whatever the order in which workers tell it. When it was
-- announced is read once its row is locked, so that a call that waited for another moves nothing back.
CREATE OR REPLACE FUNCTION {fn_announce}(payload jsonb, at bigint, newest integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  refusal text := {fn_newer}(newest);
  now_ms bigint := {fn_now_ms}(at);
BEGIN
  IF refusal IS NOT NULL THEN RETURN refusal; END IF;
  INSERT INTO {queues} AS q (queue, announced, begun)
  SELECT said ->> 0, now_ms, max((said ->> 1)::bigint) FROM jsonb_array_elements(payload) said GROUP BY 1 ORDER BY 1
  ON CONFLICT (queue) DO UPDATE SET
    announced = {fn_now_ms}(at), begun = greatest(q.begun, excluded.begun);
  RETURN {fn_reply}(now_ms, '{{}}');
END
$$;
