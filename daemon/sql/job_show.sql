-- One job as a person wants to see it, and what the fence of an operator's action is made of (outcome, lease_token, completed_at).
-- $1 id (bigint), $2 whether the payload is wanted (boolean). No locks. Index: primary key. Result: one row or none.
SELECT job.id, job.uid, named.state, job.queue, job.kind, job.priority, job.idempotency_key, job.relay_wanted, job.traceparent,
       job.payload -> 'subject' #>> '{}' AS subject,
       CASE WHEN $2::boolean THEN job.payload::text END AS payload,
       pg_column_size(job.payload) AS payload_bytes,
       job.created_at, job.available_at, job.expires_at, job.completed_at,
       job.attempt, job.max_attempts, job.crashes, job.doubts, job.on_doubt,
       job.lease_token, job.lease_owner, job.leased_at, job.lease_expires_at, job.marked_at, job.cancel_requested_at,
       job.outcome, job.assumed, job.reason, job.relay, job.reply, job.recipients::text AS recipients,
       clock_timestamp() AS now
FROM mailslot.jobs AS job JOIN mailslot.job_states AS named USING (id)
WHERE job.id = $1
