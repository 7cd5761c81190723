-- Extends the leases that a worker holds: the heartbeat.
--
-- $1 bigint[], $2 uuid[]   the held (id, token) pairs, without those whose record is on its way
-- $3 float8, $4 float8     lease, and the age at which a lease is not extended any more, in seconds
--
-- Rows locked: those extended, until this statement commits.  A row that somebody else has locked (an application's open
-- transaction that called cancel) is passed over and answered 'busy': its lease isn't lost, and it must not hold up the others.
-- Index: the primary key.  Fence: id + token, unfinished, younger than the cap.
-- Result: (id, token, state), one row a pair, in no order; state is held, busy or lost.
-- (OFFSET 0 keeps the planner from hashing a whole index for one probe; BETWEEN from walking all of it, see claim.sql.)
WITH durable AS MATERIALIZED (
    SELECT mailslot.commit_durably() AS yes
), held AS MATERIALIZED (
    SELECT a.id, a.token, job.ours
    FROM unnest($1::bigint[], $2::uuid[]) AS a (id, token)
    LEFT JOIN LATERAL (
        SELECT true AS ours
        FROM mailslot.jobs AS j
        WHERE j.id = a.id AND j.lease_token = a.token AND j.outcome IS NULL
          AND j.leased_at > now() - make_interval(secs => $4)
        FOR UPDATE SKIP LOCKED
    ) AS job ON true
), extended AS (
    UPDATE mailslot.jobs AS j
    SET lease_expires_at = greatest(j.lease_expires_at, clock_timestamp() + make_interval(secs => $3))
    FROM held, durable
    WHERE durable.yes AND held.ours AND j.id BETWEEN held.id AND held.id AND j.lease_token = held.token AND j.outcome IS NULL
    RETURNING j.id, held.token
)
SELECT id, token, 'held' AS state FROM extended
UNION ALL
SELECT held.id, held.token,
       CASE WHEN EXISTS (SELECT FROM mailslot.jobs AS j
                         WHERE j.id = held.id AND j.lease_token = held.token AND j.outcome IS NULL
                           AND j.leased_at > now() - make_interval(secs => $4) OFFSET 0) THEN 'busy'
            ELSE 'lost' END
FROM held WHERE held.ours IS NULL
