// Package sqlite is a driver that keeps idempotency records in an SQLite database
// (modernc.org/sqlite, without cgo), beside the tables of the application.
//
// # What it promises
//
// A claim and an outcome are on disk when the call returns. [Driver.BeginClaim]
// gives the application the transaction of its claim: business writes, claim and
// outcome are one commit. Any number of processes of one host may share the file;
// leases are judged by that host's clock. Setting the clock forward makes takeovers
// come early; token and fence keep the one who was taken over from completing.
//
// # Writers
//
// SQLite has one writer at a time. The small writes of concurrent calls share one
// transaction and one flush: the leader of a group runs them all. A transaction of
// the application has the writer to itself until it ends, and everything that has
// to write waits for it: as long as its context and [WithBusyTimeout] allow, then
// it gets an error that matches [driver.ErrRetryable]. A duplicate of the key that
// the transaction holds is answered at once by the same Driver; another process
// waits. Reading a finished record takes no flush and no lock, and waits for nobody.
// [Driver.BeginClaim] takes a key for new that its Driver has not seen complete: it
// tries to get the write lock first, for 2 ms and only if no call of its own Driver has
// it, and reads the record if it does not. Give one file one Driver per process: two of
// them wait for each other.
//
// # Transactions in groups
//
// Under [GroupTransactions] the transactions that [Driver.BeginClaim] and
// [Driver.BeginComplete] open run one after another inside one of SQLite, each inside a
// savepoint. The first that completes waits until those have run that were in line by
// then, at most 256, and commits for all of them; no timer is involved. What holds
// without groups holds here, with these differences:
//
//   - Nobody is answered before the shared commit. It commits all of its members or, when it
//     fails or the process dies, none.
//   - A member sees what those before it wrote, which is committed with its own writes or
//     not at all. One that rolls back undoes its own.
//   - A member that ends the transaction of all, by SQL or by a statement whose failure makes
//     SQLite roll back, ends the group: the members before it get an error that matches
//     [driver.ErrRetryable], or none when it was a COMMIT, which had their outcomes. So
//     they do when the shared commit fails, for whatever reason and whoever's; alone, the
//     one to blame then gets the error itself.
//   - When a member keeps those that have completed waiting beyond [WithBusyTimeout], the
//     transaction is rolled back, and they and the member get such an error: it may be
//     waiting for them.
//   - The handle is a *sql.Tx that is good for its member's turn only; what is kept of it
//     afterwards cannot write. Its Commit commits nothing. Statements prepared outside it
//     cannot be used in it (Tx.Stmt). The end of a context interrupts no statement in it, for
//     SQLite would roll back the group.
//   - A group needs a second connection: with SetMaxOpenConns(1) every group is of one.
//
// An operation nested in the transaction of another would wait for itself:
// package idem refuses it. With SetMaxOpenConns(1), business code inside a
// transaction must use that transaction only.
//
// # Configuration
//
// The driver works with every DSN. It rests on no setting of a pooled connection:
// it retries SQLITE_BUSY itself, takes the write lock whatever _txlock says before it
// reads or writes a record in a transaction, and reads synchronous and journal_mode on
// the very connection that it is about to write with. It refuses, with
// [driver.ErrUnsafeConfig]: databases in memory (each connection would have its
// own), journal_mode OFF and MEMORY (a crash corrupts the file), synchronous OFF,
// and synchronous NORMAL unless [AllowLossOnPowerFailure] is given. WAL is
// recommended; DELETE, TRUNCATE and PERSIST work, but there a reader may hold up a
// commit, and _txlock=exclusive keeps the readers of other processes waiting for as
// long as a transaction of the application takes.
//
// # Hazards of SQLite
//
// Keep the file on a local file system: locks of NFS and SMB lose commits. Do not
// open, copy or delete the live file with anything but SQLite: closing any
// descriptor of it in the process drops the process's locks
// (MODERNC_SQLITE_OFD_LOCK=1 guards against that on Linux). A reader that never
// ends keeps the write-ahead log growing.
//
// Some errors of a statement make SQLite roll the whole transaction back: a full disk,
// an interrupted write, ON CONFLICT ROLLBACK. Business code that ignores such an
// error goes on outside any transaction. [driver.Tx.Commit] then fails and stores
// no outcome, but what was written after that error is SQLite's to keep.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite" of Open

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/internal/finished"
	"github.com/idem-go/idem/internal/groupcommit"
)

// Defaults of the options.
const (
	DefaultTable       = "idem_keys"
	DefaultBusyTimeout = 5 * time.Second

	minBusyTimeout = 10 * time.Millisecond
)

// poolSize bounds the connections of [Open]: one writes, the others read.
const poolSize = 16

// Driver keeps records in a table of an SQLite database. It is safe for concurrent use.
type Driver struct {
	db          *sql.DB
	owned       bool
	table       string
	namespace   string
	secret      []byte
	busyTimeout time.Duration
	allowNormal bool
	names       *strings.Replacer

	group    *groupcommit.Group[*txn]
	held     groupcommit.Held
	finished finished.Keys
	wal      atomic.Bool   // the journal was a write-ahead log when a transaction began last
	turn     chan struct{} // holds one element while a transaction of a group runs; nil without groups
	joint    *joint        // guarded by the turn

	checking chan struct{} // a mutex that a context can end the wait for
	ready    atomic.Pointer[statements]
}

var (
	_ driver.TxDriver[*sql.Tx] = (*Driver)(nil)
	_ driver.Lister            = (*Driver)(nil)
	_ driver.Retrier           = (*Driver)(nil)
)

