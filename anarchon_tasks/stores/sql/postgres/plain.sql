-- The plain items of a batch, decided together: what nearly all items are, in a few statements for all of them.
--
-- Guarantees: an answer given here is the one that the functions for one item give, and so is what is stored. An item
-- is plain when it is the only one of its job in the batch, and none of the conditions below makes it another case.
-- Rows are looked up LATERAL and with OFFSET 0, so that the server starts with the items, whatever it knows of a table.

-- name: plain_claims
-- Claims that win: the slot is due and not late, follows the floor that the caller saw, nothing is to be settled before
-- it, and no run of the job is in the way.
CREATE OR REPLACE FUNCTION {fn_plain_claims}(items jsonb, policies jsonb, now_ms bigint) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
  places bigint[];
  said text[];
  with_old_states text[];
  below bigint[];
  with_old_entries text[];
  old bigint[];
BEGIN
  WITH plain AS MATERIALIZED (
    SELECT a.*, greatest(j.token + 1, now_ms * 1000) AS token, j.lowest < now_ms - a.keep_for AS has_old,
      CASE WHEN a.history_ttl IS NULL THEN 0 ELSE {fn_old_entries}(a.job, now_ms - a.history_ttl) END AS old_entries
    FROM (SELECT b.*, count(*) OVER (PARTITION BY b.job) AS number FROM {fn_asks}(items, policies) b) a
    CROSS JOIN LATERAL (SELECT * FROM {jobs} t WHERE t.job = a.job OFFSET 0) j
    WHERE a.number = 1 AND a."trigger" = 'schedule' AND a.key = '' AND a.slot > j.floor AND a.floor = j.floor
      AND now_ms BETWEEN a.due AND a.latest AND a.slot >= now_ms - a.keep_for
      AND a.ranges = '[]'
      AND (SELECT 1 FROM {state} s WHERE s.job = a.job AND s.slot = a.slot AND s.key = '') IS NULL
      AND (SELECT 1 FROM {state} o WHERE o.job = a.job AND o.wake IS NOT NULL
             AND (a.exclusive OR o.status = 'claimed') LIMIT 1) IS NULL
  ), made AS (
    INSERT INTO {state} (
      job, slot, key, "trigger", status, attempt, token, lease_until, wake, not_before, grant_id, due, latest, instance,
      tracked, exclusive, releases, publishes, parked, retries, deadline, claimed_at)
    SELECT p.job, p.slot, '', 'schedule', 'claimed', 1, p.token, now_ms + p.claim_lease, now_ms + p.claim_lease, 0,
      p.claim_id, p.due, p.latest, p.instance, p.tracked, p.exclusive, 0, 0, false, -1, p.due + p.start_deadline, now_ms
    FROM plain p
  ), paid AS (
    UPDATE {jobs} j SET floor = p.slot, token = p.token, lowest = least(j.lowest, p.slot)
    FROM plain p WHERE j.job = p.job
  )
  SELECT array_agg(p.n), array_agg(json_build_array(
      'won', p.slot, now_ms + p.claim_lease, 1, p.token::text, 'claimed', p.run, p.tracked, 'schedule', NULL)::text),
    array_agg(p.job) FILTER (WHERE p.has_old), array_agg(now_ms - p.keep_for) FILTER (WHERE p.has_old),
    array_agg(p.job) FILTER (WHERE p.old_entries > 0), array_agg(p.old_entries) FILTER (WHERE p.old_entries > 0)
  INTO places, said, with_old_states, below, with_old_entries, old FROM plain p;
  IF with_old_entries IS NOT NULL THEN PERFORM {fn_drop_oldest}(with_old_entries, old); END IF;
  IF with_old_states IS NOT NULL THEN PERFORM {fn_trim}(with_old_states, below, '{{}}', '{{}}'); END IF;
  IF coalesce(cardinality(places), 0) = jsonb_array_length(items) THEN RETURN {fn_placed}(places, said); END IF;
  RETURN {fn_lost_claims}(items, policies, now_ms, {fn_placed}(places, said));
END
$$;

-- name: lost_claims
-- Claims of slots that are settled, or whose run somebody has: they change nothing. Adds to the answers that are known.
CREATE OR REPLACE FUNCTION {fn_lost_claims}(items jsonb, policies jsonb, now_ms bigint, answers text[])
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  places bigint[];
  said text[];
