-- How the tables and functions of a store come to be: executed in one transaction, `lock` first.
-- Beside names: {schema_text} and {made_for} are literals, {named_...} are lists of literals, {lock} and {newest} numbers.
--
-- A migration to a newer format, of which there is none yet, has to take `LOCK TABLE {format} IN ACCESS EXCLUSIVE MODE`
-- right after `lock`, and no lock of a job: every call reads the format when it has the locks of its jobs, and keeps the
-- table until it ends. So the migration waits for the calls that began, and those that come later wait for it, and are
-- refused when they find that its format is too new for them.

-- name: lock
-- Whoever comes second waits here, and then finds everything made.
SELECT pg_catalog.pg_advisory_xact_lock({lock});

-- name: check_encoding
-- Another encoding has no place for the names of most jobs, or, as SQL_ASCII, takes any bytes for a name.
DO $check$ BEGIN
  IF pg_catalog.current_setting('server_encoding') <> 'UTF8' THEN
    RAISE untranslatable_character USING
      MESSAGE = 'the database ' || pg_catalog.current_database() || ' has the encoding '
        || pg_catalog.current_setting('server_encoding') || ', and the store needs UTF8',
      HINT = 'Use another database: CREATE DATABASE ... ENCODING ''UTF8'' TEMPLATE template0.';
  END IF;
END $check$;

-- name: late_bodies
-- Functions may be made in any order, also before the others that they call.
SET LOCAL check_function_bodies = off;

-- name: make_schema
DO {dollar} BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema_text}) THEN
    CREATE SCHEMA {schema};
  END IF;
END {dollar};

-- name: write_format
INSERT INTO {format} (format, made_for) SELECT {newest}, {made_for} WHERE NOT EXISTS (SELECT FROM {format});

-- name: read_format
SELECT format, made_for FROM {format};

-- name: relations
-- Tables, and whatever else would stand in their way.
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = {schema_text} AND c.relname IN ({named_relations});

-- name: functions
SELECT DISTINCT p.proname FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = {schema_text} AND p.proname IN ({named_functions});
