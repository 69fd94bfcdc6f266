package postgres

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/internal/finished"
)

// DefaultTable is the table that a driver uses without [WithTable].
const DefaultTable = "idem_records"

// DefaultIdleTimeout is how long a transaction may be idle without [WithIdleTimeout].
const DefaultIdleTimeout = 30 * time.Second

// Driver stores records in one table. It is safe for concurrent use. Two drivers
// share keys when they share the table, the namespace and the secret.
type Driver struct {
	pool *pgxpool.Pool
	options

	table     string   // quoted
	templates sync.Map // SQL template to rendered
	checked   atomic.Bool
	oid       atomic.Uint32 // of the table, once checked
	finished  finished.Keys

	sqlLock                         string
	begin, save, keep, undo, commit statement
	insertOutcome, completeOutcome  statement // with the types of their parameters
}

var (
	_ driver.Driver           = (*Driver)(nil)
	_ driver.TxDriver[pgx.Tx] = (*Driver)(nil)
	_ driver.Lister           = (*Driver)(nil)
	_ driver.Retrier          = (*Driver)(nil)
)

type options struct {
	name      string
	namespace string
	secret    []byte
	idle      time.Duration
	tx        pgx.TxOptions
	async     bool
	patience  time.Duration
	err       error
}

// Option changes a default of [New].
type Option func(*options)

// WithTable names the table, [DefaultTable] by default: "name" or "schema.name",
// spelled as in the catalog and quoted by the driver. A name without a schema is
// looked up in the search_path of the pool's connections.
func WithTable(name string) Option { return func(o *options) { o.name = name } }

// WithNamespace separates applications that share a table: their keys never
// meet. The default is empty.
func WithNamespace(namespace string) Option {
	return func(o *options) { o.namespace = namespace }
}

// WithSecret makes the primary key an HMAC under secret and leaves the columns
// scope and id empty, so that whoever reads the table can neither read keys nor
// test a guess. Listed records then have no key. The secret cannot be changed
// while records are kept: under another secret every key is absent.
func WithSecret(secret []byte) Option {
	return func(o *options) { o.secret = append([]byte(nil), secret...) }
}

// WithIdleTimeout bounds how long a transaction of the driver may be idle between
// two statements before the server ends it and frees the key; the default is
// [DefaultIdleTimeout], the unit a whole millisecond. 0 leaves the server's own
// setting, which is to wait for ever unless configured.
func WithIdleTimeout(d time.Duration) Option { return func(o *options) { o.idle = d } }

// WithTxOptions sets how transactions begin, for instance their isolation level.
// The access mode may not be read only.
func WithTxOptions(tx pgx.TxOptions) Option { return func(o *options) { o.tx = tx } }

// AllowAsyncCommit accepts a server whose synchronous_commit is off: granted
// claims and outcomes of the last moments before a crash of the server are then
// lost, and their operations can run again.
func AllowAsyncCommit() Option { return func(o *options) { o.async = true } }

// New returns a driver over pool. It does no I/O; mistakes in the options are
// returned by the first call, and by [Driver.Check]. The pool stays the caller's
// to close. It should have a connection for every transaction that runs at the
// same time, and some more for those who ask meanwhile.
func New(pool *pgxpool.Pool, opts ...Option) *Driver {
	d := &Driver{pool: pool, options: options{name: DefaultTable, idle: DefaultIdleTimeout, patience: patience}}
	for _, o := range opts {
		o(&d.options)
	}
	d.table, d.err = quoted(d.name)
	switch {
	case d.err != nil:
	case pool == nil:
		d.err = fmt.Errorf("%w: the pool is nil", driver.ErrInvalidParams)
	case d.idle < 0 || d.idle%time.Millisecond != 0 || d.idle > maxIdle:
		d.err = fmt.Errorf("%w: the idle timeout is %v, want 0 or whole milliseconds up to %v", driver.ErrInvalidParams, d.idle, maxIdle)
	case d.tx.AccessMode == pgx.ReadOnly:
		d.err = fmt.Errorf("%w: transactions that are read only cannot store an outcome", driver.ErrInvalidParams)
	case len(d.namespace) > maxNamespace || strings.ContainsFunc(d.namespace, func(r rune) bool { return r < ' ' || r > '~' }):
		d.err = fmt.Errorf("%w: the namespace is not printable ASCII of at most %d bytes", driver.ErrInvalidParams, maxNamespace)
	}
	d.sqlLock = lockSQL(d.idle)
	d.begin, d.commit = d.stmt(beginSQL(d.tx)), d.stmt(cmp.Or(d.tx.CommitQuery, "COMMIT"))
	d.save, d.keep, d.undo = d.stmt(sqlSave), d.stmt(sqlKeep), d.stmt(sqlUndo)
	d.insertOutcome = d.stmt(sqlInsertOutcome, insertArgs(driver.Record{}, d, driver.CompleteParams{})...)
	d.completeOutcome = d.stmt(sqlCompleteOutcome, append(d.holder(driver.HolderParams{}), outcome(driver.CompleteParams{})...)...)
	return d
}

const (
	maxIdle      = 24 * time.Hour
	maxNamespace = 255
)

func quoted(name string) (string, error) {
	parts := strings.Split(name, ".")
	for _, p := range parts {
		// PostgreSQL cuts longer identifiers; the index's name is longer than the table's.
		if p == "" || len(p)+len("_purge") > 63 || strings.ContainsRune(p, 0) {
			parts = nil
		}
	}
	if n := len(parts); n != 1 && n != 2 {
		return "", fmt.Errorf("%w: the table's name is %q, want name or schema.name", driver.ErrInvalidParams, name)
	}
	return pgx.Identifier(parts).Sanitize(), nil
}

// Guarantees implements [driver.Driver].
func (d *Driver) Guarantees() driver.Guarantees {
	g := driver.Guarantees{
		Backend:                "PostgreSQL",
		DurableClaim:           driver.DurableAlways,
		AtomicWithBusinessData: true,
		Clock:                  driver.ServerClock,
		Sharing:                driver.SharedByHosts,
		TxDuplicate:            driver.TxDuplicateFailFast,
		Failover:               "nothing with a synchronous standby; otherwise what was not yet replicated",
		WhenFull:               "claims and completions fail; an open transaction is rolled back",
	}
	if d.async {
		g.DurableClaim = driver.DurableConfigured
	}
	return g
}

// rendered is a template with the name of the driver's table.
type rendered struct{ sql, name string }

func (d *Driver) render(template string) rendered {
	if r, ok := d.templates.Load(template); ok {
		return r.(rendered)
	}
	sql := strings.ReplaceAll(template, "{table}", d.table)
	r := rendered{sql, nameOf(sql)}
	d.templates.Store(template, r)
	return r
}

// sql returns a statement for the driver's table.
func (d *Driver) sql(template string) string { return d.render(template).sql }

func (d *Driver) hash(k driver.Key) driver.KeyHash { return k.Hash(d.namespace, d.secret) }

// lock returns the number of the advisory lock of a key: half of its hash, mixed
// with the table, so that equal keys of two tables do not keep each other waiting.
func (d *Driver) lock(kh driver.KeyHash) int64 {
	const odd = 0x9E3779B97F4A7C15
	return int64(binary.BigEndian.Uint64(kh[:8]) ^ uint64(d.oid.Load())*odd)
}

// stored returns what the columns scope and id hold.
func (d *Driver) stored(k driver.Key) driver.Key {
	if len(d.secret) > 0 {
		return driver.Key{}
	}
	return k
}
