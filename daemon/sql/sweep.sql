-- Puts right what no worker will: leases that ran out, marks whose answer can't come any more, jobs past their budgets.
--
-- $1 text[], $2 smallint[]   levels (queue, priority) to look at
-- $3 integer                 rows to look at in each, from the front of the index, where leased rows lie; null: all of them
-- $4 integer                 jobs to change at most
-- $5 boolean, $6 float8      whether the caller has been connected long enough to take over; grace in seconds
-- $7 float8                  in_doubt_delay in seconds: how long past its lease a marked job waits for its holder's answer
-- $8 integer, $9 integer     max_crashes, max_doubts
-- $10 float8                 lease in seconds
-- $11 boolean                a full pass, which one process at a time makes: for the others it finds nothing
-- $12 timestamptz[]          available_at from which to look in each level; '-infinity' for the very front
--
-- One UPDATE, so there is no gap between looking and writing: `judged` locks each row and tests the whole condition under the
-- lock, passing over rows that others hold, and the UPDATE tests again that it is the row that was judged.
--
--   why                what it means                                             becomes
--   doubt              marked, and lease and delay are over                      by on_doubt: ready, in_doubt or sent (assumed)
--   orphan             unmarked, and the lease is over                           ready, crashes + 1, attempt given back
--                      (one that never lost a worker before is left to the claim for two leases more: that takes it over at
--                      once and beside others, while what a sweep makes ready is a suspect and waits to run alone)
--   worker_lost        the same, max_crashes times                               dead
--   cancelled, expired, attempts_used_up   not leased any more                   cancelled, dead, dead
--
-- Rows locked: those returned, until this statement commits.  Index: jobs_unfinished.  (BETWEEN: see claim.sql.)
-- Result: (id, why, outcome), one row a changed job; outcome is null for those that are ready again.
WITH durable AS MATERIALIZED (
    SELECT mailslot.commit_durably() AS yes
), taking AS MATERIALIZED (
    SELECT $5::boolean AND pg_postmaster_start_time() < now() - make_interval(secs => $6) AS over,
           make_interval(secs => $7) AS delay, make_interval(secs => $10) AS lease
    WHERE NOT $11::boolean OR pg_try_advisory_xact_lock(1835101292, 1)
), looked AS MATERIALIZED (
    SELECT job.id
    FROM taking CROSS JOIN unnest($1::text[], $2::smallint[], $12::timestamptz[]) AS level (queue, priority, from_at)
    CROSS JOIN LATERAL (
        SELECT j.id, j.lease_token, j.lease_expires_at, j.expires_at, j.attempt, j.max_attempts, j.cancel_requested_at
        FROM mailslot.jobs AS j
        WHERE j.queue = level.queue AND j.priority = level.priority AND j.completed_at IS NULL AND j.available_at >= level.from_at
        ORDER BY j.available_at, j.id
        LIMIT $3::integer
    ) AS job
    -- a cheap first look, so that only rows with a reason are locked
    WHERE CASE WHEN job.lease_token IS NOT NULL
               THEN job.lease_expires_at <= now() OR job.lease_expires_at > now() + 2 * taking.lease
               ELSE job.expires_at <= now() OR job.attempt >= job.max_attempts OR job.cancel_requested_at IS NOT NULL END
), judged AS MATERIALIZED (
    SELECT job.*
    FROM looked CROSS JOIN taking CROSS JOIN LATERAL (
        SELECT j.id, j.lease_token, j.lease_owner, j.leased_at, j.attempt, j.doubts, j.recipients,
               CASE WHEN j.marked_at IS NOT NULL THEN 'doubt'
                    WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled'
                    WHEN j.lease_token IS NOT NULL AND j.crashes + 1 >= $8::integer THEN 'worker_lost'
                    WHEN j.expires_at <= now() THEN 'expired'
                    WHEN j.lease_token IS NOT NULL THEN 'orphan'
                    ELSE 'attempts_used_up' END AS why,
               CASE WHEN j.on_doubt = 'assume_sent' AND j.cancel_requested_at IS NULL THEN 'sent'
                    WHEN j.on_doubt = 'resend' AND j.cancel_requested_at IS NULL AND j.doubts + 1 <= $9::integer
                         AND j.crashes + 1 < $8::integer AND j.attempt < j.max_attempts AND j.expires_at > now() THEN 'later'
                    ELSE 'in_doubt' END AS doubt,
               j.cancel_requested_at IS NULL AND j.attempt < j.max_attempts AND j.expires_at > now()
                   AND j.crashes + 1 < $8::integer AS may_go_on
        FROM mailslot.jobs AS j
        WHERE j.id = looked.id AND j.outcome IS NULL
          AND CASE WHEN j.marked_at IS NOT NULL
                   THEN taking.over AND j.lease_expires_at + taking.delay <= now()
                   WHEN j.lease_token IS NOT NULL
                   THEN taking.over AND CASE WHEN j.crashes = 0 AND j.cancel_requested_at IS NULL AND j.expires_at > now()
                                                  AND j.crashes + 1 < $8::integer
                                             THEN j.lease_expires_at + 2 * taking.lease <= now()
                                             ELSE j.lease_expires_at <= now() END
                        OR taking.over AND j.lease_expires_at > now() + 2 * taking.lease
                   ELSE j.expires_at <= now() OR j.attempt >= j.max_attempts OR j.cancel_requested_at IS NOT NULL END
        FOR UPDATE SKIP LOCKED
    ) AS job
    LIMIT $4::integer
), settled AS MATERIALIZED (
    SELECT judged.*,
           CASE WHEN why = 'orphan' THEN recipients
                WHEN why <> 'doubt' THEN mailslot.settle(recipients, 'later', 'dead')
                WHEN may_go_on THEN mailslot.settle(recipients, 'marked', doubt)
                ELSE mailslot.settle(mailslot.settle(recipients, 'later', 'dead'), 'marked', doubt) END AS verdicts
    FROM judged
), ended AS MATERIALIZED (
    SELECT settled.*,
           CASE WHEN why = 'orphan' THEN NULL
                WHEN why = 'doubt' AND (doubt = 'later' OR verdicts @? '$.* ? (@.verdict == "later")') THEN NULL
                WHEN why = 'doubt' AND (doubt = 'in_doubt' OR verdicts @? '$.* ? (@.verdict == "in_doubt")') THEN 'in_doubt'
                WHEN why = 'doubt' THEN 'sent'
                WHEN why = 'cancelled' THEN mailslot.ending('cancelled', doubts, verdicts)
                ELSE mailslot.ending('dead', doubts, verdicts) END AS ending
    FROM settled
), swept AS (
    UPDATE mailslot.jobs AS j SET
        completed_at = CASE WHEN ended.ending IS NOT NULL THEN clock_timestamp() END,
        outcome = ended.ending,
        assumed = coalesce(ended.ending = 'sent', false)
                  AND (ended.why = 'doubt' AND ended.doubt = 'sent' OR mailslot.holds_assumed(ended.verdicts)),
        reason = CASE ended.why WHEN 'doubt' THEN 'worker_lost_after_dot' WHEN 'orphan' THEN 'worker_lost' ELSE ended.why END,
        attempt = greatest(j.attempt - CASE WHEN ended.why = 'orphan' THEN 1 ELSE 0 END, 0),
        crashes = j.crashes + CASE WHEN ended.lease_token IS NOT NULL THEN 1 ELSE 0 END,
        doubts = j.doubts + CASE WHEN ended.why = 'doubt' THEN 1 ELSE 0 END,
        recipients = ended.verdicts,
        lease_token = CASE WHEN ended.ending IS NOT NULL THEN j.lease_token END,
        lease_owner = CASE WHEN ended.ending IS NOT NULL THEN j.lease_owner END,
        leased_at = CASE WHEN ended.ending IS NOT NULL THEN j.leased_at END,
        marked_at = CASE WHEN ended.ending IS NOT NULL THEN j.marked_at END,
        lease_expires_at = NULL
    FROM ended, durable
    WHERE durable.yes AND j.id BETWEEN ended.id AND ended.id AND j.outcome IS NULL
      AND j.lease_token IS NOT DISTINCT FROM ended.lease_token
    RETURNING j.id, ended.why, j.outcome
), ledger AS (
    INSERT INTO mailslot.attempts (job_id, lease_token, owner, attempt, leased_at, stage, verdict, reason)
    SELECT ended.id, ended.lease_token, ended.lease_owner, ended.attempt, ended.leased_at,
           CASE WHEN ended.why = 'doubt' THEN 'dot' END, 'worker_lost', ended.why
    FROM ended JOIN swept ON swept.id = ended.id
    WHERE ended.lease_token IS NOT NULL
    ON CONFLICT (job_id, lease_token) DO NOTHING
)
SELECT id, why, outcome FROM swept
