-- Whether mail that is due soon asks by name for one of some relays.
--
-- $1 text[], $2 smallint[]   levels (queue, priority)        $3 text[]   relays        $4 float8   how soon, in seconds
--
-- Locks nothing.  Index: jobs_unfinished, one range a level.  Result: one boolean.
SELECT EXISTS (
    SELECT FROM unnest($1::text[], $2::smallint[]) AS level (queue, priority)
    JOIN mailslot.jobs AS j ON j.queue = level.queue AND j.priority = level.priority
    WHERE j.completed_at IS NULL AND j.available_at <= now() + make_interval(secs => $4)
      AND j.relay_wanted = ANY ($3::text[]) AND j.kind = 'email' AND j.lease_token IS NULL
      AND j.cancel_requested_at IS NULL AND j.expires_at > now()
      AND NOT EXISTS (SELECT FROM mailslot.queues AS q WHERE q.queue = j.queue AND q.paused)
) AS asked
