-- Gives jobs back unharmed: nothing was sent, and nothing was learnt about the message.
--
-- $1 bigint[], $2 uuid[]   (id, token)
-- $3 float8[]              seconds until it is ready again; 0 keeps its place in the queue
-- $4, $5, $6 text[]        reason, relay, reply
-- $7 text[]                recipients as they were at the claim (JSON), null when all are alike
--
-- Only a slot that knows that nothing was sent may release: it wrote no dot, or its dot was answered by a refusal.  Whether the
-- mark is set doesn't matter then.
--
-- Rows locked: those written, until this statement commits.  Index: the primary key.  Fence: id + token, unfinished.
-- Result: (id, token, outcome, state), one row a pair, in no order; state is done, busy (locked by another transaction: again) or lost.
-- (OFFSET 0 keeps the planner from hashing a whole index for one probe; BETWEEN from walking all of it, see claim.sql.)
WITH durable AS MATERIALIZED (
    SELECT mailslot.commit_durably() AS yes
), held AS MATERIALIZED (
    SELECT a.id, a.token, a.delay_s, a.reason, a.relay, a.reply, a.recipients, job.ours,
           mailslot.ending(CASE WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled' END, job.doubts,
                           a.recipients::jsonb) AS ending
    FROM unnest($1::bigint[], $2::uuid[], $3::float8[], $4::text[], $5::text[], $6::text[], $7::text[])
         AS a (id, token, delay_s, reason, relay, reply, recipients)
    LEFT JOIN LATERAL (
        SELECT true AS ours, j.doubts, j.cancel_requested_at
        FROM mailslot.jobs AS j
        WHERE j.id = a.id AND j.lease_token = a.token AND j.outcome IS NULL
        FOR UPDATE SKIP LOCKED
    ) AS job ON true
), written AS (
    UPDATE mailslot.jobs AS j SET
        completed_at = CASE WHEN held.ending IS NOT NULL THEN clock_timestamp() END,
        outcome = held.ending,
        attempt = greatest(j.attempt - 1, 0),
        reason = CASE WHEN held.ending IS NOT NULL THEN 'cancelled' ELSE held.reason END,
        relay = held.relay, reply = held.reply,
        recipients = CASE WHEN held.ending IS NOT NULL THEN mailslot.settle(held.recipients::jsonb, 'later', 'dead')
                          ELSE held.recipients::jsonb END,
        available_at = CASE WHEN held.ending IS NULL AND held.delay_s > 0
                            THEN clock_timestamp() + make_interval(secs => held.delay_s) ELSE j.available_at END,
        lease_token = CASE WHEN held.ending IS NOT NULL THEN j.lease_token END,
        lease_owner = CASE WHEN held.ending IS NOT NULL THEN j.lease_owner END,
        leased_at = CASE WHEN held.ending IS NOT NULL THEN j.leased_at END,
        marked_at = NULL, lease_expires_at = NULL
    FROM held, durable
    WHERE durable.yes AND held.ours AND j.id BETWEEN held.id AND held.id AND j.lease_token = held.token AND j.outcome IS NULL
    RETURNING j.id, held.token, j.outcome
)
SELECT id, token, outcome, 'done' AS state FROM written
UNION ALL
SELECT held.id, held.token, NULL,
       CASE WHEN EXISTS (SELECT FROM mailslot.jobs AS j
                         WHERE j.id = held.id AND j.lease_token = held.token AND j.outcome IS NULL OFFSET 0) THEN 'busy'
            ELSE 'lost' END
FROM held WHERE held.ours IS NULL
