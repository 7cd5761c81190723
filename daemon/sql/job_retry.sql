-- Makes a finished job ready again for the recipients that weren't sent to, noted in the audit trail.
-- $1 id (bigint); the row as it was read: $2 outcome, $3 lease_token, $4 completed_at;
-- $5 expires_at (null: in 3 days), $6 whether evidence of a late 2xx is set aside (boolean), $7 why (text or null).
-- Doubts stay: what was once in doubt can't become dead or cancelled by being tried again.
-- Locks: the row, its ledger rows. Index: primary key. Fence: $2 to $4, and the outcome allows it.
-- Result: one row (expires_at, evidence, woken), evidence being how many ledger rows were set aside; none if the row isn't as it
-- was read.
WITH durable AS MATERIALIZED (
    SELECT mailslot.commit_durably() AS is_set, clock_timestamp() AS at
), changed AS (
    UPDATE mailslot.jobs AS job SET
        available_at = durable.at, expires_at = coalesce($5, durable.at + interval '3 days'),
        attempt = 0, crashes = 0,
        lease_token = NULL, lease_owner = NULL, leased_at = NULL, lease_expires_at = NULL, marked_at = NULL,
        cancel_requested_at = NULL, completed_at = NULL, outcome = NULL, reason = NULL,
        recipients = (SELECT jsonb_object_agg(address, CASE WHEN entry ->> 'verdict' = 'sent' THEN entry
                                                            ELSE entry || '{"verdict": "later"}' END)
                      FROM jsonb_each(job.recipients) AS each (address, entry))
    FROM durable
    WHERE durable.is_set AND job.id = $1
      AND job.outcome = $2 AND job.outcome IN ('dead', 'in_doubt', 'cancelled')
      AND job.lease_token IS NOT DISTINCT FROM $3 AND job.completed_at = $4
    RETURNING job.id, job.expires_at
), evidence AS MATERIALIZED (
    SELECT kept.job_id, kept.lease_token, kept.accepted
    FROM mailslot.attempts AS kept JOIN changed ON changed.id = kept.job_id
    WHERE $6::boolean AND kept.accepted IS NOT NULL
    FOR UPDATE OF kept
), set_aside AS (
    UPDATE mailslot.attempts AS kept SET accepted = NULL
    FROM evidence WHERE (kept.job_id, kept.lease_token) = (evidence.job_id, evidence.lease_token)
), noted AS (
    INSERT INTO mailslot.audit (action, job_id, detail)
    SELECT 'job.retry', id, jsonb_strip_nulls(jsonb_build_object(
               'outcome', $2::text, 'expires_at', expires_at, 'why', $7::text,
               'evidence', (SELECT jsonb_object_agg(lease_token, accepted) FROM evidence)))
    FROM changed
)
SELECT expires_at, (SELECT count(*) FROM evidence)::integer AS evidence,
       CASE WHEN (SELECT notify FROM mailslot.settings) THEN pg_notify('mailslot', '') END AS woken
FROM changed
