// Package redis is a driver for Redis 7.0 or newer: a single server, Sentinel or
// Cluster, through go-redis. A record is one string, a verb is one Lua script and
// one round trip; see Replays for the exception.
//
//	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
//	d := idemredis.New(client)
//
// # What it promises, and what it cannot
//
// Claims are atomic, fenced, and safe to send twice: the client may keep its
// MaxRetries. How long a claim that was granted is remembered is up to the server:
//
//   - appendfsync always: it survives a crash of the server and a loss of power.
//   - appendfsync everysec: a loss of power forgets about the last second.
//   - snapshots only, or nothing: everything since the last snapshot is forgotten.
//   - failover: replication is asynchronous, and what the replica had not received
//     is forgotten. WAIT and min-replicas-to-write make that rarer, not impossible.
//
// A claim that is forgotten lets the operation run again. Where that must not
// happen, use a driver with transactions. Business data cannot commit together
// with the outcome, so this is not a driver.TxDriver.
//
// # Configuration
//
// Before its first verb a driver runs [Driver.Check], which refuses what would
// break a promise silently: an eviction policy other than noeviction (any other
// forgets records under memory pressure, and several managed services default to
// volatile-lru), a server older than 7.0, a replica, a client that ignores the
// deadline of a context. It cannot see what changes later; call Check from a
// health check to find out.
//
// With noeviction and a full memory new claims fail, and outcomes of claims that
// were granted are stored all the same: leave some memory beyond maxmemory.
//
// # Time
//
// Leases and retention are judged by the server's clock. When that clock steps
// back, a lease in force lasts longer by the step, unless its holder renews it;
// when it steps forward, claims are taken over early, and the old holder is
// refused. A step past a retention makes Redis drop the records: keep retention
// at a day or more, and let the clock be slewed.
//
// Redis deletes a record by its TTL, about a minute after nothing of it has to be
// kept. [Driver.Purge] is needed only to drop results early, when operations keep
// a tombstone (a grace) after them; it looks at every key under the prefix.
//
// # Replays
//
// A claim of a key whose outcome this driver has seen reads the record without a
// script, by a pipeline of ECHO, GET and TIME, which takes less time. When the
// outcome is no longer there, the script follows, one round trip later. A user who
// may not run these three (ACL) pays that round trip for each replay. With a client
// of a Cluster every claim is a script.
//
// The client may have connections of their own for pipelines: PipelinePoolSize in
// its options.
//
// # Cancellation
//
// A call returns as soon as its context ends. A goroutine then reads the reply
// that is still on its way, for no longer than the client's ReadTimeout, and
// gives the connection back.
package redis
