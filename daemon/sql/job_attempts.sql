-- The ledger of one job. $1 id (bigint). No locks. Index: primary key.
-- Result: a row for each attempt after which the job went on, each worker that was lost and each late 2xx, oldest first.
SELECT lease_token, owner, attempt, leased_at, ended_at, stage, verdict, reason, relay, reply, accepted
FROM mailslot.attempts
WHERE job_id = $1
ORDER BY ended_at, lease_token
