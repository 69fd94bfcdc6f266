// Package bolt is a driver that keeps idempotency records in a bbolt file
// (go.etcd.io/bbolt), beside the buckets of the application.
//
// # What it promises
//
// A claim and an outcome are on disk when the call returns. [Driver.BeginClaim]
// gives the application the transaction of its claim: business writes, claim and
// outcome are one commit. The file belongs to one process; leases are judged by
// that machine's clock. Setting the clock forward makes takeovers come early; token
// and fence keep the one who was taken over from completing.
//
// # Writers
//
// bbolt has one writer at a time. The small writes of concurrent calls share one
// transaction and one flush (the leader of a group runs them all; DB.Batch, which
// waits on a timer and runs functions twice, is never used). A transaction of the
// application has the writer to itself until it ends, and everything that has to
// write waits for it, as long as its context allows. A duplicate of the key that
// the transaction holds is answered at once, and reading a finished record waits
// for nobody, with one exception: bbolt maps a file that has grown anew, and then
// lets its last reader leave before the next comes in. A reader that takes long,
// such as a backup, keeps all others waiting then, as long as their contexts
// allow; Options.InitialMmapSize makes that rare.
//
// An operation nested in the transaction of another would wait for itself:
// package idem refuses it. Business code inside a transaction must not call
// DB.Update or DB.Begin(true) either.
//
// # Configuration
//
// NoSync and ReadOnly are refused with [driver.ErrUnsafeConfig]. NoFreelistSync is
// fine: commits are about a tenth faster, and opening the file scans it. The file
// never shrinks: pages of purged records are reused.
package bolt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/internal/groupcommit"
)

// DefaultBucket is the bucket in which the driver keeps everything it stores.
const DefaultBucket = "idem"

// openTimeout is how long Open waits for the file lock of another process.
const openTimeout = time.Second

// ErrLocked is matched by the error of [Open] when another process, or another
// bbolt.DB of this one, has the file open.
var ErrLocked = errors.New("the file is open elsewhere")

// Driver keeps records in a bbolt database. It is safe for concurrent use. Of two
// Drivers over one database each waits for the other's transactions; use one.
type Driver struct {
	db        *bbolt.DB
	owned     bool
	bucket    []byte
	namespace string
	secret    []byte
	group     *groupcommit.Group[*bbolt.Tx]
	held      groupcommit.Held
}

var (
	_ driver.TxDriver[*bbolt.Tx] = (*Driver)(nil)
	_ driver.Lister              = (*Driver)(nil)
)

// Option changes a Driver under construction.
type Option func(*Driver)

// WithBucket names the top-level bucket that the driver keeps for itself. The
// default is [DefaultBucket]. An empty name is ignored.
func WithBucket(name string) Option {
	return func(d *Driver) {
		if name != "" {
			d.bucket = []byte(name)
		}
	}
}

// WithNamespace separates applications that share a bucket: the same key in two
// namespaces is two records. The default is the empty namespace.
func WithNamespace(name string) Option { return func(d *Driver) { d.namespace = name } }

// WithSecret stores keys as their HMAC under secret, and neither scope nor ID in
// readable form: nobody who can read the file can test a guessed key, and
// [Driver.List] returns records without their keys. Changing the secret forgets
// every record. An empty secret changes nothing.
func WithSecret(secret []byte) Option {
	return func(d *Driver) { d.secret = append([]byte(nil), secret...) }
}

// New returns a Driver over an open database, which stays the caller's to close.
// The bucket is created with the first write.
func New(db *bbolt.DB, opts ...Option) *Driver {
	d := &Driver{db: db, bucket: []byte(DefaultBucket)}
	for _, o := range opts {
		o(d)
	}
	d.group = groupcommit.New[*bbolt.Tx](writer{d})
	return d
}

