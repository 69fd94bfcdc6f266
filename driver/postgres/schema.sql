-- The table of idempotency records. Written for PostgreSQL 13 and later; run it
-- as it is, or in a migration of your own. The name of the table may be changed
-- (WithTable).
CREATE TABLE IF NOT EXISTS idem_records (
    kh           uuid        PRIMARY KEY,   -- 16 bytes of a hash over namespace, scope and id
    state        smallint    NOT NULL,      -- 1 in flight, 2 complete, 3 released
    hold         boolean     NOT NULL,      -- not to be taken over
    attempt      integer     NOT NULL,
    fence        bigint      NOT NULL,
    token        uuid        NOT NULL,      -- the holder, or the last one
    created_at   timestamptz NOT NULL,
    lease_until  timestamptz NOT NULL,
    completed_at timestamptz,
    retain_until timestamptz NOT NULL,
    grace_until  timestamptz,
    purge_after  timestamptz NOT NULL,      -- never later than purging has something to do
    namespace    text        NOT NULL,
    scope        text        NOT NULL,      -- scope and id are empty when the hash has a secret
    id           text        NOT NULL,
    operation    text        NOT NULL,
    summary      text        NOT NULL,
    note         text        NOT NULL,
    fingerprint  bytea       NOT NULL,
    result       bytea
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);

-- Completing a claim must not touch an indexed column, so that the update stays
-- on its page (HOT). purge_after is therefore set by the claim, as a lower bound
-- that later changes seldom move; a purge that comes too early moves it on.
CREATE INDEX IF NOT EXISTS idem_records_purge ON idem_records (purge_after);

COMMENT ON TABLE idem_records IS 'idem schema 1';
