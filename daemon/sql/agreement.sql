-- The schema's version, what all workers have agreed on, and whether the user who asks may be one of them.
--
-- Locks nothing.  Result: one row; whoever may read it isn't yet a worker, for monitors and operators may.
SELECT meta.schema_version, meta.instance, s.lease_s, s.in_doubt_delay_s, s.hard_cap_s, s.max_crashes, s.max_doubts,
       current_user::text AS "user",
       has_column_privilege('mailslot.jobs', 'lease_token', 'UPDATE')
           AND has_table_privilege('mailslot.workers', 'INSERT') AS may_work
FROM mailslot.meta CROSS JOIN mailslot.settings AS s
