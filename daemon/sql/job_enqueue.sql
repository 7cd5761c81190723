-- Saves a batch of jobs in one round trip, by the same function that applications call.
-- One array each, all of the same length: $1 payloads as JSON text, $2 queues, $3 idempotency keys, $4 available_at, $5 expires_at,
-- $6 priorities, $7 on_doubt, $8 kinds, $9 max_attempts, $10 traceparents, $11 relays. Null means the same as in mailslot.enqueue().
-- Locks: the new rows; waits for another transaction that is saving one of the keys.
-- Fence: the unique key. Result: (id, is_new, outcome) for each job, in the order given.
SELECT saved.id, saved.is_new, saved.outcome
FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[],
            $6::integer[], $7::text[], $8::text[], $9::integer[], $10::text[], $11::text[])
     WITH ORDINALITY AS given (payload, queue, idempotency_key, available_at, expires_at,
                               priority, on_doubt, kind, max_attempts, traceparent, relay, place)
CROSS JOIN LATERAL mailslot.enqueue(given.payload::jsonb, given.queue, given.idempotency_key, given.available_at, given.expires_at,
                                    given.priority, given.on_doubt, given.kind, given.max_attempts, given.traceparent, given.relay) AS saved
ORDER BY given.place
