-- The payload of a held job that was too large to travel with the claim.
--
-- $1 bigint, $2 uuid   (id, token)
--
-- Locks nothing.  Index: the primary key.  Fence: id + token, unfinished.  Result: one row, none when the lease is lost.
SELECT j.payload::text AS payload FROM mailslot.jobs AS j WHERE j.id = $1 AND j.lease_token = $2 AND j.outcome IS NULL