// Open opens the file at path, creating it with mode 0600, with the map-based free
// list. It waits one second for the lock of another process and then returns an error that
// matches [ErrLocked]. A file that has been cut short is an error, too. Close the
// Driver to close the file.
func Open(path string, opts ...Option) (*Driver, error) {
	if err := whole(path); err != nil {
		return nil, fmt.Errorf("bolt: opening %s: %w", path, err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: openTimeout, FreelistType: bbolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("bolt: %s: %w (a bbolt file belongs to one process): %w", path, ErrLocked, err)
	}
	if err != nil {
		return nil, fmt.Errorf("bolt: opening %s: %w", path, err)
	}
	d := New(db, opts...)
	d.owned = true
	if err := d.Check(context.Background()); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return d, nil
}

// DB returns the database, for the application's own transactions.
func (d *Driver) DB() *bbolt.DB { return d.db }

// Close closes a database opened by [Open], after the transactions in progress; calls
// that come later, or still wait, get bbolt's ErrDatabaseNotOpen. After [New] it
// does nothing.
func (d *Driver) Close() error {
	if !d.owned {
		return nil
	}
	return d.db.Close()
}

// Check reports, as an error that matches [driver.ErrUnsafeConfig], a database
// opened with NoSync or ReadOnly, and as one that matches [driver.ErrNewerVersion]
// one laid out by a newer version of this package. It writes nothing.
func (d *Driver) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.safe(); err != nil {
		return err
	}
	return d.view(ctx, func(b bucket) error { return nil })
}

func (d *Driver) safe() error {
	switch {
	case d.db.IsReadOnly():
		return fmt.Errorf("bolt: %w: the file is open read-only; open it without Options.ReadOnly", driver.ErrUnsafeConfig)
	case d.db.NoSync:
		return fmt.Errorf("bolt: %w: NoSync forgets granted claims on a power failure; open the file without Options.NoSync", driver.ErrUnsafeConfig)
	}
	return nil
}

// Guarantees implements [driver.Driver].
func (d *Driver) Guarantees() driver.Guarantees {
	return driver.Guarantees{
		Backend:                "bbolt",
		DurableClaim:           driver.DurableAlways,
		AtomicWithBusinessData: true,
		Clock:                  driver.HostClock,
		Sharing:                driver.SharedByGoroutines,
		TxDuplicate:            driver.TxDuplicateFailFastLocal,
		SingleWriter:           true,
		Failover:               "one file on one host: there is none",
		WhenFull:               "claims and commits fail and are rolled back; deleting still works",
	}
}

func at(now time.Time) time.Time {
	if now.IsZero() {
		now = time.Now()
	}
	return driver.Micro(now)
}

func (d *Driver) hash(k driver.Key) driver.KeyHash { return k.Hash(d.namespace, d.secret) }

// writer opens and ends bbolt's write transactions.
type writer struct{ d *Driver }

// Begin waits for bbolt's writer lock, which the application's own transactions
// take as well.
func (w writer) Begin(ctx context.Context) (*bbolt.Tx, error) {
	if err := w.d.safe(); err != nil {
		return nil, err
	}
	return w.d.open(ctx, true)
}

// open begins a transaction of bbolt. Its locks know no context: that of the writer,
// and that under which a growing file is mapped anew once its readers have left. So a
// goroutine waits for them; when ctx ends first, that goroutine gives the transaction
// back as soon as it has it.
func (d *Driver) open(ctx context.Context, writable bool) (*bbolt.Tx, error) {
	if ctx.Done() == nil {
		return d.db.Begin(writable)
	}
	type opened struct {
		tx  *bbolt.Tx
		err error
	}
	ch := make(chan opened)
	go func() {
		tx, err := d.db.Begin(writable)
		select {
		case ch <- opened{tx, err}:
		case <-ctx.Done():
			if err == nil {
				_ = tx.Rollback()
			}
		}
	}()
	select {
	case o := <-ch:
		return o.tx, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (w writer) Commit(tx *bbolt.Tx) error { return tx.Commit() }

func (w writer) Rollback(tx *bbolt.Tx) { _ = tx.Rollback() }
