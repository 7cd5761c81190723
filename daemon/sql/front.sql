-- What stands at the front of each level: where its first unfinished job is, and whether a suspect is due there, which is a job that
-- has lost a worker before, and which the ordinary claim passes by.
--
-- $1 text[], $2 smallint[]   levels (queue, priority)
-- $3 timestamptz[]           available_at from which to look in each; '-infinity' for the very front
-- $4 integer                 rows to look at in each
-- $5 integer                 max_crashes
-- $6 float8                  a front is at least so many seconds old: what began to be saved since may yet be committed
--
-- Dead entries that nothing can remove lie before the front, so that whoever begins there doesn't walk over them (daemon/cursors.py).
-- Locks nothing.  Index: jobs_unfinished, one range a level.
-- Result: (queue, priority, after_at, suspect_is_due), one row a level.
SELECT level.queue, level.priority, least(front.available_at, now() - make_interval(secs => $6)) AS after_at,
       front.suspect_is_due AND NOT EXISTS (SELECT FROM mailslot.queues AS q WHERE q.queue = level.queue AND q.paused) AS suspect_is_due
FROM unnest($1::text[], $2::smallint[], $3::timestamptz[]) AS level (queue, priority, from_at)
CROSS JOIN LATERAL (
    SELECT min(job.available_at) AS available_at,
           coalesce(bool_or(job.crashes > 0 AND job.crashes < $5::integer AND job.marked_at IS NULL
                            AND (job.lease_token IS NULL OR job.lease_expires_at <= now())
                            AND job.available_at <= now() AND job.expires_at > now()), false) AS suspect_is_due
    FROM (
        SELECT j.crashes, j.available_at::timestamptz, j.expires_at, j.lease_token, j.lease_expires_at, j.marked_at
        FROM mailslot.jobs AS j
        WHERE j.queue = level.queue AND j.priority = level.priority AND j.completed_at IS NULL AND j.available_at >= level.from_at
        ORDER BY j.available_at, j.id
        LIMIT $4::integer
    ) AS job
) AS front
