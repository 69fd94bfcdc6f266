package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// handle is the transaction that the application works with. It passes
// everything on to the connection, except that it does not let the application end
// the transaction, and that it is of no use once the driver has ended it.
type handle struct {
	conn   *pgx.Conn
	closed atomic.Bool
	// unsure says that the application may have ended prepared statements of the
	// session, so that Commit must not rely on them: an error would undo the work.
	unsure     bool
	savepoints int
	large      pgx.Tx // for large objects: made by pgx on first use
}

var (
	_ pgx.Tx = (*handle)(nil)
	_ pgx.Tx = (*nested)(nil)
)

func newHandle(conn *pgx.Conn) *handle { return &handle{conn: conn} }

func (h *handle) close() { h.closed.Store(true) }

func (h *handle) err() error {
	if h.closed.Load() {
		return pgx.ErrTxClosed
	}
	return nil
}

// Begin sets a savepoint. Commit of what it returns releases it, Rollback goes back to it.
func (h *handle) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := h.err(); err != nil {
		return nil, err
	}
	h.savepoints++
	name := fmt.Sprintf("idem_sp_%d", h.savepoints)
	if _, err := h.conn.Exec(ctx, "SAVEPOINT "+name); err != nil {
		return nil, err
	}
	return &nested{handle: h, name: name}, nil
}

// Commit refuses: see [ErrManagedTx].
func (h *handle) Commit(context.Context) error { return cmpErr(h.err(), ErrManagedTx) }

// Rollback refuses: see [ErrManagedTx].
func (h *handle) Rollback(context.Context) error { return cmpErr(h.err(), ErrManagedTx) }

func (h *handle) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := h.err(); err != nil {
		return 0, err
	}
	return h.conn.CopyFrom(ctx, table, columns, rows)
}

func (h *handle) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := h.err(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	// What Batch.BeginTx queues would end with a commit of this transaction.
	if q := b.QueuedQueries; len(q) > 0 && len(q[0].SQL) >= 5 && strings.EqualFold(q[0].SQL[:5], "BEGIN") {
		return pgx.FailedBatchResults(b, ErrManagedTx)
	}
	for _, q := range b.QueuedQueries {
		h.unsure = h.unsure || deallocates(q.SQL)
	}
	return h.conn.SendBatch(ctx, b)
}

// LargeObjects works with large objects inside the transaction. pgx makes the
// value from a transaction of its own type; beginning that with an empty statement,
// one round trip on the first call, makes it one of the transaction that is open.
func (h *handle) LargeObjects() pgx.LargeObjects {
	if h.large == nil && h.err() == nil {
		h.large, _ = h.conn.BeginTx(context.Background(), pgx.TxOptions{BeginQuery: "--"})
	}
	if h.large == nil {
		return pgx.LargeObjects{}
	}
	return h.large.LargeObjects()
}

func (h *handle) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := h.err(); err != nil {
		return nil, err
	}
	return h.conn.Prepare(ctx, name, sql)
}

func (h *handle) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := h.err(); err != nil {
		return pgconn.CommandTag{}, err
	}
	h.unsure = h.unsure || deallocates(sql)
	return h.conn.Exec(ctx, sql, args...)
}

func (h *handle) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := h.err(); err != nil {
		return failedRows{err}, err
	}
	h.unsure = h.unsure || deallocates(sql)
	return h.conn.Query(ctx, sql, args...)
}

func (h *handle) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := h.err(); err != nil {
		return failedRows{err}
	}
	h.unsure = h.unsure || deallocates(sql)
	return h.conn.QueryRow(ctx, sql, args...)
}

// Conn returns the connection, on which the driver does not see what is done.
func (h *handle) Conn() *pgx.Conn {
	h.unsure = true
	return h.conn
}

// deallocates reports whether sql, of one statement or of several, may end prepared
// statements. Where it does not, the word in question is a constant or a name.
func deallocates(sql string) bool {
	const word = "deallocate"
	for i := 0; i+len(word) <= len(sql); i++ {
		if sql[i]|0x20 == word[0] && strings.EqualFold(sql[i:i+len(word)], word) {
			return true
		}
	}
	return false
}

// nested is a savepoint in the application's hands.
type nested struct {
	*handle
	name string
	done bool
}

func (n *nested) end(ctx context.Context, sql string) error {
	if n.done {
		return pgx.ErrTxClosed
	}
	n.done = true
	_, err := n.Exec(ctx, sql+n.name)
	return err
}

// Commit releases the savepoint.
func (n *nested) Commit(ctx context.Context) error { return n.end(ctx, "RELEASE SAVEPOINT ") }

// Rollback goes back to the savepoint.
func (n *nested) Rollback(ctx context.Context) error { return n.end(ctx, "ROLLBACK TO SAVEPOINT ") }

// failedRows is the result of a query on a transaction that has ended.
type failedRows struct{ err error }

var _ pgx.Rows = failedRows{}

func (failedRows) Close()                                       {}
func (f failedRows) Err() error                                 { return f.err }
func (failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (failedRows) Next() bool                                   { return false }
func (f failedRows) Scan(...any) error                          { return f.err }
func (f failedRows) Values() ([]any, error)                     { return nil, f.err }
func (failedRows) RawValues() [][]byte                          { return nil }
func (failedRows) TypeMap() *pgtype.Map                         { return nil }
func (failedRows) Conn() *pgx.Conn                              { return nil }
