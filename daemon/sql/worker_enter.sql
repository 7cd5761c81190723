-- Registers a worker process, or notes that it was seen; forgets those that nobody has seen for a day.
--
-- $1 bigint session_key   $2 text owner   $3 text host   $4 integer pid   $5 text version   $6 integer concurrency
--
-- Rows locked: its own, and forgotten ones.  Result: none.
WITH forgotten AS (
    DELETE FROM mailslot.workers WHERE seen_at < now() - interval '1 day'
)
INSERT INTO mailslot.workers (session_key, owner, host, pid, version, concurrency) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (session_key) DO UPDATE SET seen_at = now(), concurrency = excluded.concurrency
