-- Reads the version of the schema. No parameters, no locks. Result: one row (schema_version).
SELECT schema_version FROM mailslot.meta
