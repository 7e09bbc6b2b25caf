-- What a PostgreSQL store consists of. Made in one transaction by whoever comes first, or by `anarchon migrate`.
-- The names in braces are quoted identifiers, made from the name of the main table; of the indexes without the schema.
-- Fixed-width columns come first, and texts compare by their bytes.

-- name: runs
-- The history: one row per attempt, or per stretch of slots that share one fate. The only table for people.
CREATE TABLE IF NOT EXISTS {runs} (
  slot bigint NOT NULL, token bigint NOT NULL, first_slot bigint, due bigint, claimed_at bigint, enqueued_at bigint,
  started_at bigint, finished_at bigint, pid bigint, count integer NOT NULL, attempt integer NOT NULL,
  publishes integer NOT NULL, retries integer NOT NULL, refused integer NOT NULL, tracked boolean NOT NULL,
  job text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, "trigger" text COLLATE "C" NOT NULL,
  status text COLLATE "C" NOT NULL, reason text COLLATE "C", instance text COLLATE "C", worker text COLLATE "C",
  task_id text COLLATE "C", error text COLLATE "C",
  PRIMARY KEY (job, slot, key, attempt)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- name: state
-- One row per run that could still be asked for. `wake` is NULL once the run has ended; before, it is never later than
-- the end of the lease, and mostly earlier: a heartbeat leaves it alone, and so every index; `expired` moves it.
CREATE TABLE IF NOT EXISTS {state} (
  slot bigint NOT NULL, token bigint NOT NULL, lease_until bigint NOT NULL, not_before bigint NOT NULL,
  due bigint NOT NULL, latest bigint NOT NULL, wake bigint, deadline bigint, claimed_at bigint, enqueued_at bigint,
  first_enqueued_at bigint, started_at bigint, finished_at bigint, pid bigint, attempt integer NOT NULL,
  releases integer NOT NULL, publishes integer NOT NULL, retries integer NOT NULL, message_retries integer,
  tracked boolean NOT NULL, exclusive boolean NOT NULL, parked boolean NOT NULL,
  job text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, "trigger" text COLLATE "C" NOT NULL,
  status text COLLATE "C" NOT NULL, grant_id text COLLATE "C" NOT NULL, instance text COLLATE "C",
  task_id text COLLATE "C", message_id text COLLATE "C", worker text COLLATE "C", reason text COLLATE "C",
  error text COLLATE "C",
  PRIMARY KEY (job, slot, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- name: state_open
-- The open runs of a job, however many ended ones it has.
CREATE INDEX IF NOT EXISTS {state_open} ON {state} (job, slot, key) WHERE wake IS NOT NULL;

-- name: state_wake
-- The runs whose lease may be over, however many runs there are.
CREATE INDEX IF NOT EXISTS {state_wake} ON {state} (wake) WHERE wake IS NOT NULL;

-- name: jobs
-- What the store knows of each job apart from its runs. Never deleted: the floor outlives everything. `entries` counts
-- the job's rows in the history; no state of the job has a slot below `lowest`.
CREATE TABLE IF NOT EXISTS {jobs} (
  floor bigint, trimmed bigint NOT NULL DEFAULT -1, token bigint NOT NULL DEFAULT 0, lowest bigint,
  registered_at bigint NOT NULL DEFAULT 0, changed_at bigint NOT NULL DEFAULT 0, entries bigint NOT NULL DEFAULT 0,
  doublings integer NOT NULL DEFAULT 0, job text COLLATE "C" NOT NULL PRIMARY KEY,
  fingerprint text COLLATE "C" NOT NULL DEFAULT ''
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- name: definitions
-- The jobs that readers see.
CREATE TABLE IF NOT EXISTS {definitions} (
  job text COLLATE "C" NOT NULL PRIMARY KEY, fingerprint text COLLATE "C" NOT NULL, document text COLLATE "C" NOT NULL
);

-- name: queues
-- What workers said of their queues.
CREATE TABLE IF NOT EXISTS {queues} (
  queue text COLLATE "C" NOT NULL PRIMARY KEY, announced bigint NOT NULL, begun bigint NOT NULL
) WITH (fillfactor = 70);

-- name: format
-- The format of these tables, and the name they were made for, in its only row.
CREATE TABLE IF NOT EXISTS {format} (format integer NOT NULL, made_for text COLLATE "C" NOT NULL);
