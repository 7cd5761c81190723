-- Claims at most $5 due jobs, and takes over unmarked jobs whose lease has expired.
--
-- $1 text[], $2 smallint[]        levels (queue, priority), in the order in which they are served
-- $3 timestamptz[], $4 bigint[]   (available_at, id) behind which each level is looked at; ('-infinity', 0) looks at all of it
-- $5 integer                      how many jobs are wanted
-- $6 uuid[]                       a fresh random token for each of them, known to the caller even if the answer is lost
-- $7 text, $8 float8              owner's name, for people; lease in seconds
-- $9 boolean, $10 float8          whether the caller has been connected long enough to take over; grace in seconds
-- $11 boolean                     false: jobs that never lost a worker; true: only suspects
-- $12 text[]                      queues whose mail is left alone, because their relays can't be used now
-- $13 integer                     payloads larger than this many bytes stay behind
-- $14 integer                     crashes at which a job is given up (the sweep does that)
-- $15 text[]                      relays that can't be used now: mail that asks for one of them by name is left alone, other isn't
-- $16 float8[]                    so many seconds before now each level is looked at whatever $3 says; null: not so
--
-- Rows locked: those returned, until this statement commits.  Rows locked by others are passed over.
-- Index: jobs_unfinished, one exact range a level.  The CTE must be MATERIALIZED: an UPDATE .. WHERE id IN (SELECT .. LIMIT k)
-- can lock and change more than k rows under a nested loop.
-- The UPDATE says BETWEEN due.id AND due.id, which means =, but offers no order to merge by: a plan that was made while the table was
-- vacuumed and empty would else walk over the whole primary key, and be kept.
-- Fence: due, tested under the lock; the UPDATE tests the token that it saw.
-- Result: one row a job in the order of the scan.
-- Cost, in a backend's CPU: 0.1 ms when nothing is due, then 0.014 ms a job of 1 kB, of which the payload's text is a fifth.  Each
-- row that is passed by (leased, not ours to send) costs 0.5 us, each dead entry that vacuum can't remove 0.2 us: daemon/cursors.py
-- keeps claims from walking over them again and again.
-- Durability: may be lost in a crash of the server; then the mark finds no row and nothing is sent.
WITH lazily AS MATERIALIZED (
    SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                      WHEN 'remote_apply' THEN 'remote_apply' ELSE 'off' END, true) AS setting
), taking AS MATERIALIZED (
    SELECT $9::boolean AND pg_postmaster_start_time() < now() - make_interval(secs => $10) AS over,
           make_interval(secs => $8) AS lease
    FROM lazily
), level AS MATERIALIZED (
    SELECT asked.queue, asked.priority, begin.at AS after_at,
           CASE WHEN begin.at < asked.after_at THEN 0 ELSE asked.after_id END AS after_id
    FROM unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::bigint[], $16::float8[]) WITH ORDINALITY
         AS asked (queue, priority, after_at, after_id, back_s, place)
    CROSS JOIN LATERAL (SELECT least(asked.after_at, now() - make_interval(secs => asked.back_s)) AS at) AS begin
    WHERE NOT EXISTS (SELECT FROM mailslot.queues AS q WHERE q.queue = asked.queue AND q.paused)
    ORDER BY asked.place
), due AS MATERIALIZED (
    SELECT first.*, row_number() OVER () AS place
    FROM (
        SELECT job.*
        FROM level CROSS JOIN taking CROSS JOIN LATERAL (
            SELECT j.id, j.lease_token, j.lease_owner, j.leased_at, j.attempt
            FROM mailslot.jobs AS j
            WHERE j.queue = level.queue AND j.priority = level.priority AND j.completed_at IS NULL
              AND j.available_at <= now() AND (j.available_at, j.id) > (level.after_at, level.after_id)
              AND CASE WHEN j.lease_token IS NULL THEN j.attempt < j.max_attempts
                       ELSE taking.over AND j.crashes + 1 < $14::integer
                            AND (j.lease_expires_at <= now() OR j.lease_expires_at > now() + 2 * taking.lease) END
              AND j.marked_at IS NULL AND j.cancel_requested_at IS NULL AND j.expires_at > now()
              AND (j.crashes > 0) = $11::boolean
              AND (j.kind <> 'email' OR CASE WHEN j.relay_wanted IS NULL THEN j.queue <> ALL ($12::text[])
                                             ELSE j.relay_wanted <> ALL ($15::text[]) END)
            ORDER BY j.available_at, j.id
            LIMIT $5::integer
            FOR UPDATE SKIP LOCKED
        ) AS job
        LIMIT $5::integer
    ) AS first
), claimed AS (
    UPDATE mailslot.jobs AS j SET
        lease_token = ($6::uuid[])[due.place],
        lease_owner = $7,
        leased_at = clock_timestamp(),
        lease_expires_at = clock_timestamp() + make_interval(secs => $8),
        attempt = j.attempt + CASE WHEN due.lease_token IS NULL THEN 1 ELSE 0 END,
        crashes = j.crashes + CASE WHEN due.lease_token IS NULL THEN 0 ELSE 1 END
    FROM due
    WHERE j.id BETWEEN due.id AND due.id AND j.outcome IS NULL AND j.marked_at IS NULL
      AND j.lease_token IS NOT DISTINCT FROM due.lease_token
    RETURNING j.id, j.uid, j.lease_token, j.queue, j.kind, j.priority, j.payload, j.recipients, j.attempt, j.max_attempts, j.crashes,
              j.doubts, j.on_doubt, j.created_at, j.available_at, j.expires_at, j.traceparent, j.relay_wanted,
              due.place, due.lease_token IS NOT NULL AS taken_over
), ledger AS (
    INSERT INTO mailslot.attempts (job_id, lease_token, owner, attempt, leased_at, verdict)
    SELECT due.id, due.lease_token, due.lease_owner, due.attempt, due.leased_at, 'worker_lost'
    FROM due WHERE due.lease_token IS NOT NULL
    ON CONFLICT (job_id, lease_token) DO NOTHING
)
SELECT c.id, c.uid, c.lease_token AS token, c.queue, c.kind, c.priority,
       CASE WHEN octet_length(body.text) <= $13::integer THEN body.text END AS payload,
       octet_length(body.text) AS payload_bytes,
       c.recipients::text AS recipients, c.attempt, c.max_attempts, c.crashes, c.doubts, c.on_doubt,
       c.created_at, c.available_at, c.expires_at, c.traceparent, c.relay_wanted, c.taken_over
FROM claimed AS c CROSS JOIN LATERAL (SELECT c.payload::text AS text OFFSET 0) AS body
ORDER BY c.place
