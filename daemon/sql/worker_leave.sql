-- Forgets a worker process that leaves in good order.
--
-- $1 bigint session_key.  Rows locked: its own.  Result: none.
DELETE FROM mailslot.workers WHERE session_key = $1
