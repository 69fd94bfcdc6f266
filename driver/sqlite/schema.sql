-- The records of package sqlite, version 1. Times are µs since 1970, 0 where there is none.
-- A rowid table on purpose: results of a kilobyte make WITHOUT ROWID three times as large.
CREATE TABLE IF NOT EXISTS idem_keys (
    seq          INTEGER PRIMARY KEY,
    kh           BLOB    NOT NULL UNIQUE CHECK (length(kh) = 16), -- hash of namespace, scope and id
    scope        TEXT,                                            -- NULL under WithSecret
    id           TEXT,
    state        INTEGER NOT NULL,                                -- 1 in flight, 2 complete, 3 released
    operation    TEXT    NOT NULL,
    fingerprint  BLOB    NOT NULL,
    summary      TEXT    NOT NULL,
    token        BLOB    NOT NULL,
    fence        INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    hold         INTEGER NOT NULL,
    note         TEXT    NOT NULL,
    created_us   INTEGER NOT NULL,
    lease_us     INTEGER NOT NULL,
    completed_us INTEGER NOT NULL,
    retain_us    INTEGER NOT NULL,
    grace_us     INTEGER NOT NULL,
    due_us       INTEGER,                                         -- when Purge looks at the record
    result       BLOB
) STRICT;

CREATE INDEX IF NOT EXISTS idem_keys_due ON idem_keys (due_us) WHERE due_us IS NOT NULL;

CREATE TABLE IF NOT EXISTS idem_keys_version (version INTEGER NOT NULL) STRICT;

INSERT INTO idem_keys_version (version)
SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM idem_keys_version);
