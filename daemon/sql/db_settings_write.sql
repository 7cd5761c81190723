-- Writes what all workers must agree on, and who changed what to the audit trail.
-- $1 lease_s, $2 in_doubt_delay_s, $3 hard_cap_s (double precision), $4 max_crashes, $5 max_doubts (integer).
-- Locks: the one row of mailslot.settings. Fence: none, the last writer wins and both are in the trail.
-- Result: one row (before, after: jsonb).
WITH before AS MATERIALIZED (
    SELECT settings.*, mailslot.commit_durably() AS durable FROM mailslot.settings FOR UPDATE
), written AS (
    UPDATE mailslot.settings SET lease_s = $1, in_doubt_delay_s = $2, hard_cap_s = $3, max_crashes = $4, max_doubts = $5
    FROM before WHERE before.durable
    RETURNING to_jsonb(before) - '{one,durable,notify}'::text[] AS before,
              to_jsonb(settings) - '{one,notify}'::text[] AS after
), noted AS (
    INSERT INTO mailslot.audit (action, detail)
    SELECT 'settings.write', jsonb_build_object('before', before, 'after', after) FROM written
)
SELECT before::text, after::text FROM written
