-- The mark: the last word before the dot, for many jobs at once.
--
-- $1 json     an array with an object for each job (what is null may be left out):
--     id, token
--     recipients   as they will stand if the dot is sent: JSON in a string, null when all are alike
--     sending      an array of the recipients that the dot would cover
-- $2 float8   lease in seconds
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
-- Result: (id, token, verdict, accepted text[], expires_in_s float8), one row a pair, in no order.
-- Every pair goes through once, from the probe to the answer: with the answers joined to the questions again a batch of 100 cost
-- twice as much, for these joins are nested loops.  Evidence is gathered only where a probe has found some.
-- (OFFSET 0 keeps the planner from hashing a whole index for one probe; BETWEEN from walking all of it, see claim.sql.)
WITH durable AS MATERIALIZED (
    SELECT mailslot.commit_durably() AS yes
), decided AS MATERIALIZED (
    SELECT asked.id, asked.token, asked.recipients, job.expires_at, evidence.accepted,
           CASE WHEN job.expires_at IS NULL THEN
                     CASE WHEN EXISTS (SELECT FROM mailslot.jobs AS j
                                       WHERE j.id = asked.id AND j.lease_token = asked.token AND j.outcome IS NULL OFFSET 0)
                          THEN 'busy' ELSE 'lost' END
                WHEN evidence.accepted IS NOT NULL THEN 'evidence'
                WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled'
                WHEN job.expires_at <= now() THEN 'expired'
                ELSE 'go' END AS verdict
    FROM json_to_recordset($1::json) AS asked (id bigint, token uuid, recipients text, sending jsonb)
    LEFT JOIN LATERAL (
        SELECT j.cancel_requested_at, j.expires_at
        FROM mailslot.jobs AS j
        WHERE j.id = asked.id AND j.lease_token = asked.token AND j.outcome IS NULL
        FOR UPDATE SKIP LOCKED
    ) AS job ON true
    CROSS JOIN LATERAL (
        SELECT CASE WHEN EXISTS (SELECT FROM mailslot.attempts AS t WHERE t.job_id = asked.id AND t.accepted IS NOT NULL OFFSET 0)
                    THEN (SELECT array_agg(DISTINCT address)
                          FROM mailslot.attempts AS t CROSS JOIN LATERAL unnest(t.accepted) AS address
                          WHERE t.job_id = asked.id AND asked.sending ? address) END AS accepted
        OFFSET 0
    ) AS evidence
), marked AS (
    UPDATE mailslot.jobs AS j SET
        marked_at = clock_timestamp(),
        recipients = decided.recipients::jsonb,
        lease_expires_at = greatest(j.lease_expires_at, clock_timestamp() + make_interval(secs => $2))
    FROM decided, durable
    WHERE durable.yes AND decided.verdict = 'go'
      AND j.id BETWEEN decided.id AND decided.id AND j.lease_token = decided.token AND j.outcome IS NULL
    RETURNING j.id, decided.token, decided.expires_at
)
SELECT id, token, 'go' AS verdict, NULL::text[] AS accepted, extract(epoch FROM expires_at - now())::float8 AS expires_in_s FROM marked
UNION ALL
SELECT id, token, verdict, accepted, extract(epoch FROM expires_at - now())::float8 FROM decided WHERE verdict <> 'go'