BEGIN
  SELECT array_agg(a.n), array_agg(
    CASE WHEN s.job IS NULL THEN {fn_bare_answer}('done', j.floor, 0)
         ELSE {fn_answer}('running', s, j.floor, greatest(s.lease_until, s.not_before), false) END)
  INTO places, said
  FROM (SELECT b.*, count(*) OVER (PARTITION BY b.job) AS number FROM {fn_asks}(items, policies) b) a
  CROSS JOIN LATERAL (SELECT * FROM {jobs} t WHERE t.job = a.job OFFSET 0) j
  LEFT JOIN LATERAL (
    SELECT * FROM {state} t WHERE t.job = a.job AND t.slot = a.slot AND t.key = a.key OFFSET 0) s ON true
  WHERE a.number = 1 AND a."trigger" = 'schedule' AND a.slot <= j.floor
    AND (s.job IS NULL OR s.wake IS NOT NULL AND s.lease_until > now_ms
           AND (s.status <> 'claimed' OR s.grant_id <> a.claim_id));
  RETURN {fn_placed}(places, said, answers);
END
$$;

-- name: placed
-- Answers by their places in the batch, with those that are known.
CREATE OR REPLACE FUNCTION {fn_placed}(places bigint[], said text[], answers text[] DEFAULT '{{}}')
RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  FOR i IN 1 .. coalesce(cardinality(places), 0) LOOP answers[places[i]] := said[i]; END LOOP;
  RETURN answers;
END
$$;

