-- What a job's message is composed from, as a worker gets it. $1 id (bigint). No locks. Index: primary key.
-- Result: one row (uid, kind, created_at, payload as text), or none.
SELECT uid, kind, created_at, payload::text AS payload
FROM mailslot.jobs
WHERE id = $1
