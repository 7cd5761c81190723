-- Gives back a claim whose answer never came.
--
-- $1 text[], $2 smallint[], $3 timestamptz[], $4 bigint[]   the levels of that claim, as in claim.sql
-- $5 uuid[]                                                 the tokens that it was given
-- $6 integer                                                rows to look at in each level, from where the claim began
-- $7 float8[]                                               the seconds before now at which it began, if not there
--
-- Rows locked: those given back; rows locked by others are passed over.  Index: jobs_unfinished.
-- Fence: token, unfinished, unmarked.  (BETWEEN: see claim.sql.)
-- Result: the ids given back; none when the claim never happened.  What isn't found here is taken over when its lease expires.
WITH durable AS MATERIALIZED (
    SELECT mailslot.commit_durably() AS yes
), found AS MATERIALIZED (
    SELECT job.id, job.lease_token
    FROM unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::bigint[], $7::float8[])
         AS level (queue, priority, after_at, after_id, back_s)
    CROSS JOIN LATERAL (SELECT least(level.after_at, now() - make_interval(secs => level.back_s)) AS at) AS begin
    CROSS JOIN LATERAL (
        SELECT j.id, j.lease_token
        FROM mailslot.jobs AS j
        WHERE j.queue = level.queue AND j.priority = level.priority AND j.completed_at IS NULL
          AND j.available_at <= now() AND (j.available_at, j.id) > (begin.at, CASE WHEN begin.at < level.after_at THEN 0 ELSE level.after_id END)
        ORDER BY j.available_at, j.id
        LIMIT $6::integer
    ) AS job
    WHERE job.lease_token = ANY ($5::uuid[])
), held AS MATERIALIZED (
    SELECT found.*
    FROM found CROSS JOIN LATERAL (
        SELECT FROM mailslot.jobs AS j
        WHERE j.id = found.id AND j.lease_token = found.lease_token AND j.outcome IS NULL AND j.marked_at IS NULL
        FOR UPDATE SKIP LOCKED
    ) AS job
)
UPDATE mailslot.jobs AS j SET
    lease_token = NULL, lease_owner = NULL, leased_at = NULL, lease_expires_at = NULL,
    attempt = greatest(j.attempt - 1, 0),
    recipients = CASE WHEN j.cancel_requested_at IS NOT NULL THEN mailslot.settle(j.recipients, 'later', 'dead') ELSE j.recipients END,
    assumed = j.cancel_requested_at IS NOT NULL AND mailslot.ending('cancelled', j.doubts, j.recipients) = 'sent'
              AND mailslot.holds_assumed(j.recipients),
    completed_at = CASE WHEN j.cancel_requested_at IS NOT NULL THEN clock_timestamp() END,
    outcome = CASE WHEN j.cancel_requested_at IS NOT NULL THEN mailslot.ending('cancelled', j.doubts, j.recipients) END,
    reason = CASE WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE j.reason END
FROM held, durable
WHERE durable.yes AND j.id BETWEEN held.id AND held.id AND j.lease_token = held.lease_token AND j.outcome IS NULL
RETURNING j.id