-- name: plain_publishes
-- Confirmed publishes of claims that stand.
CREATE OR REPLACE FUNCTION {fn_plain_publishes}(items jsonb, now_ms bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  places bigint[];
BEGIN
  WITH plain AS MATERIALIZED (
    SELECT a.n, s.job, s.slot, s.key, a.task_id, j.doublings,
      {fn_queue_until}(now_ms, a.eta, a.start_timeout, j.doublings, s.deadline) AS until
    FROM (
      SELECT n, item ->> 0 AS job, {fn_slot_of}(item ->> 1) AS slot, {fn_key_of}(item ->> 1) AS key,
        (item ->> 2)::bigint AS token, item ->> 3 AS task_id, (item ->> 4)::bigint AS eta,
        (item ->> 5)::bigint AS start_timeout, count(*) OVER (PARTITION BY item ->> 0) AS number
      FROM jsonb_array_elements(items) WITH ORDINALITY AS of_batch(item, n)
    ) a
    CROSS JOIN LATERAL (SELECT * FROM {state} t WHERE t.job = a.job AND t.slot = a.slot AND t.key = a.key OFFSET 0) s
    CROSS JOIN LATERAL (SELECT * FROM {jobs} t WHERE t.job = a.job OFFSET 0) j
    WHERE a.number = 1 AND s.token = a.token AND s.status = 'claimed' AND s.tracked
  ), waiting AS (
    UPDATE {state} s SET status = 'queued', publishes = s.publishes + 1, releases = 0, task_id = p.task_id,
      enqueued_at = coalesce(s.enqueued_at, now_ms), first_enqueued_at = coalesce(s.first_enqueued_at, now_ms),
      lease_until = p.until, wake = least(s.wake, greatest(p.until, s.not_before))
    FROM plain p WHERE s.job = p.job AND s.slot = p.slot AND s.key = p.key
  ), doubled AS (
    UPDATE {jobs} j SET doublings = j.doublings + 1 FROM plain p WHERE j.job = p.job AND p.doublings < 20
  )
  SELECT array_agg(p.n) INTO places FROM plain p;
  RETURN {fn_placed}(places, array_fill('true'::text, ARRAY[coalesce(cardinality(places), 0)]));
END
$$;

-- name: plain_begins
-- Messages of runs that wait for them.
CREATE OR REPLACE FUNCTION {fn_plain_begins}(items jsonb, now_ms bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  places bigint[];
  said text[];
BEGIN
  WITH plain AS MATERIALIZED (
    SELECT a.*, s.slot, s.key, s.attempt AS present, greatest(j.token + 1, now_ms * 1000) AS granted
    FROM (SELECT b.*, count(*) OVER (PARTITION BY b.job) AS number FROM {fn_begins}(items) b) a
    CROSS JOIN LATERAL (
      SELECT * FROM {state} t
      WHERE t.job = a.job AND t.slot = {fn_slot_of}(a.run) AND t.key = {fn_key_of}(a.run) OFFSET 0) s
    CROSS JOIN LATERAL (SELECT * FROM {jobs} t WHERE t.job = a.job OFFSET 0) j
    WHERE a.number = 1 AND s.status IN ('claimed', 'queued') AND NOT s.parked
      AND (s.deadline IS NULL OR now_ms <= s.deadline OR s.attempt > 1)
  ), begun AS (
    UPDATE {state} s SET status = 'running', reason = NULL, token = p.granted, grant_id = p.delivery_id,
      message_id = p.message_id, message_retries = p.retries, worker = p.worker, pid = p.pid, retries = p.retries,
      task_id = p.message_id, lease_until = now_ms + p.lease, not_before = 0, wake = least(s.wake, now_ms + p.lease),
      enqueued_at = coalesce(s.enqueued_at, now_ms), first_enqueued_at = coalesce(s.first_enqueued_at, now_ms),
      started_at = coalesce(s.started_at, now_ms)
    FROM plain p WHERE s.job = p.job AND s.slot = p.slot AND s.key = p.key
  ), paid AS (
    UPDATE {jobs} j SET token = p.granted, doublings = 0 FROM plain p WHERE j.job = p.job
  )
  SELECT array_agg(p.n),
    array_agg(json_build_array('ok', 'running', now_ms + p.lease, p.present, p.granted::text)::text)
  INTO places, said FROM plain p;
  RETURN {fn_placed}(places, said);
END
$$;

-- name: plain_ends
-- Ends of runs, told by who holds the present token.
CREATE OR REPLACE FUNCTION {fn_plain_ends}(items jsonb, now_ms bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  places bigint[];
  jobs text[];
  surplus bigint[];
BEGIN
  WITH plain AS MATERIALIZED (
    SELECT a.n, a.status AS ended, a.reason AS why, a.error AS told, s.*, j.entries + 1 - a.history AS surplus
    FROM (SELECT b.*, count(*) OVER (PARTITION BY b.job) AS number FROM {fn_ends}(items) b) a
    CROSS JOIN LATERAL (
      SELECT * FROM {state} t
      WHERE t.job = a.job AND t.slot = {fn_slot_of}(a.run) AND t.key = {fn_key_of}(a.run) OFFSET 0) s
    CROSS JOIN LATERAL (SELECT * FROM {jobs} t WHERE t.job = a.job OFFSET 0) j
    WHERE a.number = 1 AND NOT a.delivered AND a.token = s.token AND s.status IN ('queued', 'running')
      AND a.status <> 'interrupted'
      AND (SELECT 1 FROM {runs} r
           WHERE r.job = s.job AND r.slot = s.slot AND r.key = s.key AND r.attempt = s.attempt) IS NULL
  ), ended AS (
    UPDATE {state} s SET status = p.ended, reason = p.why, error = p.told, finished_at = now_ms, lease_until = 0,
      not_before = 0, wake = NULL, enqueued_at = coalesce(s.enqueued_at, now_ms)
    FROM plain p WHERE s.job = p.job AND s.slot = p.slot AND s.key = p.key
  ), told AS (
    INSERT INTO {runs} (
      job, slot, key, attempt, "trigger", token, status, reason, count, tracked, due, instance, worker, pid, claimed_at,
      enqueued_at, started_at, finished_at, publishes, retries, refused, task_id, error)
    SELECT p.job, p.slot, p.key, p.attempt, p."trigger", p.token, p.ended, p.why, 1, p.tracked, p.due, p.instance,
      p.worker, p.pid, p.claimed_at, coalesce(p.enqueued_at, now_ms), p.started_at, now_ms, p.publishes,
      greatest(p.retries, 0), 0, p.task_id, p.told
    FROM plain p
  ), counted AS (
    UPDATE {jobs} j SET entries = j.entries + 1 FROM plain p WHERE j.job = p.job
  )
  SELECT array_agg(p.n), array_agg(p.job) FILTER (WHERE p.surplus > 0),
    array_agg(least(p.surplus, 100)) FILTER (WHERE p.surplus > 0)
  INTO places, jobs, surplus FROM plain p;
  IF jobs IS NOT NULL THEN PERFORM {fn_drop_oldest}(jobs, surplus); END IF;
  RETURN {fn_placed}(places, array_fill('true'::text, ARRAY[coalesce(cardinality(places), 0)]));
END
$$;
