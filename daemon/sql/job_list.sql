-- A page of jobs, newest first. $1 states (text[], null: all), $2 queue (null: all), $3 id below which to go on (bigint, null: from
-- the newest), $4 rows at the most. No locks. Index: primary key, backwards. Result: a row for each job; empty at the end.
SELECT id, state, queue, kind, priority, created_at, available_at, expires_at, completed_at, attempt, max_attempts,
       crashes, doubts, assumed, reason, relay
FROM mailslot.job_states
WHERE ($1::text[] IS NULL OR state = ANY ($1))
  AND ($2::text IS NULL OR queue = $2)
  AND id < coalesce($3::bigint, 9223372036854775807)  -- a bound of the index also in a plan that is made once
ORDER BY id DESC
LIMIT $4
