-- Gives back a claim whose answer never came.
--
-- $1 text[], $2 smallint[], $3 timestamptz[], $4 bigint[]   the levels of that claim, as in claim.sql
-- $5 uuid[]                                                 the tokens that it was given
--
-- Rows locked: those given back.  Index: jobs_unfinished (the rows lie near where the claim began).
-- Fence: token, unfinished, unmarked.  Result: the ids given back; none when the claim never happened.
WITH durable AS MATERIALIZED (
    SELECT mailslot.commit_durably() AS yes
), found AS MATERIALIZED (
    SELECT job.id
    FROM unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::bigint[]) AS level (queue, priority, after_at, after_id)
    CROSS JOIN LATERAL (
        SELECT j.id
        FROM mailslot.jobs AS j
        WHERE j.queue = level.queue AND j.priority = level.priority AND j.completed_at IS NULL
          AND j.available_at <= now() AND (j.available_at, j.id) > (level.after_at, level.after_id)
          AND j.lease_token = ANY ($5::uuid[]) AND j.marked_at IS NULL
        ORDER BY j.available_at, j.id
        LIMIT cardinality($5::uuid[])
        FOR UPDATE
    ) AS job
)
UPDATE mailslot.jobs AS j SET
    lease_token = NULL, lease_owner = NULL, leased_at = NULL, lease_expires_at = NULL,
    attempt = greatest(j.attempt - 1, 0),
    completed_at = CASE WHEN j.cancel_requested_at IS NOT NULL THEN clock_timestamp() END,
    outcome = CASE WHEN j.cancel_requested_at IS NOT NULL THEN mailslot.ending('cancelled', j.doubts, j.recipients) END
FROM found, durable
WHERE durable.yes AND j.id = found.id AND j.lease_token = ANY ($5::uuid[]) AND j.completed_at IS NULL
RETURNING j.id
