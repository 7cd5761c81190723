-- Whether a suspect is due: a job that has lost a worker before, which the ordinary claim passes by.
--
-- $1 text[], $2 smallint[]   levels (queue, priority)        $3 integer   rows to look at in each
-- $4 integer                 max_crashes
--
-- Locks nothing.  Index: jobs_unfinished.  Result: one boolean.
SELECT EXISTS (
    SELECT FROM (
        SELECT asked.* FROM unnest($1::text[], $2::smallint[]) AS asked (queue, priority)
        WHERE NOT EXISTS (SELECT FROM mailslot.queues AS q WHERE q.queue = asked.queue AND q.paused)
    ) AS level CROSS JOIN LATERAL (
        SELECT j.crashes, j.available_at, j.expires_at, j.lease_token, j.lease_expires_at, j.marked_at
        FROM mailslot.jobs AS j
        WHERE j.queue = level.queue AND j.priority = level.priority AND j.completed_at IS NULL
        ORDER BY j.available_at, j.id
        LIMIT $3::integer
    ) AS job
    WHERE job.crashes > 0 AND job.crashes < $4::integer AND job.marked_at IS NULL
      AND (job.lease_token IS NULL OR job.lease_expires_at <= now())
      AND job.available_at <= now() AND job.expires_at > now()
) AS due
