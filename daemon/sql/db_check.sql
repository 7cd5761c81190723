-- What decides whether this database can keep the promises, and what the current user may do beside work (agreement.sql).
-- No parameters, no locks. Needs the schema. Result: one row; durable settings are booleans, may_.. are privileges.
SELECT current_setting('server_version') AS server_version,
       current_setting('server_version_num')::integer AS server_version_num,
       current_setting('fsync')::boolean AS fsync,
       current_setting('full_page_writes')::boolean AS full_page_writes,
       has_function_privilege(
           'mailslot.enqueue(jsonb,text,text,timestamptz,timestamptz,integer,text,text,integer,text,text)', 'EXECUTE')
           AS may_enqueue,
       has_column_privilege('mailslot.jobs', 'expires_at', 'UPDATE')
           AND has_any_column_privilege('mailslot.audit', 'INSERT') AS may_operate,
       has_table_privilege('mailslot.job_states', 'SELECT') AS may_monitor
