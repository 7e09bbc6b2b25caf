-- What every operation needs: the store's time, locks on jobs, and the shape of a reply.
--
-- Guarantees: a job is changed by one call at a time, and what a call decides on is what the calls before it left. The
-- time of all decisions of a call is the server's, read once, when the call has its locks.

-- name: now_ms
-- The store's time; `at` is 0, except in tests that move the clock.
CREATE OR REPLACE FUNCTION {fn_now_ms}(at bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT CASE at WHEN 0 THEN floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint ELSE at END
$$;

-- name: newer
-- The whole reply to a caller that cannot read the store, because a newer version wrote it; or NULL. Volatile: when it
-- had to wait for a migration, it sees what that wrote.
CREATE OR REPLACE FUNCTION {fn_newer}(newest integer) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN (SELECT json_build_object('format', f.format)::text FROM {format} f WHERE f.format > newest LIMIT 1);
END
$$;

-- name: reply
CREATE OR REPLACE FUNCTION {fn_reply}(now_ms bigint, answers text[]) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT '[' || now_ms || ',[' || coalesce(array_to_string(answers, ','), '') || ']]'
$$;

-- name: lock_jobs
-- Make the jobs of a call its own until it ends; items begin with their job. Shared: beside other calls that do not
-- change the account. All calls take them in one order, so none waits for one that waits for it. In a serializable or
-- repeatable transaction a call would decide on what was there before it waited.
CREATE OR REPLACE FUNCTION {fn_lock_jobs}(items jsonb, shared boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE invalid_transaction_state USING
      MESSAGE = 'the store needs the isolation level "read committed", and this transaction is '
        || current_setting('transaction_isolation'),
      HINT = 'Set default_transaction_isolation to "read committed" for the role or the connection.';
  END IF;
  IF jsonb_array_length(items) = 1 THEN
    PERFORM CASE WHEN shared THEN pg_advisory_xact_lock_shared({namespace}, hashtext(items -> 0 ->> 0))
                 ELSE pg_advisory_xact_lock({namespace}, hashtext(items -> 0 ->> 0)) END;
    RETURN;
  END IF;
  PERFORM CASE WHEN shared THEN pg_advisory_xact_lock_shared({namespace}, wanted.job)
               ELSE pg_advisory_xact_lock({namespace}, wanted.job) END
  FROM (SELECT DISTINCT hashtext(item ->> 0) AS job FROM jsonb_array_elements(items) item ORDER BY 1) wanted;
END
$$;

-- name: slot_of
-- A run is named by its slot, or by its slot, a colon and its key.
CREATE OR REPLACE FUNCTION {fn_slot_of}(run text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT split_part(run, ':', 1)::bigint
$$;

-- name: key_of
CREATE OR REPLACE FUNCTION {fn_key_of}(run text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE strpos(run, ':') WHEN 0 THEN '' ELSE substr(run, strpos(run, ':') + 1) END
$$;

-- name: run_of
CREATE OR REPLACE FUNCTION {fn_run_of}(slot bigint, key text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE key WHEN '' THEN slot::text ELSE slot || ':' || key END
$$;

-- name: is_open
CREATE OR REPLACE FUNCTION {fn_is_open}(status text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT status IN ('claimed', 'queued', 'running')
$$;
