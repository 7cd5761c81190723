-- Ends a job's doubt by what a person found out, noted in the audit trail.
-- $1 id (bigint); the row as it was read: $2 outcome, $3 lease_token, $4 completed_at; $5 whether it was sent (boolean), $6 why.
-- The verdict is for the recipients in doubt, and for those that were once in doubt and aren't known to have it; if none is
-- named so, for all. With some sent and some not the job ends as sent, reason partial, as a worker would have ended it.
-- Locks: the row. Index: primary key. Fence: $2 to $4, and the outcome is in_doubt.
-- Result: one row (outcome, reason), or none if the row isn't as it was read.
WITH found AS MATERIALIZED (
    SELECT job.id, job.recipients, mailslot.commit_durably() AS durable,
           coalesce(job.recipients @? '$.* ? (@.verdict == "in_doubt" || (@.doubted == true && @.verdict != "sent"))', false) AS named
    FROM mailslot.jobs AS job
    WHERE job.id = $1 AND job.outcome = $2 AND job.outcome = 'in_doubt'
      AND job.lease_token IS NOT DISTINCT FROM $3 AND job.completed_at = $4
    FOR UPDATE
), settled AS MATERIALIZED (
    SELECT found.id,
           (SELECT jsonb_object_agg(address, CASE
                WHEN entry ->> 'verdict' <> 'sent'
                     AND (NOT found.named OR entry ->> 'verdict' = 'in_doubt' OR entry -> 'doubted' = 'true')
                THEN entry || jsonb_build_object('verdict', CASE WHEN $5::boolean THEN 'sent' ELSE 'dead' END)
                ELSE entry END)
            FROM jsonb_each(found.recipients) AS each (address, entry)) AS recipients
    FROM found WHERE found.durable
), decided AS MATERIALIZED (
    SELECT id, recipients, $5::boolean OR has_sent AS sent, has_sent AND has_unsent AS mixed
    FROM settled, LATERAL (SELECT coalesce(recipients @? '$.* ? (@.verdict == "sent")', false),
                                  coalesce(recipients @? '$.* ? (@.verdict != "sent")', false)) AS verdicts (has_sent, has_unsent)
), changed AS (
    UPDATE mailslot.jobs AS job SET
        completed_at = clock_timestamp(), recipients = decided.recipients,
        outcome = CASE WHEN decided.sent THEN 'sent' ELSE 'dead' END,
        assumed = decided.sent AND mailslot.holds_assumed(decided.recipients),
        reason = CASE WHEN decided.mixed THEN 'partial' WHEN decided.sent THEN 'resolved_sent' ELSE 'resolved_not_sent' END
    FROM decided WHERE job.id = decided.id
    RETURNING job.id, job.outcome, job.reason
), noted AS (
    INSERT INTO mailslot.audit (action, job_id, detail)
    SELECT 'job.resolve', id, jsonb_strip_nulls(jsonb_build_object('sent', $5::boolean, 'outcome', outcome, 'why', $6::text))
    FROM changed
)
SELECT outcome, reason FROM changed
