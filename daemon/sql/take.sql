-- Takes tokens from the relays' buckets, or puts unused ones back: what all workers together may send in a second.
--
-- $1 text[]               relays, each once
-- $2 float8[], $3 float8[]   tokens a second, and the most that the bucket holds
-- $4 float8[]             how many tokens are wanted; less than 0: so many, or so much of one, are put back
--
-- Only the database's clock counts, read under the row's lock, so that the same moment never fills a bucket twice.  A bucket that
-- nobody has used yet is full.  One that is put back into holds what it would hold if nothing had been taken, never more than $3.
-- Rows locked: those named, in the order of their names, until this statement commits.  Index: the primary key.
-- Result: (relay, taken, wait_s), one row each: tokens taken (0 if put back), and the seconds until there is another one.
INSERT INTO mailslot.rates AS r (relay, tokens, filled_at, taken)
SELECT asked.relay, asked.capacity - took.tokens, clock_timestamp(), took.tokens
FROM unnest($1::text[], $2::float8[], $3::float8[], $4::float8[]) AS asked (relay, per_s, capacity, wanted)
CROSS JOIN LATERAL (SELECT greatest(0, least(asked.wanted, floor(asked.capacity)))) AS took (tokens)
ORDER BY asked.relay
ON CONFLICT (relay) DO UPDATE SET (tokens, filled_at, taken) = (
    SELECT least(asked.capacity, full_to.level - least(asked.wanted, floor(full_to.level))), moment.at,
           greatest(0, least(asked.wanted, floor(full_to.level)))
    FROM unnest($1::text[], $2::float8[], $3::float8[], $4::float8[]) AS asked (relay, per_s, capacity, wanted)
    CROSS JOIN (SELECT clock_timestamp() OFFSET 0) AS moment (at)
    CROSS JOIN LATERAL (
        SELECT least(asked.capacity, r.tokens + asked.per_s * greatest(0, extract(epoch FROM moment.at - r.filled_at)::float8)) OFFSET 0
    ) AS full_to (level)
    WHERE asked.relay = r.relay
)
RETURNING r.relay, r.taken::integer AS taken,
          greatest(0, (1 - r.tokens) / (SELECT a.per_s FROM unnest($1::text[], $2::float8[]) AS a (relay, per_s) WHERE a.relay = r.relay)) AS wait_s
