-- The mark: the last word before the dot, for many jobs at once.
--
-- $1 bigint[], $2 uuid[]   (id, token)
-- $3 text[]                recipients as they will stand if the dot is sent (JSON), null when all are alike
-- $4 text[]                the recipients that the dot would cover (JSON array)
-- $5 float8                lease in seconds
--
-- Decides, and changes the row only when the answer is 'go': then marked_at is set, the recipients' verdicts are stored, and
-- the lease is renewed.  Any other answer means that no dot may be written; the caller records or releases, under its token.
--   go          write the dot
--   evidence    a relay has answered 2xx before, under a lease that was lost, for the recipients listed in accepted
--   cancelled   cancel was requested      expired   expires_at has passed
--   busy        another transaction holds the row: ask again      lost   not the caller's any more
--
-- Rows locked: those marked, until this statement commits.  Index: the primary keys of jobs and attempts.
-- Fence: id + token, unfinished.  Durable when answered, whatever the server's default.
-- Result: (id, token, verdict, accepted text[], expires_in_s float8), one row a pair.
-- (OFFSET 0 keeps the planner from hashing a whole index for one probe.)
WITH durable AS MATERIALIZED (
    SELECT mailslot.commit_durably() AS yes
), asked AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[]) AS a (id, token, recipients, sending) ORDER BY id
), held AS MATERIALIZED (
    SELECT asked.*, job.cancel_requested_at, job.expires_at
    FROM asked CROSS JOIN LATERAL (
        SELECT j.cancel_requested_at, j.expires_at
        FROM mailslot.jobs AS j
        WHERE j.id = asked.id AND j.lease_token = asked.token AND j.outcome IS NULL
        FOR UPDATE SKIP LOCKED
    ) AS job
), decided AS MATERIALIZED (
    SELECT held.*, evidence.accepted,
           CASE WHEN evidence.accepted IS NOT NULL THEN 'evidence'
                WHEN held.cancel_requested_at IS NOT NULL THEN 'cancelled'
                WHEN held.expires_at <= now() THEN 'expired'
                ELSE 'go' END AS verdict
    FROM held LEFT JOIN LATERAL (
        SELECT array_agg(DISTINCT address) AS accepted
        FROM mailslot.attempts AS t CROSS JOIN LATERAL unnest(t.accepted) AS address
        WHERE t.job_id = held.id AND t.accepted IS NOT NULL AND held.sending::jsonb ? address
    ) AS evidence ON true
), marked AS (
    UPDATE mailslot.jobs AS j SET
        marked_at = clock_timestamp(),
        recipients = decided.recipients::jsonb,
        lease_expires_at = greatest(j.lease_expires_at, clock_timestamp() + make_interval(secs => $5))
    FROM decided, durable
    WHERE durable.yes AND decided.verdict = 'go'
      AND j.id = decided.id AND j.lease_token = decided.token AND j.outcome IS NULL
    RETURNING j.id, decided.token
)
SELECT asked.id, asked.token,
       CASE WHEN decided.verdict = 'go' AND marked.id IS NULL THEN 'lost'
            WHEN decided.verdict IS NOT NULL THEN decided.verdict
            WHEN EXISTS (SELECT FROM mailslot.jobs AS j
                         WHERE j.id = asked.id AND j.lease_token = asked.token AND j.outcome IS NULL OFFSET 0) THEN 'busy'
            ELSE 'lost' END AS verdict,
       decided.accepted,
       extract(epoch FROM decided.expires_at - now())::float8 AS expires_in_s
FROM asked
LEFT JOIN decided ON decided.id = asked.id AND decided.token = asked.token
LEFT JOIN marked ON marked.id = asked.id AND marked.token = asked.token
