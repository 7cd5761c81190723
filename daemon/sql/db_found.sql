-- Says whether the schema and its version row are there; reads the catalog, so needs no privilege.
-- No parameters, no locks. Result: one row (has_schema, has_meta).
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'mailslot') AS has_schema,
       EXISTS (SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
               WHERE nspname = 'mailslot' AND relname = 'meta') AS has_meta
