-- Records what became of many jobs, each by its own token; leaves evidence of a 2xx where the lease is lost.
--
-- $1 bigint[], $2 uuid[], $3 uuid[]   id, token, uid
-- $4 text[]                           outcome, or null: back to ready
-- $5 float8[]                         seconds until it is ready again; 0 keeps its place in the queue
-- $6 integer[]                        doubts to add
-- $7, $8, $9 text[]                   reason, relay, reply
-- $10 text[]                          recipients (JSON), null when all are alike
-- $11 boolean[]                       assumed
-- $12, $13 text[]                     stage and verdict for the ledger
-- $14 text[]                          recipients that a relay answered 2xx for (JSON array), or null
--
-- Back to ready becomes cancelled when that was requested; dead and cancelled become in_doubt after a doubt.
-- A row that ended in_doubt under the same token becomes sent by a 2xx that comes late.
--
-- Rows locked: those written, until this statement commits.  Index: the primary keys.
-- Fence: id + token, unfinished (or in_doubt and now sent).  Evidence: id + uid.
-- Result: (id, token, state, outcome), one row a triple; state is
--   done   written now, or by an earlier try whose answer was lost      busy   locked by another transaction: again
--   lost   the lease was lost (evidence is left)
-- (OFFSET 0 keeps the planner from hashing a whole index for one probe.)
WITH durable AS MATERIALIZED (
    SELECT mailslot.commit_durably() AS yes
), asked AS MATERIALIZED (
    SELECT a.id, a.token, a.uid, a.outcome, a.delay_s, a.doubts, a.reason, a.relay, a.reply, a.recipients::jsonb AS recipients,
           a.assumed, a.stage, a.verdict,
           CASE WHEN a.accepted IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(a.accepted::jsonb)) END AS accepted
    FROM unnest($1::bigint[], $2::uuid[], $3::uuid[], $4::text[], $5::float8[], $6::integer[], $7::text[], $8::text[],
                $9::text[], $10::text[], $11::boolean[], $12::text[], $13::text[], $14::text[])
         AS a (id, token, uid, outcome, delay_s, doubts, reason, relay, reply, recipients, assumed, stage, verdict, accepted)
    ORDER BY a.id
), held AS MATERIALIZED (
    SELECT asked.*, job.owner, job.attempt, job.leased_at,
           mailslot.ending(coalesce(asked.outcome, CASE WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled' END),
                           job.doubts + asked.doubts, asked.recipients) AS ending
    FROM asked CROSS JOIN LATERAL (
        SELECT j.lease_owner AS owner, j.attempt, j.leased_at, j.doubts, j.cancel_requested_at
        FROM mailslot.jobs AS j
        WHERE j.id = asked.id AND j.lease_token = asked.token
          AND (j.outcome IS NULL OR (j.outcome = 'in_doubt' AND asked.outcome = 'sent'))
        FOR UPDATE SKIP LOCKED
    ) AS job
), written AS (
    UPDATE mailslot.jobs AS j SET
        completed_at = CASE WHEN held.ending IS NOT NULL THEN clock_timestamp() END,
        outcome = held.ending,
        assumed = coalesce(held.ending = 'sent', false)
                  AND (held.assumed OR mailslot.holds_assumed(held.recipients)),
        doubts = j.doubts + held.doubts,
        reason = CASE WHEN held.outcome IS NULL AND held.ending IS NOT NULL THEN 'cancelled' ELSE held.reason END,
        relay = held.relay, reply = held.reply, recipients = CASE WHEN held.outcome IS NULL AND held.ending IS NOT NULL
                          THEN mailslot.settle(held.recipients, 'later', 'dead') ELSE held.recipients END,
        available_at = CASE WHEN held.ending IS NULL AND held.delay_s > 0
                            THEN clock_timestamp() + make_interval(secs => held.delay_s) ELSE j.available_at END,
        lease_token = CASE WHEN held.ending IS NOT NULL THEN j.lease_token END,
        lease_owner = CASE WHEN held.ending IS NOT NULL THEN j.lease_owner END,
        leased_at = CASE WHEN held.ending IS NOT NULL THEN j.leased_at END,
        marked_at = CASE WHEN held.ending IS NOT NULL THEN j.marked_at END,
        lease_expires_at = NULL
    FROM held, durable
    WHERE durable.yes AND j.id = held.id AND j.lease_token = held.token
      AND (j.outcome IS NULL OR (j.outcome = 'in_doubt' AND held.outcome = 'sent'))
    RETURNING j.id, held.token, j.outcome
), late AS MATERIALIZED (
    SELECT asked.*, j.attempt
    FROM asked JOIN mailslot.jobs AS j ON j.id = asked.id AND j.uid = asked.uid
    WHERE asked.accepted IS NOT NULL
      AND (j.lease_token IS DISTINCT FROM asked.token OR j.outcome IN ('dead', 'cancelled')
           OR (j.outcome = 'in_doubt' AND asked.outcome IS DISTINCT FROM 'sent'))
), ledger AS (
    INSERT INTO mailslot.attempts AS t (job_id, lease_token, owner, attempt, leased_at, stage, verdict, reason, relay, reply,
                                        accepted)
    SELECT held.id, held.token, held.owner, held.attempt, held.leased_at, held.stage, held.verdict, held.reason, held.relay,
           held.reply, held.accepted
    FROM held JOIN written ON written.id = held.id AND written.token = held.token WHERE written.outcome IS NULL
    UNION ALL
    SELECT late.id, late.token, NULL, late.attempt, NULL, late.stage, late.verdict, late.reason, late.relay, late.reply,
           late.accepted
    FROM late
    ON CONFLICT (job_id, lease_token) DO UPDATE SET
        stage = coalesce(excluded.stage, t.stage), verdict = excluded.verdict, reason = excluded.reason,
        relay = excluded.relay, reply = excluded.reply, accepted = coalesce(excluded.accepted, t.accepted)
)
SELECT asked.id, asked.token,
       coalesce(written.outcome, (SELECT j.outcome FROM mailslot.jobs AS j
                                  WHERE j.id = asked.id AND j.lease_token = asked.token)) AS outcome,
       CASE WHEN written.id IS NOT NULL THEN 'done'
            WHEN EXISTS (SELECT FROM mailslot.jobs AS j
                         WHERE j.id = asked.id AND j.lease_token = asked.token
                           AND (j.outcome IS NULL OR (j.outcome = 'in_doubt' AND asked.outcome = 'sent')) OFFSET 0) THEN 'busy'
            WHEN EXISTS (SELECT FROM mailslot.jobs AS j WHERE j.id = asked.id AND j.lease_token = asked.token OFFSET 0) THEN 'done'
            WHEN EXISTS (SELECT FROM mailslot.attempts AS t
                         WHERE t.job_id = asked.id AND t.lease_token = asked.token AND t.verdict <> 'worker_lost' OFFSET 0) THEN 'done'
            ELSE 'lost' END AS state
FROM asked LEFT JOIN written ON written.id = asked.id AND written.token = asked.token
