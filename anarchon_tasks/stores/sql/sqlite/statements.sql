-- The statements of an SQLite store. Names in braces are quoted identifiers; {marks} are as many parameters as needed;
-- {columns} and {sets} are the columns that a row has, or that changed.
-- Every batch of writes is one transaction that begins with the write lock, so what a statement reads stays true.

-- name: present
-- Which names of ours exist in the file. SQLite's own comparison of names ignores the case of ASCII letters.
SELECT name FROM sqlite_master WHERE name COLLATE NOCASE IN ({marks});

-- name: format
SELECT format, made_for FROM {format};

-- name: write_format
INSERT INTO {format} (format, made_for) VALUES (?, ?);

-- name: jobs
-- The accounts of several jobs, with the lowest and the highest slot that has a state.
SELECT job, floor, trimmed, token, doublings, fingerprint, registered_at, changed_at, entries,
       (SELECT min(slot) FROM {state} s WHERE s.job = j.job), (SELECT max(slot) FROM {state} s WHERE s.job = j.job)
FROM {jobs} j WHERE job IN ({marks});

-- name: insert_job
INSERT INTO {jobs} ({columns}) VALUES ({marks});

-- name: update_job
UPDATE {jobs} SET {sets} WHERE job = ?;

-- name: open
-- The open runs of several jobs.
SELECT * FROM {state} WHERE wake IS NOT NULL AND job IN ({marks});

-- name: state
SELECT * FROM {state} WHERE job = ? AND slot = ? AND key = ?;

-- name: oldest
SELECT * FROM {state} WHERE job = ? AND slot < ? ORDER BY slot, key LIMIT ?;

-- name: insert_state
INSERT INTO {state} ({columns}) VALUES ({marks});

-- name: update_state
UPDATE {state} SET {sets} WHERE job = ? AND slot = ? AND key = ?;

-- name: delete_state
DELETE FROM {state} WHERE job = ? AND slot = ? AND key = ?;

-- name: expired
SELECT job, slot, key FROM {state} WHERE wake <= ? ORDER BY wake, job, slot, key LIMIT ?;

-- name: insert_entry
-- Does nothing when the attempt has an entry.
INSERT OR IGNORE INTO {runs} ({columns}) VALUES ({marks});

-- name: replace_entry
REPLACE INTO {runs} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: settled_at
-- The entry of a skipped or missed slot, or of the stretch that ends with it.
SELECT * FROM {runs} WHERE job = ? AND slot = ? AND key = '' AND status IN ('skipped', 'missed') ORDER BY attempt LIMIT 1;

-- name: delete_entry
DELETE FROM {runs} WHERE job = ? AND slot = ? AND key = ? AND attempt = ?;

-- name: trim_entries
-- Drops the oldest entries of a job, at most as many as given.
DELETE FROM {runs} WHERE job = ? AND (slot, key, attempt) IN (
  SELECT slot, key, attempt FROM {runs} WHERE job = ? ORDER BY slot, key, attempt LIMIT ?);

-- name: forget_entries
-- Drops the entries of a job's slots before the given one, at most as many as given.
DELETE FROM {runs} WHERE job = ? AND (slot, key, attempt) IN (
  SELECT slot, key, attempt FROM {runs} WHERE job = ? AND slot < ? ORDER BY slot, key, attempt LIMIT ?);

-- name: refuse
UPDATE {runs} SET refused = refused + 1 WHERE job = ? AND slot = ? AND key = ? AND token = ?;

-- name: history
SELECT * FROM {runs} WHERE job = ? ORDER BY slot DESC, key DESC, attempt DESC LIMIT ?;

-- name: put_definition
REPLACE INTO {definitions} (job, fingerprint, document) VALUES (?, ?, ?);

-- name: drop_definition
DELETE FROM {definitions} WHERE job = ?;

-- name: definitions
SELECT job, fingerprint, document FROM {definitions} ORDER BY job;

-- name: announce
INSERT INTO {queues} (queue, announced, begun) VALUES (?, ?, ?)
ON CONFLICT (queue) DO UPDATE SET announced = excluded.announced, begun = max(begun, excluded.begun);

-- name: queues
SELECT queue, announced, begun FROM {queues} WHERE announced > ? ORDER BY queue;
