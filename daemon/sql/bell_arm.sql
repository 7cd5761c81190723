-- Arms the bell: the next producer that commits a due job notifies the workers, and only he.
--
-- $1 bigint   the highest number that the caller has heard the bell rung with; null: it may have missed some
--
-- Does nothing when the bell is armed, when it has been armed since that number (its ring is on the way to the caller), or when
-- notifications are switched off for all.  Seen by everybody at once, before this commits.  Locks nothing that anybody waits for.
-- Result: one row (armed), whether this call armed it.
-- Durability: may be lost in a crash of the server; whoever connects again looks and arms.
WITH lazily AS MATERIALIZED (
    SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                      WHEN 'remote_apply' THEN 'remote_apply' ELSE 'off' END, true) AS setting
), armed AS MATERIALIZED (
    SELECT setval('mailslot.bell', (last_value / 1000000 + 1) * 1000000, false) AS value
    FROM mailslot.bell CROSS JOIN mailslot.settings CROSS JOIN lazily
    WHERE bell.is_called AND settings.notify AND ($1::bigint IS NULL OR bell.last_value / 1000000 <= $1)
)
SELECT EXISTS (SELECT FROM armed) AS armed
