-- The schema's version and what all workers have agreed on.
--
-- Locks nothing.  Result: one row.
SELECT meta.schema_version, meta.instance, s.lease_s, s.in_doubt_delay_s, s.hard_cap_s, s.max_crashes, s.max_doubts
FROM mailslot.meta CROSS JOIN mailslot.settings AS s
