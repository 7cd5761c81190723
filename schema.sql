-- mailslot: durable e-mail jobs in PostgreSQL (14 or newer).
--
-- One row of mailslot.jobs is one message to one envelope.  An application saves the row in its own transaction through
-- mailslot.enqueue(); workers claim it, send it, and record what became of it.  A job whose transaction committed ends in
-- exactly one of four outcomes, and each state below names the guarantee it rests on.
--
--   ready       completed_at null, lease_token null.  Due once available_at has come.      Rests on: the producer's commit.
--                 -> leased (claim), cancelled (cancel), dead (sweep: expires_at has passed); in place of the last two in_doubt
--                    or sent, when an earlier dot makes it so (mailslot.ending)
--   leased      lease_token set, marked_at null.  Nothing can have been sent under this token: a worker writes the final dot
--               only after its mark was answered.                                         Rests on: the mark.
--                 -> marked (mark); ready (release, record, sweep, abandon); leased again (a claim that takes over); sent, dead,
--                    in_doubt, cancelled (record, of what the mark refused and of what can't be built; dead also by a sweep, when
--                    too many workers were lost; what was asked to be cancelled also by release and abandon)
--   marked      marked_at set.  The dot may be on its way.  Nobody else may touch the row until every answer that could still
--               come has come (settings.in_doubt_delay past the lease).                   Rests on: the delay.
--                 -> sent, dead, ready, in_doubt, cancelled (record, release); ready, in_doubt, sent (sweep, by on_doubt)
--   sent        a relay answered 2xx to the dot (or on_doubt = 'assume_sent', then assumed is true).
--   dead        nobody accepted it as far as any answer or missing answer tells; reason says why.  A person may retry it.
--   in_doubt    the answer to a dot is missing.  A person decides, or a late 2xx under the row's own token makes it sent.
--   cancelled   withdrawn before anybody accepted it.
--
-- A job is finished when completed_at is set.  A finished row keeps its lease_token, so that the holder whose answer was
-- lost can tell its own record from a stranger's.  Every way back to ready clears token, owner, expiry, leased_at and
-- marked_at; so marked_at always means: marked under the present token.
--
-- The fence: every statement of a holder names (id, lease_token).  A token is a fresh random uuid for each claim; neither a
-- counter nor an owner's name would do, for ids and counters repeat after a failover and a name is shared by slots.
--
-- One partial index serves claim and sweep.  No index covers a column that a claim, an extension or a mark changes, and two thirds
-- of each page are left free (a leased row is some 70 bytes longer than a ready one): these updates stay on their page (HOT) and
-- touch no index, even while a statement or a snapshot of somebody else still needs the versions before.  What looks for
-- unfinished jobs in order says completed_at IS NULL, as the index does; what comes by id says outcome IS NULL, which means the
-- same and can't tempt the planner into reading that index from end to end.

