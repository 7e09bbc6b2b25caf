-- How the tables and functions of a store come to be: executed in one transaction, `lock` first.
-- Beside names: {schema_text} and {made_for} are literals, {named_...} are lists of literals, {lock} and {newest} numbers.

-- name: lock
-- Whoever comes second waits here, and then finds everything made.
SELECT pg_catalog.pg_advisory_xact_lock({lock});

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
