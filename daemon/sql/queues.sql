-- Every queue that has an unfinished job, found by skipping through the index: one probe a queue, however many jobs.
--
-- Locks nothing.  Index: jobs_unfinished.  Result: (queue), in order.
WITH RECURSIVE step AS (
    (SELECT j.queue FROM mailslot.jobs AS j WHERE j.completed_at IS NULL ORDER BY j.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue FROM mailslot.jobs AS j WHERE j.completed_at IS NULL AND j.queue > step.queue ORDER BY j.queue LIMIT 1)
    FROM step WHERE step.queue IS NOT NULL
)
SELECT queue FROM step WHERE queue IS NOT NULL
