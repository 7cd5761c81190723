-- What the server is and promises, asked once at start.
--
-- Locks nothing.  Result: one row; schema_exists tells whether the rest of mailslot can be asked for at all.
SELECT current_setting('fsync') = 'on' AS fsync, current_setting('full_page_writes') = 'on' AS full_page_writes,
       pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS read_only,
       to_regclass('mailslot.meta') IS NOT NULL AS schema_exists
