-- beat: push the ends of leases forward.
--
-- Guarantees: it works for the current token alone, also after the lease ran out, as long as nobody took the run over.
-- Rows are locked in one order, so that two calls never wait for each other. No index is touched, unless a lease gets
-- shorter.

-- name: beats
CREATE OR REPLACE FUNCTION {fn_beats}(
  items jsonb, OUT n bigint, OUT job text, OUT slot bigint, OUT key text, OUT token bigint, OUT lease bigint,
  OUT phase text
) RETURNS SETOF record LANGUAGE sql IMMUTABLE ROWS 100 AS $$
  SELECT n, item ->> 0, {fn_slot_of}(item ->> 1), {fn_key_of}(item ->> 1), (item ->> 2)::bigint, (item ->> 3)::bigint,
    item ->> 4
  FROM jsonb_array_elements(items) WITH ORDINALITY AS of_batch(item, n)
$$;

-- name: beat_all
-- All items in one statement: what one of them changes is nothing that decides about another. Of several about one run
-- the last one stays.
CREATE OR REPLACE FUNCTION {fn_beat_all}(items jsonb, now_ms bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  places bigint[];
  answers text[];
BEGIN
  WITH held AS MATERIALIZED (
    SELECT b.n, b.lease, s.job, s.slot, s.key
    FROM (SELECT * FROM {fn_beats}(items) ORDER BY job COLLATE "C", slot, key COLLATE "C", n DESC) b
    CROSS JOIN LATERAL (
      SELECT s.job, s.slot, s.key FROM {state} s
      WHERE s.job = b.job AND s.slot = b.slot AND s.key = b.key
        AND s.token = b.token AND s.status = b.phase AND s.reason IS NULL
      FOR NO KEY UPDATE) s
  ), pushed AS (
    UPDATE {state} s SET
      lease_until = now_ms + h.lease, wake = least(s.wake, greatest(now_ms + h.lease, s.not_before))
    FROM (SELECT DISTINCT ON (job, slot, key) * FROM held ORDER BY job, slot, key, n DESC) h
    WHERE s.job = h.job AND s.slot = h.slot AND s.key = h.key
  )
  SELECT array_agg(h.n) INTO places FROM held h;
  answers := array_fill('false'::text, ARRAY[jsonb_array_length(items)]);
  FOR i IN 1 .. coalesce(cardinality(places), 0) LOOP answers[places[i]] := 'true'; END LOOP;
  IF 'false' = ANY (answers) THEN PERFORM {fn_refuse_beats}(items, answers); END IF;
  RETURN answers;
END
$$;

-- name: refuse_beats
-- Count the beats of workers that lost their run, in one order.
CREATE OR REPLACE FUNCTION {fn_refuse_beats}(items jsonb, answers text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  stale record;
BEGIN
  FOR stale IN
    SELECT b.job, {fn_run_of}(b.slot, b.key) AS run, b.token FROM {fn_beats}(items) b
    WHERE answers[b.n] = 'false' AND b.phase = 'running' AND b.token IS DISTINCT FROM (
      SELECT s.token FROM {state} s WHERE s.job = b.job AND s.slot = b.slot AND s.key = b.key)
    ORDER BY b.job COLLATE "C", b.slot, b.key COLLATE "C", b.token
  LOOP
    PERFORM {fn_refuse}(stale.job, stale.run, stale.token);
  END LOOP;
END
$$;
