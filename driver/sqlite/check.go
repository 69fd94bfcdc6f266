package sqlite

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/idem-go/idem/driver"
)

// Schema creates the table, its index and its version under the default name. It
// may be run again. Paste it into the application's migrations, or call [Driver.Migrate].
//
//go:embed schema.sql
var Schema string

const (
	schemaVersion = 1

	// The first release without the bug that corrupts a write-ahead log when it is
	// reset during a checkpoint.
	minVersion = 3_051_003
)

// Reads the catalogue in a read transaction of its own: no lock.
// A table that is being created by another connection is not seen.
const tableExistsSQL = `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?`

// Reads one row in a read transaction of its own: no lock.
// The row is written once, by the migration.
const versionSQL = `SELECT version FROM idem_keys_version`

// Migrate creates what is missing of the table. It looks first, and takes no lock when
// nothing is. It returns an error that matches [driver.ErrNewerVersion] when a newer
// version of this package made the table.
func (d *Driver) Migrate(ctx context.Context) error {
	limit, cancel := d.patient(ctx)
	defer cancel()
	err := d.checkTable(limit)
	if !errors.Is(err, errNoTable) {
		return d.translate(ctx, limit, err)
	}
	err = retry(limit, func() error {
		t, err := d.beginOn(limit, nil, func(*txn, context.Context) error { return nil })
		if err != nil {
			return err
		}
		// Under a deferred BEGIN the first CREATE takes the write lock, and IF NOT
		// EXISTS settles a race with another process.
		if _, err := t.tx.ExecContext(t.ctx, d.sql(Schema)); err != nil {
			_ = t.rollback()
			return err
		}
		return t.commit(t.ctx, limit)
	})
	if err == nil {
		err = d.checkTable(limit)
	}
	return d.translate(ctx, limit, err)
}

var errNoTable = errors.New("the table of idempotency records does not exist")

// checkTable returns errNoTable when there is nothing.
func (d *Driver) checkTable(limit context.Context) error {
	return retry(limit, func() error {
		for _, name := range [...]string{d.table, d.table + "_version"} {
			var n int
			if err := d.db.QueryRowContext(limit, tableExistsSQL, name).Scan(&n); err != nil {
				return err
			}
			if n == 0 {
				return fmt.Errorf("sqlite: %w: no table %s; run Migrate, or Schema in your migrations", errNoTable, name)
			}
		}
		var v int
		if err := d.db.QueryRowContext(limit, d.sql(versionSQL)).Scan(&v); err != nil {
			return err
		}
		if v > schemaVersion {
			return fmt.Errorf("sqlite: %w: table version %d, this is %d", driver.ErrNewerVersion, v, schemaVersion)
		}
		return nil
	})
}

// Check reports, as an error that matches [driver.ErrUnsafeConfig], a
// configuration under which the promises of the package would not hold, and as one
// that matches [driver.ErrNewerVersion] a table made by a newer version of this
// package. It writes nothing. The first call of every other method does the same.
func (d *Driver) Check(ctx context.Context) error {
	limit, cancel := d.patient(ctx)
	defer cancel()
	return d.translate(ctx, limit, d.check(limit))
}

func (d *Driver) check(limit context.Context) error {
	err := retry(limit, func() error {
		conn, err := d.db.Conn(limit)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		return d.checkConn(limit, conn)
	})
	if err != nil {
		return err
	}
	return d.checkTable(limit)
}

// Reads no page: no lock.
// Three facts about the library and the file behind a connection.
const facts = `SELECT sqlite_version(), file FROM pragma_database_list WHERE name = 'main'`

func (d *Driver) checkConn(ctx context.Context, conn *sql.Conn) error {
	var version, file string
	if err := conn.QueryRowContext(ctx, facts).Scan(&version, &file); err != nil {
		return err
	}
	if number(version) < minVersion {
		return unsafe("SQLite %s can corrupt its write-ahead log; use 3.51.3 or newer", version)
	}
	if file == "" {
		return unsafe("the database is in memory or temporary: every connection would have its own; use a file")
	}
	_, err := d.checkPragmas(ctx, conn, func() *sql.Row { return conn.QueryRowContext(ctx, journalModeSQL) })
	return err
}

// Read no page: no lock.
// They belong to the connection, and any code may have changed them since it was opened.
const (
	synchronousSQL = `PRAGMA main.synchronous`
	journalModeSQL = `PRAGMA main.journal_mode`
)

type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// checkPragmas reads what durability and rollback rest on, on the connection that is
// about to write, and whether its journal is a write-ahead log. SQLite answers
// synchronousSQL when it is compiled, so that it cannot be prepared.
func (d *Driver) checkPragmas(ctx context.Context, conn queryer, journalMode func() *sql.Row) (wal bool, err error) {
	var synchronous int
	if err := conn.QueryRowContext(ctx, synchronousSQL).Scan(&synchronous); err != nil {
		return false, err
	}
	switch {
	case synchronous == 0:
		return false, unsafe("synchronous is OFF: a power failure may corrupt the file; use _pragma=synchronous(FULL)")
	case synchronous == 1 && !d.allowNormal:
		return false, unsafe("synchronous is NORMAL: a power failure forgets granted claims; use _pragma=synchronous(FULL), or AllowLossOnPowerFailure")
	}
	var mode string
	if err := journalMode().Scan(&mode); err != nil {
		return false, err
	}
	switch mode = strings.ToLower(mode); mode {
	case "wal", "delete", "truncate", "persist":
		return mode == "wal", nil
	}
	return false, unsafe("journal_mode is %s: a crash, or a rollback, corrupts the file; use _pragma=journal_mode(WAL)", mode)
}

func unsafe(format string, args ...any) error {
	return fmt.Errorf("sqlite: %w: %s", driver.ErrUnsafeConfig, fmt.Sprintf(format, args...))
}

// number turns "3.54.1" into 3054001, and what it cannot read into 0.
func number(version string) int {
	var major, minor, patch int
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n < 2 {
		return 0
	}
	return major*1_000_000 + minor*1_000 + patch
}
