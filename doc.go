// Package idem makes repeats harmless: the operation named by a key runs once,
// and every repeat gets the first one's outcome.
//
// A client that hears no answer sends again; a broker delivers twice; a person
// clicks twice. Package idem is embedded in the application and keeps one record
// per key in the database that the application already has, through a driver:
// postgres, sqlite, bolt, redis, or memory for tests.
//
//	createOrder, err := idem.NewTx[Order](postgres.New(pool), idem.Config{
//		Name: "orders.create", Retention: 7 * 24 * time.Hour,
//	})
//
//	res, err := createOrder.DoTx(ctx, idem.Key{Scope: tenant, ID: id}, fingerprint.Bytes(body),
//		func(ctx context.Context, tx pgx.Tx) (Order, error) {
//			// business writes through tx
//		})
//
// # Which call
//
// [TxOperation.DoTx] runs fn inside a transaction of the store. The claim, the
// business writes and the outcome commit together: use it whenever the effect is
// rows in the same database.
//
// [Operation.Do] runs fn under a lease, outside any transaction: for effects
// elsewhere (a payment provider, a mail). A process that dies between the effect
// and its record leaves an outcome that is unknown; [Config.Policy] says what the
// next caller gets, and [Run] helps it to find out.
//
// [TxOperation.DoThenTx] makes the outside call under a lease and then records what
// came of it, with business writes, in a transaction.
//
// [BatchOperation.DoBatch] is DoTx in one round trip, for statements and a result that
// are known in advance, on stores that can do that (PostgreSQL).
//
// # What a call does
//
// A record is in one of five states. It is unknown when it was in flight and its
// lease ended without an outcome, and expired when retention has ended but grace
// has not.
//
// The first row that fits decides. Request compares the operation's name and the
// fingerprint with the stored ones; they are not known while a transaction in
// progress holds the key, on stores that do not show it. Claim says whose the
// record's claim is: ours, or another one that policy [Hold], of the record or of
// the call, keeps from being taken over (hold) or not (rerun).
//
//	state      request          claim            action
//	absent     any              any              claim
//	in-flight  any              ours             run
//	in-flight  other            any              ErrMismatch
//	in-flight  any              any              ErrInFlight
//	unknown    any              ours             run
//	unknown    other            any              ErrMismatch
//	unknown    any              hold             ErrUnknown
//	unknown    any              any              take over
//	complete   other            any              ErrMismatch
//	complete   any              any              replay
//	expired    any              any              ErrExpired
//
// With [Config.Wait], ErrInFlight means to wait and look again. How a record
// changes is told by the methods of [driver.Record].
//
// # Repeats at the same moment
//
// Of the calls with one key in one process, one talks to the store and the others
// wait for what it learns, without polling. Between processes a waiter reads the
// record in growing intervals of 2 to 250 ms, a twentieth of the time it has
// waited, or is woken by the store where the driver can do that. It holds no
// connection meanwhile. When the holder fails, one waiter takes over.
//
// # What is not promised
//
// Outside a transaction, fn can run more than once: when a process dies, or is
// stopped for longer than its lease, after the effect and before the record. The
// outcome is recorded once all the same, and a holder that was overtaken cannot
// record. It can also run again when its outcome could not be recorded
// ([ErrNotRecorded]) and the lease has ended, and when the store cannot be reached
// for as long as a lease while fn ignores that its context was cancelled.
//
// Keys are remembered for [Config.Retention] (and refuse to run for
// [Config.Grace]); a repeat that comes later runs. What a store loses (a failover
// to a replica that lags, memory that was not flushed) is lost here too: see
// Guarantees of each driver.
package idem
