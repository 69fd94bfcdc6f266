// Package postgres stores idempotency records in PostgreSQL, version 13 or later,
// through a pgx pool. Claims of [Driver.BeginClaim] share a transaction with the
// application's own writes: work, outcome and claim commit together, or not at all.
//
//	pool, err := pgxpool.New(ctx, dsn)
//	d := postgres.New(pool)
//	err = d.Migrate(ctx) // or put Schema into migrations of your own
//
// # What it costs
//
// A leased claim is one round trip and one flush of the write-ahead log, and so
// is its completion; sending one twice costs a round trip more. A replay is one
// round trip and no flush. A takeover is one
// round trip more than a claim. A transaction costs two round trips beside the
// application's own statements, as BEGIN and COMMIT do, and one flush; a
// duplicate of one costs two round trips and no flush, and so does the replay of a
// key that this process has not seen complete. [Driver.RunBatch] is one
// round trip and one flush, the application's statements included.
//
// # Transactions
//
// BeginClaim takes a transaction-level advisory lock and reads the record; the
// record itself is written at the end, complete, in the round trip of COMMIT. The
// lock only makes duplicates fail at once instead of waiting; what makes the
// operation happen once is the primary key, checked in the transaction that
// commits the work. Advisory locks are taken in the one-key space of the
// database, under 64 bits of the key's hash: an application that locks the same
// number sees, and causes, a claim in flight for as long.
//
// The default isolation level is that of the database. Repeatable read and
// serializable are safe and return driver.ErrRetryable more often. At serializable
// the application's reads and writes are checked as ever, and reading the record
// is part of the check.
//
// A client that freezes inside a transaction keeps the key until the server ends
// the session, after [WithIdleTimeout].
//
// # Connections
//
// No setting and no lock is kept in the session. In pgx's default query mode,
// QueryExecModeCacheStatement, a connection has the driver's statements prepared,
// about twenty at most, whose names begin with "idem_"; preparing them costs a
// round trip when a connection first runs them, and another in a thousand calls.
// In every other query mode, and with a StatementCacheCapacity of 0, they are sent
// unnamed, which costs the server the parsing and planning at every call.
//
// Behind a pooler in transaction mode choose such a mode, as pgx itself requires,
// unless the pooler keeps track of prepared statements (PgBouncer from 1.21, with
// max_prepared_statements). Statements that have gone, because of DISCARD ALL, of
// DEALLOCATE, or of a pooler that lends the session to others, are noticed: the
// call sends them again, unnamed. Only the application's own work cannot be sent
// again. A commit therefore does without names where the work's SQL had the word
// DEALLOCATE, or where it took the Conn of its pgx.Tx. When a function of the server
// deallocates unseen, the commit fails once with driver.ErrRetryable, and everything
// is rolled back.
//
// The driver sends its statements itself, so tracers of pgx do not see them. A
// connection on which the server turns out to be read-only is closed, so that the
// pool recovers after a failover.
//
// # Durability
//
// With synchronous_commit on (the default), local, remote_write or remote_apply a
// granted claim survives a crash of the server. With off it may not, and the
// driver refuses the server unless [AllowAsyncCommit] is given. It does not look
// at fsync, which is for test servers to turn off. A failover to an
// asynchronous replica can lose the last claims and outcomes, business data
// included; a synchronous standby prevents that, except that cancelling a commit
// which waits for the standby leaves it committed here only.
//
// Retention and leases are judged by the server's clock_timestamp() and
// statement_timestamp(), never by the application's clock.
package postgres
