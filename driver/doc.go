// Package driver is the contract between package idem and a store.
//
// Applications pick a driver (postgres, sqlite, bolt, redis, memory) and use
// package idem; only the author of a driver needs this package.
//
// A driver stores one [Record] per key and changes it with a handful of verbs.
// It decides nothing about waiting, retries, encoding or policy: those are the
// core's. What a driver must give is atomicity: each verb happens entirely or
// not at all, and of any number of concurrent claims on one key exactly one is
// granted.
//
// # How to write a driver
//
//  1. Choose how a record is stored. A store of opaque values keeps
//     [Record.AppendBinary] under [Key.Hash]; a store with columns keeps each
//     field. Times are whole microseconds.
//  2. Implement [Driver]. Where the store lets you read a record and write it
//     back in one atomic step (a transaction, a mutex), every verb is the same
//     three lines: read the record, call the Record method named after the verb
//     ([Record.AfterClaim], [Record.AfterRenew], [Record.AfterComplete],
//     [Record.AfterRelease], [Record.AfterForget], [Record.AfterPurge]), write
//     what it returns. Where the store has a language of its own (SQL, Lua), write
//     the same rules in it: those methods are the specification.
//  3. Call Validate on the params first and return its error as it is. It wraps
//     [ErrInvalidParams] and keeps bad input alike on every driver.
//  4. Judge time by one clock. Params.Now is used when it is set (tests set it);
//     otherwise the clock of the store, or of the host where the store has none.
//     Never compare the clocks of two machines.
//  5. Make every mutating verb safe to send twice. A network client sends a
//     command again when the reply was lost: a Claim that finds its own token in
//     flight has been granted, a Complete or Release that finds its own work done
//     has succeeded.
//  6. Check the token and the fence of the holder in the same atomic step as the
//     change. Answer [ErrNotHolder] when they differ, and change nothing.
//  7. Report errors by their kind: [ErrNotHolder], [ErrRetryable],
//     [ErrOutcomeUnknown], [ErrUnsafeConfig], [ErrNewerVersion],
//     [ErrForeignRecord]. Anything else is a store failure, returned as the store
//     gave it. Decide on codes, never on message text. Return the context's error
//     when the context ended the call.
//  8. Copy what you return. The caller owns a Record's byte slices, and keeps
//     them after your transaction has ended.
//  9. If the store has transactions that business data can join, implement
//     [TxDriver] too. Opening the transaction and claiming should be one round
//     trip, and so should storing the result and committing. Where the whole can
//     be sent at once, implement [BatchDriver].
//  10. State what the driver promises in [Guarantees], honestly.
//  11. Run the suite against it: conformancetest.Run, and conformancetest.RunTx
//     for a TxDriver. examples/customdriver is a whole driver with its test.
//
// # What nobody promises
//
// A driver may be called from any number of goroutines at once. It is never
// called with an invalid key by the core, but may be by others. It need not
// start goroutines, and must not in its constructor. It need not remember a
// record after [Record.AfterPurge] would delete it.
package driver
