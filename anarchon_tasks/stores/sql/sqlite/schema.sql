-- What an SQLite store consists of. One statement each, executed in one transaction by whoever comes first.
-- The names in braces are quoted identifiers, made from the name of the main table.

-- name: runs
-- The history: one row per attempt, or per stretch of slots that share one fate. The only table that people should read.
CREATE TABLE {runs} (
  job TEXT NOT NULL, slot INTEGER NOT NULL, key TEXT NOT NULL, attempt INTEGER NOT NULL,
  "trigger" TEXT NOT NULL, token INTEGER NOT NULL, status TEXT NOT NULL, reason TEXT, count INTEGER NOT NULL,
  first_slot INTEGER, tracked INTEGER NOT NULL, due INTEGER, instance TEXT, worker TEXT, pid INTEGER,
  claimed_at INTEGER, enqueued_at INTEGER, started_at INTEGER, finished_at INTEGER,
  publishes INTEGER NOT NULL, retries INTEGER NOT NULL, refused INTEGER NOT NULL, task_id TEXT, error TEXT,
  PRIMARY KEY (job, slot, key, attempt)
) WITHOUT ROWID;

-- name: state
-- One row per run that could still be asked for. `wake` is when the lease of an open run is over; ended runs have none.
CREATE TABLE {state} (
  job TEXT NOT NULL, slot INTEGER NOT NULL, key TEXT NOT NULL,
  "trigger" TEXT NOT NULL, status TEXT NOT NULL, attempt INTEGER NOT NULL, token INTEGER NOT NULL,
  lease_until INTEGER NOT NULL, not_before INTEGER NOT NULL, grant_id TEXT NOT NULL, due INTEGER NOT NULL,
  latest INTEGER NOT NULL, instance TEXT, tracked INTEGER NOT NULL, exclusive INTEGER NOT NULL,
  releases INTEGER NOT NULL, publishes INTEGER NOT NULL, task_id TEXT, parked INTEGER NOT NULL, retries INTEGER NOT NULL,
  message_id TEXT, message_retries INTEGER, worker TEXT, pid INTEGER, deadline INTEGER,
  claimed_at INTEGER, enqueued_at INTEGER, first_enqueued_at INTEGER, started_at INTEGER, finished_at INTEGER,
  reason TEXT, error TEXT, wake INTEGER,
  PRIMARY KEY (job, slot, key)
) WITHOUT ROWID;

-- name: state_open
-- The open runs of a job, however many ended ones it has.
CREATE INDEX {state_open} ON {state} (job, slot, key) WHERE wake IS NOT NULL;

-- name: state_wake
-- The runs whose lease is over, however many runs there are.
CREATE INDEX {state_wake} ON {state} (wake) WHERE wake IS NOT NULL;

-- name: jobs
-- What the store knows of each job apart from its runs. Never deleted: the floor outlives everything.
CREATE TABLE {jobs} (
  job TEXT NOT NULL PRIMARY KEY, floor INTEGER, trimmed INTEGER NOT NULL, token INTEGER NOT NULL,
  doublings INTEGER NOT NULL, fingerprint TEXT NOT NULL, registered_at INTEGER NOT NULL, changed_at INTEGER NOT NULL,
  entries INTEGER NOT NULL
) WITHOUT ROWID;

-- name: definitions
-- The jobs that readers see.
CREATE TABLE {definitions} (job TEXT NOT NULL PRIMARY KEY, fingerprint TEXT NOT NULL, document TEXT NOT NULL);

-- name: queues
-- What workers said of their queues.
CREATE TABLE {queues} (
  queue TEXT NOT NULL PRIMARY KEY, announced INTEGER NOT NULL, begun INTEGER NOT NULL
) WITHOUT ROWID;

-- name: format
-- The format of these tables, and the name they were made for.
CREATE TABLE {format} (format INTEGER NOT NULL, made_for TEXT NOT NULL);
