-- Lets one migration run at a time; held until the transaction ends.
-- No parameters. Locks: the advisory lock "mailslot" (its eight letters as a number). Result: one row, nothing in it.
SELECT pg_advisory_xact_lock(x'6d61696c736c6f74'::bigint)
