-- Saves a batch of jobs in one round trip, in the order given.
-- One array each, all of the same length, or null where all have the default of mailslot.enqueue(): $1 payloads as JSON text,
-- $2 queues, $3 idempotency keys, $4 available_at, $5 expires_at, $6 priorities, $7 on_doubt, $8 kinds, $9 max_attempts,
-- $10 traceparents, $11 relays.
-- Locks: the new rows; waits for another transaction that is saving one of the keys.
-- Fence: the unique key. Result: one row (new), how many of the jobs are new; the others have a key that was known.
SELECT mailslot.enqueue_many($1::text[]::jsonb[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::integer[],
                             $7::text[], $8::text[], $9::integer[], $10::text[], $11::text[]) AS new
