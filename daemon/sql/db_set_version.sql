-- Notes that the schema has reached a version. $1 version (integer).
-- Locks: the one row of mailslot.meta. Fence: only upwards. Result: one row, or none if the version wasn't lower.
UPDATE mailslot.meta SET schema_version = $1, migrated_at = now() WHERE schema_version < $1 RETURNING schema_version
