package sqlite

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"reflect"
)

// A member of a group gives the application a *sql.Tx of its own over the connection of the
// group, by a database/sql driver that passes every statement on: database/sql would not
// begin a second transaction on it, and one *sql.Tx for all would stay good for writing
// when its member's turn is over. To this one, beginning and ending mean nothing; the
// savepoints are the member's.

var errNotYours = errors.New("sqlite: the transaction is not the application's to commit")

// handles makes connections that borrow that of a joint.
type handles struct{ j *joint }

func (h handles) Connect(context.Context) (sqldriver.Conn, error) { return &lentConn{h.j}, nil }
func (h handles) Driver() sqldriver.Driver                        { return h }
func (h handles) Open(string) (sqldriver.Conn, error)             { return nil, errors.ErrUnsupported }

// raw runs fn on the connection, unless the transaction, or ctx, has ended.
func (j *joint) raw(ctx context.Context, fn func(sqldriver.Conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended {
		return errGroupLate
	}
	return j.borrow(fn)
}

// closing runs fn on the connection, whatever has become of the transaction: it gives
// something back.
func (j *joint) closing(fn func() error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.borrow(func(sqldriver.Conn) error { return fn() })
}

func (j *joint) borrow(fn func(sqldriver.Conn) error) error {
	var err error
	rawErr := j.txn.conn.Raw(func(c any) error {
		err = fn(c.(sqldriver.Conn))
		return nil
	})
	if rawErr != nil {
		return rawErr
	}
	return err
}

// lentConn is the connection of a joint, for one member.
type lentConn struct{ j *joint }

var (
	_ sqldriver.ConnBeginTx        = (*lentConn)(nil)
	_ sqldriver.ConnPrepareContext = (*lentConn)(nil)
	_ sqldriver.ExecerContext      = (*lentConn)(nil)
	_ sqldriver.QueryerContext     = (*lentConn)(nil)
)

func (c *lentConn) Close() error                 { return nil }
func (c *lentConn) Begin() (sqldriver.Tx, error) { return lentTx{}, nil }
func (c *lentConn) BeginTx(context.Context, sqldriver.TxOptions) (sqldriver.Tx, error) {
	return lentTx{}, nil
}

type lentTx struct{}

func (lentTx) Commit() error   { return errNotYours }
func (lentTx) Rollback() error { return nil }

func (c *lentConn) Prepare(query string) (sqldriver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

func (c *lentConn) PrepareContext(ctx context.Context, query string) (s sqldriver.Stmt, err error) {
	err = c.j.raw(ctx, func(conn sqldriver.Conn) error {
		s, err = conn.(sqldriver.ConnPrepareContext).PrepareContext(context.WithoutCancel(ctx), query)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &lentStmt{c.j, s}, nil
}

// ExecContext does not interrupt the statement when ctx ends: SQLite would roll back the
// whole group.
func (c *lentConn) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (res sqldriver.Result, err error) {
	err = c.j.raw(ctx, func(conn sqldriver.Conn) error {
		res, err = conn.(sqldriver.ExecerContext).ExecContext(context.WithoutCancel(ctx), query, args)
		return err
	})
	return res, err
}

// QueryContext does not interrupt the statement, as it may write.
func (c *lentConn) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (rows sqldriver.Rows, err error) {
	err = c.j.raw(ctx, func(conn sqldriver.Conn) error {
		rows, err = conn.(sqldriver.QueryerContext).QueryContext(context.WithoutCancel(ctx), query, args)
		return err
	})
	return lend(c.j, rows, err)
}

type lentStmt struct {
	j *joint
	s sqldriver.Stmt
}

var (
	_ sqldriver.StmtExecContext  = (*lentStmt)(nil)
	_ sqldriver.StmtQueryContext = (*lentStmt)(nil)
)

func (s *lentStmt) Close() error  { return s.j.closing(s.s.Close) }
func (s *lentStmt) NumInput() int { return s.s.NumInput() }

func (s *lentStmt) Exec([]sqldriver.Value) (sqldriver.Result, error) {
	return nil, errors.ErrUnsupported
}
func (s *lentStmt) Query([]sqldriver.Value) (sqldriver.Rows, error) {
	return nil, errors.ErrUnsupported
}

func (s *lentStmt) ExecContext(ctx context.Context, args []sqldriver.NamedValue) (res sqldriver.Result, err error) {
	err = s.j.raw(ctx, func(sqldriver.Conn) error {
		res, err = s.s.(sqldriver.StmtExecContext).ExecContext(context.WithoutCancel(ctx), args)
		return err
	})
	return res, err
}

func (s *lentStmt) QueryContext(ctx context.Context, args []sqldriver.NamedValue) (rows sqldriver.Rows, err error) {
	err = s.j.raw(ctx, func(sqldriver.Conn) error {
		rows, err = s.s.(sqldriver.StmtQueryContext).QueryContext(context.WithoutCancel(ctx), args)
		return err
	})
	return lend(s.j, rows, err)
}

// modernRows are what the driver of SQLite returns.
type modernRows interface {
	sqldriver.Rows
	sqldriver.RowsColumnTypeDatabaseTypeName
	sqldriver.RowsColumnTypeLength
	sqldriver.RowsColumnTypeNullable
	sqldriver.RowsColumnTypePrecisionScale
	sqldriver.RowsColumnTypeScanType
}

type lentRows struct {
	j *joint
	modernRows
}

func lend(j *joint, rows sqldriver.Rows, err error) (sqldriver.Rows, error) {
	if err != nil {
		return nil, err
	}
	r, ok := rows.(modernRows)
	if !ok {
		return nil, errors.Join(errors.ErrUnsupported, rows.Close())
	}
	return &lentRows{j, r}, nil
}

func (r *lentRows) Close() error { return r.j.closing(r.modernRows.Close) }

func (r *lentRows) Next(dest []sqldriver.Value) error {
	return r.j.raw(context.Background(), func(sqldriver.Conn) error { return r.modernRows.Next(dest) })
}

func (r *lentRows) ColumnTypeScanType(i int) (t reflect.Type) {
	_ = r.j.raw(context.Background(), func(sqldriver.Conn) error { t = r.modernRows.ColumnTypeScanType(i); return nil })
	return t
}