-- Roles belong to the whole server, so they may be there already.  None can log in: grant them to your own.
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['mailslot_owner', 'mailslot_producer', 'mailslot_worker', 'mailslot_operator', 'mailslot_monitor'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;                                            -- another database of this server was quicker
            END;
        END IF;
    END LOOP;
    -- Since PostgreSQL 16 whoever creates a role is its administrator, but may not act as it yet.
    IF NOT pg_has_role(current_user, 'mailslot_owner',
                       CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END) THEN
        EXECUTE format('GRANT mailslot_owner TO %I', current_user);
    END IF;
END $$;

CREATE SCHEMA mailslot AUTHORIZATION mailslot_owner;
SET LOCAL ROLE mailslot_owner;

CREATE TABLE mailslot.meta (
    one            boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema_version integer NOT NULL,
    instance       uuid NOT NULL DEFAULT gen_random_uuid(),      -- tells this database from a restored or cloned one
    migrated_at    timestamptz NOT NULL DEFAULT now()
);
INSERT INTO mailslot.meta (schema_version) VALUES (1);

-- What all workers must agree on.  A worker whose config.toml differs refuses to start.
CREATE TABLE mailslot.settings (
    one            boolean PRIMARY KEY DEFAULT true CHECK (one),
    lease_s          double precision NOT NULL DEFAULT 30   CHECK (lease_s > 0),
    in_doubt_delay_s double precision NOT NULL DEFAULT 660  CHECK (in_doubt_delay_s > 0),
    hard_cap_s       double precision NOT NULL DEFAULT 1200 CHECK (hard_cap_s > 0),
    max_crashes      integer NOT NULL DEFAULT 3 CHECK (max_crashes > 0),
    max_doubts       integer NOT NULL DEFAULT 2 CHECK (max_doubts >= 0),
    notify           boolean NOT NULL DEFAULT true               -- wake idle workers on insert; polling works without
);
INSERT INTO mailslot.settings DEFAULT VALUES;

-- What a column may hold.  Domains, because a CHECK of the table is parsed and compiled again by every statement and runs for every row
-- that is written, whichever column changed: 23 of them were 60 of the 105 microseconds of a single insert, and 7 of the 9 of a row
-- that is claimed or marked.  A domain's is parsed once a session, and runs where a value is written.  (A bounded repeat such as
-- {1,100} in a regular expression costs twenty times what + and a length do.)
CREATE DOMAIN mailslot.name AS text CHECK (length(VALUE) <= 100 AND VALUE ~ '^[A-Za-z0-9_.:-]+$');
CREATE DOMAIN mailslot.priority AS smallint CHECK (VALUE BETWEEN 0 AND 3);                            -- 0 urgent .. 3 bulk
CREATE DOMAIN mailslot.payload AS jsonb CHECK (pg_column_size(VALUE) <= 67108864);                    -- 64 MiB
CREATE DOMAIN mailslot.idempotency_key AS text CHECK (length(VALUE) BETWEEN 1 AND 500);
CREATE DOMAIN mailslot.traceparent AS text CHECK (VALUE ~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$');
CREATE DOMAIN mailslot.instant AS timestamptz                     -- bounded, so that no interval overflows and every driver can hold it
    CHECK (VALUE BETWEEN '2000-01-01Z' AND '3000-01-01Z');
CREATE DOMAIN mailslot.tally AS integer CHECK (VALUE >= 0);
CREATE DOMAIN mailslot.budget AS integer CHECK (VALUE BETWEEN 1 AND 10000);
CREATE DOMAIN mailslot.on_doubt AS text CHECK (VALUE IN ('resend', 'hold', 'assume_sent'));
CREATE DOMAIN mailslot.outcome AS text CHECK (VALUE IN ('sent', 'dead', 'in_doubt', 'cancelled'));
CREATE DOMAIN mailslot.short AS text CHECK (length(VALUE) <= 200);
CREATE DOMAIN mailslot.reply AS text CHECK (length(VALUE) <= 500);

-- What a row may say, whoever writes it.  One function, for the same reason: as five CHECKs these are 20 microseconds a statement, so 6.
CREATE FUNCTION mailslot.is_sound(completed_at timestamptz, outcome text, lease_token uuid, lease_expires_at timestamptz,
                                  marked_at timestamptz, assumed boolean, doubts integer, reason text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$ BEGIN
    RETURN (completed_at IS NULL) = (outcome IS NULL)
       AND ((lease_token IS NULL) = (lease_expires_at IS NULL) OR completed_at IS NOT NULL)
       AND (marked_at IS NULL OR lease_token IS NOT NULL)
       AND (NOT assumed OR coalesce(outcome = 'sent', false))
       -- what was once in doubt is never called unsent, unless a person says so
       AND (outcome NOT IN ('dead', 'cancelled') OR doubts = 0 OR coalesce(reason = 'resolved_not_sent', false));
END $$;

CREATE TABLE mailslot.queues (
    queue  mailslot.name PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false
);

CREATE TABLE mailslot.jobs (
    -- who and what
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid              uuid NOT NULL DEFAULT gen_random_uuid(),    -- the Message-ID is made from it: ids repeat after a failover
    queue            mailslot.name NOT NULL DEFAULT 'default',
    kind             mailslot.name NOT NULL DEFAULT 'email',
    priority         mailslot.priority NOT NULL DEFAULT 1,
    payload          mailslot.payload NOT NULL,
    idempotency_key  mailslot.idempotency_key,
    relay_wanted     mailslot.name,                              -- by this relay only; null: as the queue's
    traceparent      mailslot.traceparent,
    created_at       mailslot.instant NOT NULL DEFAULT now(),
    -- when
    available_at     mailslot.instant NOT NULL DEFAULT now(),
    expires_at       mailslot.instant NOT NULL,
    completed_at     timestamptz,
    -- budgets
    attempt          mailslot.tally NOT NULL DEFAULT 0,          -- tries that said something about the message
    max_attempts     mailslot.budget NOT NULL DEFAULT 100,
    crashes          mailslot.tally NOT NULL DEFAULT 0,          -- workers that were lost while they held it
    doubts           mailslot.tally NOT NULL DEFAULT 0,          -- dots whose answer is missing
    on_doubt         mailslot.on_doubt NOT NULL DEFAULT 'resend',
    -- lease
    lease_token      uuid,
    lease_owner      text,                                       -- for people; never for correctness
    leased_at        timestamptz,
    lease_expires_at timestamptz,
    marked_at        timestamptz,
    cancel_requested_at timestamptz,
    -- end
    outcome          mailslot.outcome,
    assumed          boolean NOT NULL DEFAULT false,
    reason           mailslot.short,
    relay            mailslot.short,
    reply            mailslot.reply,                             -- what the relay said last, its queue id included
    recipients       jsonb,                                      -- null: all alike; else address -> {verdict, reply, doubted, assumed}

    CONSTRAINT is_sound CHECK (mailslot.is_sound(completed_at, outcome, lease_token, lease_expires_at, marked_at, assumed, doubts, reason))
) WITH (
    fillfactor = 32,                                             -- room for the claim's version of each row and for the mark's
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX jobs_unfinished ON mailslot.jobs (queue, priority, available_at, id) WHERE completed_at IS NULL;
CREATE UNIQUE INDEX jobs_idempotency ON mailslot.jobs (queue, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- The ledger: one row for each attempt after which its job went on and for each worker that was lost, and the evidence of a 2xx that
-- came too late to be recorded.  What ends a job stands in the job's own row, and a lease that was given back without having tried
-- anything leaves no row.  accepted beats everything: once it is set no later write clears it, only a person does
-- (`jobs retry --again`).
CREATE TABLE mailslot.attempts (
    job_id      bigint NOT NULL REFERENCES mailslot.jobs (id) ON DELETE CASCADE,
    lease_token uuid NOT NULL,
    owner       text,
    attempt     integer NOT NULL,
    leased_at   timestamptz,
    ended_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    stage       text,                                            -- how far it came
    verdict     text NOT NULL,                                   -- later, doubt, rejected, sent, worker_lost
    reason      text,
    relay       text,
    reply       text,
    accepted    text[],                                          -- recipients whose message a relay answered 2xx for
    PRIMARY KEY (job_id, lease_token)
);

-- What is left of each relay's rate: a bucket of tokens that all workers take from before they claim.  A relay without a limit has
-- no row.  `taken` is the answer of the last statement, which could not return it otherwise.
CREATE TABLE mailslot.rates (
    relay     text PRIMARY KEY CHECK (length(relay) BETWEEN 1 AND 100),
    tokens    double precision NOT NULL CHECK (tokens >= 0),
    filled_at timestamptz NOT NULL,
    taken     double precision NOT NULL CHECK (taken >= 0)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE mailslot.workers (                                  -- for people, and for the look for absent owners
    session_key bigint PRIMARY KEY,
    owner       text NOT NULL,
    host        text NOT NULL,
    pid         integer NOT NULL,
    version     text NOT NULL,
    concurrency integer NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    seen_at     timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE mailslot.audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    who    text NOT NULL DEFAULT session_user,
    action text NOT NULL,
    job_id bigint,
    detail jsonb
);

CREATE VIEW mailslot.job_states AS
SELECT id, uid, queue, kind, priority,
       CASE WHEN outcome IS NOT NULL THEN outcome
            WHEN marked_at IS NOT NULL THEN 'marked'
            WHEN lease_token IS NOT NULL THEN 'leased'
            ELSE 'ready' END AS state,
       created_at, available_at, expires_at, completed_at, attempt, max_attempts, crashes, doubts, on_doubt,
       lease_owner, leased_at, lease_expires_at, marked_at, cancel_requested_at, assumed, reason, relay
FROM mailslot.jobs;

-- ---------------------------------------------------------------- what the statements share

-- The outcome that a job may honestly end with when somebody wants to end it: never dead or cancelled after a doubt, and
-- never dead or cancelled when one recipient has it.
CREATE FUNCTION mailslot.ending(wanted text, doubts integer, recipients jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN wanted IS NULL OR wanted NOT IN ('dead', 'cancelled') THEN wanted
    WHEN recipients @? '$.* ? (@.verdict == "in_doubt" || (@.doubted == true && @.verdict != "sent"))' THEN 'in_doubt'
    WHEN recipients @? '$.* ? (@.verdict == "sent")' THEN 'sent'
    WHEN doubts > 0 THEN 'in_doubt'
    ELSE wanted END;

-- Whether a job that ends as sent rests, for some recipient, on an assumption: the answer to its dot never came.
CREATE FUNCTION mailslot.holds_assumed(recipients jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(recipients @? '$.* ? (@.assumed == true)', false);

-- Gives every recipient that stands at one verdict another one; a mark that is settled so is remembered as a doubt, and who was
-- ever in doubt is never called dead.
CREATE FUNCTION mailslot.settle(recipients jsonb, before text, after text) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT jsonb_object_agg(address, CASE WHEN entry ->> 'verdict' = settle.before
               THEN entry || CASE WHEN settle.before = 'marked' THEN '{"doubted": true}' ELSE '{}' END::jsonb
                          || CASE WHEN settle.before = 'marked' AND settle.after = 'sent' THEN '{"assumed": true}' ELSE '{}' END::jsonb
                          || jsonb_build_object('verdict', CASE WHEN settle.after = 'dead' AND entry @> '{"doubted": true}'
                                                                THEN 'in_doubt' ELSE settle.after END)
               ELSE entry END)
        FROM jsonb_each(settle.recipients) AS each (address, entry));

-- A mark or an outcome must be on disk when it is answered, whatever the server's default; remote_apply is more, and stays.
-- (A SET clause on a function would not count at commit.)
CREATE FUNCTION mailslot.commit_durably() RETURNS boolean LANGUAGE sql VOLATILE
AS $$ SELECT pg_catalog.set_config('synchronous_commit', CASE pg_catalog.current_setting('synchronous_commit')
          WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true) IS NOT NULL $$;

-- ---------------------------------------------------------------- what applications call

-- Saves a job in the caller's transaction.  With a key that the queue already knows, returns that job, is_new false, and its
-- outcome so far; two transactions that race with one key get the same job (the second waits for the first to end).
CREATE FUNCTION mailslot.enqueue(
    payload jsonb,
    queue text DEFAULT 'default',
    idempotency_key text DEFAULT NULL,
    available_at timestamptz DEFAULT NULL,                       -- null: now
    expires_at timestamptz DEFAULT NULL,                         -- null: available_at + 3 days; never sent after it
    priority integer DEFAULT 1,
    on_doubt text DEFAULT 'resend',
    kind text DEFAULT 'email',
    max_attempts integer DEFAULT 100,
    traceparent text DEFAULT NULL,
    relay text DEFAULT NULL                                      -- null: any relay that serves the queue
) RETURNS TABLE (id bigint, is_new boolean, outcome text)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    LOOP
        INSERT INTO mailslot.jobs AS job (payload, queue, idempotency_key, available_at, expires_at, priority, on_doubt, kind,
                                          max_attempts, traceparent, relay_wanted)
        VALUES (enqueue.payload, enqueue.queue, enqueue.idempotency_key, coalesce(enqueue.available_at, now()),
                coalesce(enqueue.expires_at, coalesce(enqueue.available_at, now()) + interval '3 days'),
                enqueue.priority, enqueue.on_doubt, enqueue.kind, enqueue.max_attempts, enqueue.traceparent, enqueue.relay)
        ON CONFLICT (queue, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING job.id, true INTO enqueue.id, enqueue.is_new;
        EXIT WHEN FOUND;
        SELECT job.id, false, job.outcome INTO enqueue.id, enqueue.is_new, enqueue.outcome FROM mailslot.jobs AS job
        WHERE job.queue = enqueue.queue AND job.idempotency_key = enqueue.idempotency_key;
        EXIT WHEN FOUND;                                         -- else it was pruned between the two statements: again
    END LOOP;
    RETURN NEXT;
END $$;

-- Saves many jobs in the caller's transaction, in their order, and returns how many of them are new; the others have a key that the
-- queue already knows.  One array for each argument of mailslot.enqueue(), and a null there, or instead of an array, is its default.
-- A job costs a third of what it costs through mailslot.enqueue(): one statement for all, not one for each.
CREATE FUNCTION mailslot.enqueue_many(
    payloads jsonb[],
    queues text[] DEFAULT NULL,
    idempotency_keys text[] DEFAULT NULL,
    available_at timestamptz[] DEFAULT NULL,
    expires_at timestamptz[] DEFAULT NULL,
    priorities integer[] DEFAULT NULL,
    on_doubts text[] DEFAULT NULL,
    kinds text[] DEFAULT NULL,
    max_attempts integer[] DEFAULT NULL,
    traceparents text[] DEFAULT NULL,
    relays text[] DEFAULT NULL
) RETURNS bigint
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE saved bigint;
BEGIN
    INSERT INTO mailslot.jobs (payload, queue, idempotency_key, available_at, expires_at, priority, on_doubt, kind, max_attempts,
                               traceparent, relay_wanted)
    SELECT given.payload, coalesce(given.queue, 'default'), given.key, coalesce(given.available_at, now()),
           coalesce(given.expires_at, coalesce(given.available_at, now()) + interval '3 days'),
           coalesce(given.priority, 1), coalesce(given.on_doubt, 'resend'), coalesce(given.kind, 'email'),
           coalesce(given.max_attempts, 100), given.traceparent, given.relay
    FROM unnest(payloads, queues, idempotency_keys, enqueue_many.available_at, enqueue_many.expires_at, priorities, on_doubts, kinds,
                enqueue_many.max_attempts, traceparents, relays)
         AS given (payload, queue, key, available_at, expires_at, priority, on_doubt, kind, max_attempts, traceparent, relay)
    ON CONFLICT (queue, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
    GET DIAGNOSTICS saved = ROW_COUNT;
    RETURN saved;
END $$;

-- Withdraws a job.  Returns its state afterwards: 'cancelled'; 'cancel_requested' when a worker has it (the mark decides);
-- otherwise the outcome that it already has ('in_doubt' also when a copy may be out).  Null: no such job.
CREATE FUNCTION mailslot.cancel(id bigint) RETURNS text
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE state text;
BEGIN
    UPDATE mailslot.jobs AS job SET
        cancel_requested_at = coalesce(job.cancel_requested_at, clock_timestamp()),
        completed_at = CASE WHEN job.lease_token IS NULL THEN clock_timestamp() END,
        outcome = CASE WHEN job.lease_token IS NULL THEN mailslot.ending('cancelled', job.doubts, job.recipients) END,
        assumed = job.lease_token IS NULL AND mailslot.ending('cancelled', job.doubts, job.recipients) = 'sent'
                  AND mailslot.holds_assumed(job.recipients),
        recipients = CASE WHEN job.lease_token IS NULL THEN mailslot.settle(job.recipients, 'later', 'dead') ELSE job.recipients END,
        reason = CASE WHEN job.lease_token IS NULL THEN 'cancelled' ELSE job.reason END
    WHERE job.id = cancel.id AND job.completed_at IS NULL
    RETURNING coalesce(job.outcome, 'cancel_requested') INTO state;
    IF NOT FOUND THEN
        SELECT job.outcome INTO state FROM mailslot.jobs AS job WHERE job.id = cancel.id;
    END IF;
    RETURN state;
END $$;

-- ---------------------------------------------------------------- waking idle workers

-- PostgreSQL lets one transaction at a time commit with a notification: it holds a lock of the whole server until its commit is on disk.
-- So producers notify only when somebody waits to hear it.  A worker that has found nothing arms the bell (bell_arm.sql) and looks once
-- more; the first producer that commits then rings it, and nobody after him until it is armed again.  Busy workers arm nothing, and cost
-- producers nothing.  Each arming has the next number, the notification says it, and only who has heard that number arms again: so
-- hardly ever two producers notify at a time, however many workers there are.
--
-- A sequence, because what happens to one is seen at once and by everybody, whatever becomes of the transaction, and because nextval()
-- tells exactly one caller that he is the first.  Its value is the number in millions, and how many have tried to ring; it is armed
-- while is_called is false.
--
-- What is missed is found by the worker's next looks or its poll, for a notification only says "look": a job of a producer who asked
-- before the bell was armed and whose commit was seen after the look, and a ring whose transaction failed in its commit.
CREATE SEQUENCE mailslot.bell START 1000000;

-- Whether a new job has to ask for the bell: it is due, and its transaction doesn't ask yet.  That is remembered until the transaction
-- or savepoint ends, so that a million rows queue one event.
CREATE FUNCTION mailslot.has_to_ring(available_at timestamptz) RETURNS boolean
    LANGUAGE plpgsql VOLATILE
AS $$ BEGIN
    RETURN available_at <= now() AND current_setting('mailslot.ringing', true) IS DISTINCT FROM 'yes'
       AND set_config('mailslot.ringing', 'yes', true) = 'yes';
END $$;

-- Rings the bell if it is armed.  pg_sequence_last_value() is null then; reading the sequence itself costs 5 microseconds more.
CREATE FUNCTION mailslot.ring() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE rung bigint;
BEGIN
    IF pg_sequence_last_value('mailslot.bell') IS NULL AND (SELECT notify FROM mailslot.settings) THEN
        rung := nextval('mailslot.bell');
        IF rung % 1000000 = 0 THEN                               -- else somebody else was first
            PERFORM pg_notify('mailslot', (rung / 1000000)::text);
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- Deferred, so that it asks when the transaction commits: one that stays open would have used the bell up, or asked too early.  (The
-- condition is a function because its text is parsed by every insert: 9 microseconds when written out, 3 so.)
CREATE CONSTRAINT TRIGGER ring AFTER INSERT ON mailslot.jobs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (mailslot.has_to_ring(NEW.available_at)) EXECUTE FUNCTION mailslot.ring();

-- ---------------------------------------------------------------- who may do what

REVOKE ALL ON SCHEMA mailslot FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA mailslot FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA mailslot FROM PUBLIC;

GRANT USAGE ON SCHEMA mailslot TO mailslot_producer, mailslot_worker, mailslot_operator, mailslot_monitor;

GRANT EXECUTE ON FUNCTION mailslot.enqueue, mailslot.enqueue_many, mailslot.cancel TO mailslot_producer, mailslot_operator;

-- A worker may move a job along, never change what is to be sent, to whom, or until when.
GRANT EXECUTE ON FUNCTION mailslot.ending, mailslot.holds_assumed, mailslot.settle, mailslot.is_sound, mailslot.commit_durably
    TO mailslot_worker, mailslot_operator;
GRANT SELECT ON mailslot.meta, mailslot.settings, mailslot.queues, mailslot.jobs, mailslot.attempts, mailslot.workers, mailslot.rates
    TO mailslot_worker;
GRANT INSERT, UPDATE ON mailslot.rates TO mailslot_worker;
GRANT SELECT, UPDATE ON SEQUENCE mailslot.bell TO mailslot_worker;
GRANT UPDATE (available_at, completed_at, attempt, crashes, doubts, lease_token, lease_owner, leased_at, lease_expires_at,
              marked_at, cancel_requested_at, outcome, assumed, reason, relay, reply, recipients)
    ON mailslot.jobs TO mailslot_worker, mailslot_operator;
GRANT INSERT, UPDATE ON mailslot.attempts TO mailslot_worker;
GRANT INSERT, UPDATE, DELETE ON mailslot.workers TO mailslot_worker;

GRANT SELECT ON ALL TABLES IN SCHEMA mailslot TO mailslot_operator;
GRANT UPDATE (expires_at) ON mailslot.jobs TO mailslot_operator;
GRANT UPDATE ON mailslot.settings TO mailslot_operator;
GRANT INSERT, UPDATE, DELETE ON mailslot.queues TO mailslot_operator;
GRANT UPDATE (accepted) ON mailslot.attempts TO mailslot_operator;  -- evidence is set aside by a retry that says so
GRANT INSERT (action, job_id, detail) ON mailslot.audit TO mailslot_operator;   -- who and when are the server's to say

-- A monitor sees states and counts; no payload, no address, no reply.
GRANT SELECT ON mailslot.job_states, mailslot.queues, mailslot.workers, mailslot.settings, mailslot.meta TO mailslot_monitor;

RESET ROLE;
