-- queued, release and beat: what becomes of a claim; register: which jobs there are.
--
-- Guarantees: queued and release change a run only while that very claim stands; a worker that was faster is not
-- undone. The repeat of a record answers as the record did.

-- name: queued_one
CREATE OR REPLACE FUNCTION {fn_queued_one}(item jsonb, now_ms bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  s {state} := {fn_state_of}(item);
  eta bigint := (item ->> 4)::bigint;
  start_timeout bigint := (item ->> 5)::bigint;
  doublings integer;
BEGIN
  IF s.job IS NULL OR s.token <> (item ->> 2)::bigint THEN RETURN false; END IF;
  IF s.status <> 'claimed' THEN RETURN s.status IN ('queued', 'enqueued'); END IF;
  s.publishes := s.publishes + 1;
  s.releases := 0;
  s.task_id := item ->> 3;
  s.enqueued_at := coalesce(s.enqueued_at, now_ms);
  IF NOT s.tracked THEN
    PERFORM {fn_end_run}(s, 'enqueued', NULL, (item ->> 6)::integer, now_ms);
    RETURN true;
  END IF;
  s.first_enqueued_at := coalesce(s.first_enqueued_at, now_ms);
  SELECT j.doublings INTO doublings FROM {jobs} j WHERE j.job = s.job;
  UPDATE {jobs} j SET doublings = j.doublings + 1 WHERE j.job = s.job AND j.doublings < 20;
  s.status := 'queued';
  s.lease_until := {fn_queue_until}(now_ms, eta, start_timeout, doublings, s.deadline);
  PERFORM {fn_put}(s);
  RETURN true;
END
$$;

-- name: queue_until
-- How long a published run may wait in its queue: doubled at each publish of the job, up to a day, until a run begins.
CREATE OR REPLACE FUNCTION {fn_queue_until}(
  now_ms bigint, eta bigint, start_timeout bigint, doublings integer, deadline bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT greatest(
    CASE WHEN deadline IS NOT NULL THEN now_ms + 1 END,
    least(greatest(now_ms, eta) + greatest(least(start_timeout << doublings, 86400000), start_timeout), deadline + 1))
$$;

-- name: release_one
-- The run stays on record and claimable; after a failed publish it rests for a while.
CREATE OR REPLACE FUNCTION {fn_release_one}(item jsonb, now_ms bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  s {state} := {fn_state_of}(item);
  handed_back boolean := s.grant_id = '';
BEGIN
  IF s.job IS NULL OR s.token <> (item ->> 2)::bigint THEN RETURN false; END IF;
  IF s.status <> 'claimed' THEN RETURN handed_back AND s.status = 'lost'; END IF; -- the repeat of what ended it
  IF (item ->> 4)::boolean AND (item ->> 5)::boolean THEN
    s.grant_id := '';
    PERFORM {fn_end_run}(s, 'lost', 'publish_unknown', (item ->> 6)::integer, now_ms);
    RETURN true;
  ELSIF handed_back AND s.lease_until <= now_ms THEN
    RETURN true;
  ELSIF (item ->> 3)::boolean AND NOT handed_back THEN
    s.releases := s.releases + 1;
    s.error := item ->> 7;
    s.not_before := now_ms + least(30000, 1000 << least(s.releases - 1, 5));
  END IF;
  s.lease_until := now_ms; s.grant_id := '';
  PERFORM {fn_put}(s);
  RETURN true;
END
$$;

-- name: register_one
-- A new job owes no slot of before its instance, one whose fingerprint changed none of before the change; a job of
-- which the store lost something gets the floor that the caller still knows. A name that the indexes might not hold is
-- refused here, and not when one of its runs is to be stored.
CREATE OR REPLACE FUNCTION {fn_register_one}(item jsonb, now_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  named text := item ->> 0;
  mark text := item ->> 2;
  known bigint := (item ->> 3)::bigint;
  j {jobs};
  had {jobs};
  changed boolean;
BEGIN
  IF octet_length(named) > 2500 THEN
    RAISE 'its name has % bytes, and this store takes up to 2500: give it a shorter one', octet_length(named);
  END IF;
  SELECT * INTO had FROM {jobs} t WHERE t.job = named;
  changed := mark <> coalesce(had.fingerprint, '');
  j := had; j.job := named;
  IF had.floor IS NULL THEN
    j.floor := least(coalesce(known, (item ->> 5)::bigint, now_ms), now_ms); j.registered_at := now_ms;
  ELSE
    j.floor := greatest(had.floor, CASE WHEN changed THEN now_ms ELSE least(coalesce(known, 0), now_ms) END);
  END IF;
  IF changed THEN j.fingerprint := mark; j.changed_at := now_ms; END IF;
  IF had.job IS NULL THEN
    INSERT INTO {jobs} (job, floor, fingerprint, registered_at, changed_at)
    VALUES (j.job, j.floor, mark, j.registered_at, coalesce(j.changed_at, 0));
  ELSIF j IS DISTINCT FROM had THEN
    UPDATE {jobs} t SET floor = j.floor, fingerprint = mark, registered_at = j.registered_at, changed_at = j.changed_at
    WHERE t.job = named;
  END IF;
  INSERT INTO {definitions} AS d (job, fingerprint, document) VALUES (item ->> 1, mark, (item ->> 4)::json ->> 1)
  ON CONFLICT (job) DO UPDATE SET fingerprint = excluded.fingerprint, document = excluded.document
  WHERE (d.fingerprint, d.document) <> (excluded.fingerprint, excluded.document);
  RETURN json_build_array(j.floor, changed);
END
$$;

