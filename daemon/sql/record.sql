-- Records what became of many jobs, each by its own token; leaves evidence of a 2xx where the lease is lost.
--
-- $1 json   an array with an object for each job (what is null may be left out):
--     id, token, uid
--     outcome                  null: back to ready
--     delay_s                  seconds until it is ready again; 0 keeps its place in the queue
--     doubts                   to add
--     reason, relay, reply
--     recipients               JSON in a string, null when all are alike
--     assumed
--     stage, verdict           for the ledger
--     accepted                 an array of the recipients that a relay answered 2xx for, or null
--
-- Back to ready becomes cancelled when that was requested; dead and cancelled become in_doubt after a doubt.
-- A row that ended in_doubt under the same token becomes sent by a 2xx that comes late.
--
-- Rows locked: those written, until this statement commits.  Index: the primary keys.
-- Fence: id + token, unfinished (or in_doubt and now sent).  Evidence: id + uid.
-- Result: (id, token, outcome, state), one row a job, in no order; state is
--   done   written now, or by an earlier try whose answer was lost      busy   locked by another transaction: again
--   lost   the lease was lost (evidence is left)
-- Every job goes through once, from the probe to the answer: joined to the questions again (nested loops) a batch of 100 cost
-- twice as much.  What was held can't be late, so only the others are looked at again.  The ledger is written in id order, so that
-- two statements that write the same rows wait for each other in the same order.
-- (OFFSET 0 keeps the planner from hashing a whole index for one probe; BETWEEN from walking all of it, see claim.sql.)
WITH durable AS MATERIALIZED (
    SELECT mailslot.commit_durably() AS yes
), held AS MATERIALIZED (
    SELECT a.id, a.token, a.uid, a.outcome, a.delay_s, a.doubts, a.reason, a.relay, a.reply, a.recipients::jsonb AS recipients,
           a.assumed, a.stage, a.verdict, a.accepted, job.owner, job.attempt, job.leased_at, job.attempt IS NOT NULL AS ours,
           mailslot.ending(coalesce(a.outcome, CASE WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled' END),
                           job.doubts + a.doubts, a.recipients::jsonb) AS ending
    FROM json_to_recordset($1::json)
         AS a (id bigint, token uuid, uid uuid, outcome text, delay_s float8, doubts integer, reason text, relay text, reply text,
               recipients text, assumed boolean, stage text, verdict text, accepted text)
    LEFT JOIN LATERAL (
        SELECT j.lease_owner AS owner, j.attempt, j.leased_at, j.doubts, j.cancel_requested_at
        FROM mailslot.jobs AS j
        WHERE j.id = a.id AND j.lease_token = a.token
          AND (j.outcome IS NULL OR (j.outcome = 'in_doubt' AND a.outcome = 'sent'))
        FOR UPDATE SKIP LOCKED
    ) AS job ON true
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
    WHERE durable.yes AND held.ours AND j.id BETWEEN held.id AND held.id AND j.lease_token = held.token
      AND (j.outcome IS NULL OR (j.outcome = 'in_doubt' AND held.outcome = 'sent'))
    RETURNING j.id, held.token, j.outcome, held.owner, held.attempt, held.leased_at, held.stage, held.verdict, held.reason, held.relay,
              held.reply, held.accepted
), late AS (
    SELECT held.id, held.token, j.attempt, held.stage, held.verdict, held.reason, held.relay, held.reply, held.accepted
    FROM held JOIN mailslot.jobs AS j ON j.id BETWEEN held.id AND held.id AND j.uid = held.uid
    WHERE NOT held.ours AND held.accepted IS NOT NULL
      AND (j.lease_token IS DISTINCT FROM held.token OR j.outcome IN ('dead', 'cancelled')
           OR (j.outcome = 'in_doubt' AND held.outcome IS DISTINCT FROM 'sent'))
), ledger AS (
    INSERT INTO mailslot.attempts AS t (job_id, lease_token, owner, attempt, leased_at, stage, verdict, reason, relay, reply,
                                        accepted)
    SELECT id, token, owner, attempt, leased_at, stage, verdict, reason, relay, reply,
           CASE WHEN accepted IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(accepted::jsonb)) END
    FROM (
        SELECT id, token, owner, attempt, leased_at, stage, verdict, reason, relay, reply, accepted
        FROM written WHERE outcome IS NULL
        UNION ALL
        SELECT id, token, NULL, attempt, NULL, stage, verdict, reason, relay, reply, accepted FROM late
    ) AS entry
    ORDER BY id
    ON CONFLICT (job_id, lease_token) DO UPDATE SET
        stage = coalesce(excluded.stage, t.stage), verdict = excluded.verdict, reason = excluded.reason,
        relay = excluded.relay, reply = excluded.reply, accepted = coalesce(excluded.accepted, t.accepted)
)
SELECT id, token, outcome, 'done' AS state FROM written
UNION ALL
SELECT held.id, held.token, now_there.outcome,
       CASE WHEN now_there.id IS NOT NULL AND (now_there.outcome IS NULL OR (now_there.outcome = 'in_doubt' AND held.outcome = 'sent')) THEN 'busy'
            WHEN now_there.id IS NOT NULL THEN 'done'
            WHEN EXISTS (SELECT FROM mailslot.attempts AS t
                         WHERE t.job_id = held.id AND t.lease_token = held.token AND t.verdict <> 'worker_lost' OFFSET 0) THEN 'done'
            ELSE 'lost' END
FROM held LEFT JOIN LATERAL (
    SELECT j.id, j.outcome FROM mailslot.jobs AS j WHERE j.id = held.id AND j.lease_token = held.token OFFSET 0
) AS now_there ON true
WHERE NOT held.ours