// Option changes a Driver under construction.
type Option func(*Driver)

// WithTable names the table, in the main schema. Its index and its version are named
// after it. The default is [DefaultTable]. An empty name is ignored.
func WithTable(name string) Option {
	return func(d *Driver) {
		if name != "" {
			d.table = name
		}
	}
}

// WithNamespace separates applications that share a table: the same key in two
// namespaces is two records. The default is the empty namespace.
func WithNamespace(name string) Option { return func(d *Driver) { d.namespace = name } }

// WithSecret stores keys as their HMAC under secret, and neither scope nor ID in
// readable form: nobody who can read the file can test a guessed key, and
// [Driver.List] returns records without their keys. Changing the secret forgets
// every record. An empty secret changes nothing.
func WithSecret(secret []byte) Option {
	return func(d *Driver) { d.secret = append([]byte(nil), secret...) }
}

// WithBusyTimeout bounds how long a call waits for the writer before it returns
// an error that matches [driver.ErrRetryable]. The default is [DefaultBusyTimeout]; less
// than 10 ms means 10 ms. A busy_timeout of the DSN never makes a call wait longer.
func WithBusyTimeout(d time.Duration) Option {
	return func(dr *Driver) { dr.busyTimeout = max(d, minBusyTimeout) }
}

// AllowLossOnPowerFailure accepts connections with synchronous=NORMAL: a power
// failure then forgets claims and outcomes granted since the last checkpoint, and
// their operations run again. A crash of the process alone loses nothing. For
// operations whose repetition is cheap.
func AllowLossOnPowerFailure() Option { return func(d *Driver) { d.allowNormal = true } }

// GroupTransactions lets concurrent transactions of the application share a commit, and
// so a flush; "Transactions in groups" in the documentation of the package says what
// changes for them. It is for many short transactions at the same time.
func GroupTransactions() Option { return func(d *Driver) { d.turn = make(chan struct{}, 1) } }

// New returns a Driver over db, opened with the database/sql driver of
// modernc.org/sqlite, which stays the caller's to close. The first call checks the
// configuration as [Driver.Check] does; the table has to exist by then, from
// [Schema] or [Driver.Migrate].
func New(db *sql.DB, opts ...Option) *Driver {
	d := &Driver{db: db, table: DefaultTable, busyTimeout: DefaultBusyTimeout, checking: make(chan struct{}, 1)}
	for _, o := range opts {
		o(d)
	}
	d.names = strings.NewReplacer(
		DefaultTable+"_version", quote(d.table+"_version"),
		DefaultTable+"_due", quote(d.table+"_due"),
		DefaultTable, quote(d.table),
	)
	d.group = groupcommit.New[*txn](writer{d})
	return d
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// sql puts the names of the driver's tables into a statement written for the default ones.
func (d *Driver) sql(query string) string { return d.names.Replace(query) }

// Open opens or creates the file at path with write-ahead log, synchronous=FULL,
// immediate transactions and a busy timeout for the application's own statements,
// and creates the table when it is missing. Close the Driver to close the database.
// path is a path, not a DSN; databases in memory are refused.
func Open(path string, opts ...Option) (*Driver, error) {
	if path == "" || strings.HasPrefix(path, ":memory:") || strings.HasPrefix(path, "file:") {
		return nil, fmt.Errorf("sqlite: %w: %q is not the path of a file; for a DSN use sql.Open and New", driver.ErrUnsafeConfig, path)
	}
	d := New(nil, opts...)
	name := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(filepath.ToSlash(filepath.Clean(path)))
	db, err := sql.Open("sqlite", fmt.Sprintf(
		"file:%s?_txlock=immediate&_pragma=busy_timeout(%d)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)",
		name, d.busyTimeout.Milliseconds()))
	if err != nil {
		return nil, fmt.Errorf("sqlite: opening %s: %w", path, err)
	}
	db.SetMaxOpenConns(poolSize)
	db.SetMaxIdleConns(poolSize)
	d.db, d.owned = db, true
	ctx := context.Background()
	if err := d.Migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: opening %s: %w", path, err), db.Close())
	}
	if err := d.Check(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return d, nil
}

// DB returns the database, for the application's own statements.
func (d *Driver) DB() *sql.DB { return d.db }

// Close releases the driver's prepared statements, and closes the database when
// [Open] opened it. Calls that come later may fail.
func (d *Driver) Close() error {
	var errs []error
	if st := d.ready.Swap(nil); st != nil {
		for _, s := range st {
			errs = append(errs, s.Close())
		}
	}
	if d.owned {
		errs = append(errs, d.db.Close())
	}
	return errors.Join(errs...)
}

// Guarantees implements [driver.Driver].
func (d *Driver) Guarantees() driver.Guarantees {
	durable := driver.DurableAlways
	if d.allowNormal {
		durable = driver.DurableConfigured
	}
	return driver.Guarantees{
		Backend:                "SQLite",
		DurableClaim:           durable,
		AtomicWithBusinessData: true,
		Clock:                  driver.HostClock,
		Sharing:                driver.SharedByProcesses,
		TxDuplicate:            driver.TxDuplicateFailFastLocal,
		SingleWriter:           true,
		Failover:               "one file on one host: there is none",
		WhenFull:               "claims and commits fail and are rolled back; nothing acknowledged is lost",
	}
}

func at(now time.Time) time.Time {
	if now.IsZero() {
		now = time.Now()
	}
	return driver.Micro(now)
}

func (d *Driver) hash(k driver.Key) driver.KeyHash { return k.Hash(d.namespace, d.secret) }
