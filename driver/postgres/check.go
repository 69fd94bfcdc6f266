package postgres

import (
	"context"
	_ "embed" // for the schema
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/driver"
)

// Schema is the SQL that creates the table [DefaultTable], for migrations of
// one's own. It may be run again. [Driver.Migrate] runs it for the driver's table.
//
//go:embed schema.sql
var Schema string

const (
	schemaVersion = 1
	versionPrefix = "idem schema "
)

// columns are those of schemaVersion, with the types that the driver reads and writes.
var columns = map[string]string{
	"kh": "uuid", "state": "smallint", "hold": "boolean", "attempt": "integer", "fence": "bigint", "token": "uuid",
	"created_at": "timestamp with time zone", "lease_until": "timestamp with time zone", "completed_at": "timestamp with time zone",
	"retain_until": "timestamp with time zone", "grace_until": "timestamp with time zone", "purge_after": "timestamp with time zone",
	"namespace": "text", "scope": "text", "id": "text", "operation": "text", "summary": "text", "note": "text",
	"fingerprint": "bytea", "result": "bytea",
}

// sqlServer and sqlColumns take no lock that anybody waits for. to_regclass sees a
// table that was committed a moment ago, and the statement's snapshot may not see
// its index yet: pg_class is asked, too, so that such a table is not there at all.
const (
	sqlServer = `SELECT t.oid::int8, obj_description(t.oid, 'pg_class'), current_setting('synchronous_commit'),
			current_setting('transaction_read_only')::bool,
			t.oid IS NULL OR has_table_privilege(t.oid, 'SELECT') AND has_table_privilege(t.oid, 'INSERT')
				AND has_table_privilege(t.oid, 'UPDATE') AND has_table_privilege(t.oid, 'DELETE'),
			EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
				WHERE i.indrelid = t.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indnkeyatts = 1 AND a.attname = 'kh'),
			coalesce((SELECT relpersistence::text FROM pg_class WHERE pg_class.oid = t.oid), 'p')
		FROM (SELECT (SELECT oid FROM pg_class WHERE oid = to_regclass($1)) AS oid) t`
	sqlColumns = `SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
		WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`
)

// errNoTable is what check finds when there is nothing under the table's name.
var errNoTable = errors.New("the table does not exist")

// ready makes sure, before the first verb and without a round trip afterwards,
// that the store is what the driver needs.
func (d *Driver) ready(ctx context.Context) error {
	if d.checked.Load() {
		return nil
	}
	return d.Check(ctx)
}

// Check makes sure that the table is there, with the columns and privileges that
// the driver needs, and that the server accepts and keeps writes. The driver does
// so by itself before its first verb, and again until it has succeeded once; call
// it at start-up to learn of mistakes early. What has to be changed is said by an
// error that matches driver.ErrUnsafeConfig, or driver.ErrNewerVersion when the
// schema is of a newer version of this package.
func (d *Driver) Check(ctx context.Context) error {
	if d.err != nil {
		return d.err
	}
	err := d.once(ctx, func(s *session) error { return d.check(ctx, s) })
	if errors.Is(err, errNoTable) {
		return fmt.Errorf("%w: %w: %s; call Migrate or apply Schema", driver.ErrUnsafeConfig, err, d.table)
	}
	return err
}

func (d *Driver) check(ctx context.Context, s *session) error {
	results, err := s.exec(ctx, stmt(sqlServer, text(d.table)), stmt(sqlColumns, text(d.table)))
	if err != nil {
		return err
	}
	row := only(results[0])
	oid, comment, commit, readOnly, allowed, unique := row.int8(), row.text(), row.text(), row.bool(), row.bool(), row.bool()
	persistence := row.text()
	if row.err != nil {
		return row.err
	}
	unsafe := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", driver.ErrUnsafeConfig, fmt.Sprintf(format, args...))
	}
	switch {
	case readOnly:
		return readOnlyError{}
	case commit == "off" && !d.async:
		return unsafe("synchronous_commit is off; set it on, for the role if not for the server, or use AllowAsyncCommit")
	case oid == 0:
		return errNoTable
	}
	// A schema pasted without its comment is judged by its columns alone.
	if v, ok := strings.CutPrefix(comment, versionPrefix); ok {
		if n, err := strconv.Atoi(v); err == nil && n > schemaVersion {
			return fmt.Errorf("%w: the schema of %s is version %d, this is %d", driver.ErrNewerVersion, d.table, n, schemaVersion)
		}
	}
	found := make(map[string]string)
	for _, r := range results[1].rows {
		found[string(r[0])] = string(r[1])
	}
	for name, kind := range columns {
		if found[name] != kind {
			return unsafe("column %s of %s is %q, want %q; see Schema", name, d.table, found[name], kind)
		}
	}
	switch {
	case !unique:
		return unsafe("column kh of %s is not the primary key; see Schema", d.table)
	case persistence != "p":
		return unsafe("the table %s is unlogged or temporary, and empty after a crash; use ALTER TABLE … SET LOGGED", d.table)
	case !allowed:
		return unsafe("the role needs SELECT, INSERT, UPDATE and DELETE on %s", d.table)
	}
	d.oid.Store(uint32(oid))
	d.checked.Store(true)
	return nil
}

// Migrate creates the table and its index when they are not there. It looks
// first, so that a role that may not create anything can call it once they are. Any
// number of processes may call it at the same time. It changes no table that it
// finds; an unfit one is reported as by [Driver.Check].
func (d *Driver) Migrate(ctx context.Context) error {
	if d.err != nil {
		return d.err
	}
	err := d.once(ctx, func(s *session) error {
		err := d.check(ctx, s)
		if !errors.Is(err, errNoTable) {
			return err
		}
		// Sent as one string, the statements are one transaction. The lock makes
		// the others wait and then find the table.
		create := fmt.Sprintf("SELECT pg_advisory_xact_lock(%d);\n%s", migrateLock, d.schema())
		if _, err := s.conn.Exec(ctx, create).ReadAll(); err != nil {
			return fmt.Errorf("create %s: %w", d.table, err)
		}
		return d.check(ctx, s)
	})
	if errors.Is(err, errNoTable) {
		return fmt.Errorf("%w: the search_path of the role does not lead to %s", driver.ErrUnsafeConfig, d.table)
	}
	return err
}

// migrateLock is the advisory lock of Migrate: "idem" in ASCII.
const migrateLock = 0x6964656d

// schema returns Schema for the driver's table. An index lives in the schema of
// its table, and is named without it.
func (d *Driver) schema() string {
	parts := strings.Split(d.name, ".")
	index := pgx.Identifier{parts[len(parts)-1] + "_purge"}.Sanitize()
	return strings.NewReplacer(DefaultTable+"_purge", index, DefaultTable, d.table).Replace(Schema)
}
