-- Withdraws a job for an operator, noted in the audit trail. $1 id (bigint), $2 why (text or null).
-- Locks: the row; waits for a record that is being written. Fence: unfinished.
-- Result: one row (state) as mailslot.cancel() returns it; none if the job was finished already or never was.
WITH unfinished AS MATERIALIZED (
    SELECT id FROM mailslot.jobs WHERE id = $1 AND completed_at IS NULL FOR UPDATE
), durable AS MATERIALIZED (
    SELECT mailslot.commit_durably() AS is_set
), cancelled AS MATERIALIZED (
    SELECT id, mailslot.cancel(id) AS state FROM unfinished, durable WHERE is_set
), noted AS (
    INSERT INTO mailslot.audit (action, job_id, detail)
    SELECT 'job.cancel', id, jsonb_strip_nulls(jsonb_build_object('state', state, 'why', $2::text)) FROM cancelled
)
SELECT state FROM cancelled
