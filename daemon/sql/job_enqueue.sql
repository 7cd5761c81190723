-- Saves one job, by the function that applications call: its arguments in its order.
-- $1 payload (text, JSON), $2 queue, $3 idempotency key, $4 available_at (timestamptz), $5 expires_at (timestamptz),
-- $6 priority (integer), $7 on_doubt, $8 kind, $9 max_attempts (integer), $10 traceparent, $11 relay.
-- Locks: the new row; waits for another transaction that is saving the key.
-- Fence: the unique key. Result: one row (id, is_new, outcome).
SELECT id, is_new, outcome
FROM mailslot.enqueue($1::text::jsonb, $2::text, $3::text, $4::timestamptz, $5::timestamptz, $6::integer, $7::text, $8::text,
                      $9::integer, $10::text, $11::text)
