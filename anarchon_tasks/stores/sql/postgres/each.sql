-- How a batch is decided: its plain items together, where that is known to say the same, and the others one by one.
--
-- Guarantees: each item is decided apart from the others; one that cannot be stored or read answers ["error", text] and
-- spoils none. Whatever keeps the server from writing at all fails the whole call.

-- name: decide
CREATE OR REPLACE FUNCTION {fn_decide}(operation text, items jsonb, policies jsonb, now_ms bigint)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  number integer := jsonb_array_length(items);
  answers text[];
BEGIN
  answers := {fn_together}(operation, items, policies, now_ms);
  FOR n IN 1 .. number LOOP
    IF answers[n] IS NULL THEN answers[n] := {fn_one}(operation, items -> (n - 1), policies, now_ms); END IF;
  END LOOP;
  RETURN answers;
EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded OR raise_exception THEN
  -- Nothing of the above has happened. Some item failed: find out which.
  answers := '{{}}';
  FOR n IN 1 .. number LOOP
    BEGIN
      answers[n] := {fn_one}(operation, items -> (n - 1), policies, now_ms);
    EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded OR raise_exception THEN
      answers[n] := json_build_array('error', SQLERRM);
    END;
  END LOOP;
  RETURN answers;
END
$$;

-- name: together
-- Decide what can be decided together; NULL for the other items, and for all of an operation that has none.
CREATE OR REPLACE FUNCTION {fn_together}(operation text, items jsonb, policies jsonb, now_ms bigint)
RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
  CASE operation
    WHEN 'beat' THEN RETURN {fn_beat_all}(items, now_ms);
    WHEN 'claim' THEN RETURN {fn_plain_claims}(items, policies, now_ms);
    WHEN 'queued' THEN RETURN {fn_plain_publishes}(items, now_ms);
    WHEN 'begin' THEN RETURN {fn_plain_begins}(items, now_ms);
    WHEN 'finish' THEN RETURN {fn_plain_ends}(items, now_ms);
    ELSE RETURN '{{}}';
  END CASE;
END
$$;

-- name: one
CREATE OR REPLACE FUNCTION {fn_one}(operation text, item jsonb, policies jsonb, now_ms bigint)
RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  CASE operation
    WHEN 'claim' THEN RETURN {fn_claim_one}(item, policies, now_ms);
    WHEN 'queued' THEN RETURN {fn_queued_one}(item, now_ms);
    WHEN 'release' THEN RETURN {fn_release_one}(item, now_ms);
    WHEN 'beat' THEN RETURN ({fn_beat_all}(jsonb_build_array(item), now_ms))[1];
    WHEN 'begin' THEN RETURN {fn_begin_one}(item, now_ms);
    WHEN 'park' THEN RETURN {fn_park_one}(item, now_ms);
    WHEN 'finish' THEN RETURN {fn_finish_one}(item, now_ms);
    WHEN 'register' THEN RETURN {fn_register_one}(item, now_ms);
    WHEN 'forget' THEN RETURN {fn_forget_one}(item);
  END CASE;
END
$$;

-- name: forget_one
-- Take a definition off the list that readers see. The account of the job stays.
CREATE OR REPLACE FUNCTION {fn_forget_one}(item jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM {definitions} d WHERE d.job = item ->> 0;
  RETURN FOUND;
END
$$;

-- name: run
-- A whole call. The settings hold for it alone. Its statements look up rows of a batch by their keys, also in tables
-- that were small or empty when a session planned them, which it does once: reading more rows than needed is made dear.
CREATE OR REPLACE FUNCTION {fn_run}(
  operation text, items jsonb, policies jsonb, shared boolean, at bigint, newest integer
) RETURNS text LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET cpu_tuple_cost = 10 SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
  refusal text;
  now_ms bigint;
BEGIN
  PERFORM {fn_lock_jobs}(items, shared);
  refusal := {fn_newer}(newest); -- not before: a migration may have come while it waited
  IF refusal IS NOT NULL THEN RETURN refusal; END IF;
  now_ms := {fn_now_ms}(at);
  RETURN {fn_reply}(now_ms, {fn_decide}(operation, items, policies, now_ms));
END
$$;
