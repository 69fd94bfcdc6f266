package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// patience bounds what has to be done after the caller's context ended:
	// rolling back, and finding out how a commit went.
	patience = 5 * time.Second
	// parting bounds the wait for a server to notice that a connection is gone:
	// where the network is healthy that takes milliseconds, and otherwise it is
	// no use.
	parting = time.Second
	// sends is how often a verb is sent in all, while the server answers with a
	// serialization failure. No code of the application is involved, and every
	// verb may be sent twice.
	sends = 4
)

// detached returns a context that outlives ctx, but not for long.
func (d *Driver) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d.patience)
}

// do runs a verb that is a transaction of its own on a connection of the pool.
func (d *Driver) do(ctx context.Context, verb func(*session) error) error {
	if err := d.ready(ctx); err != nil {
		return err
	}
	return d.once(ctx, verb)
}

// once is do without the check of the schema.
func (d *Driver) once(ctx context.Context, verb func(*session) error) error {
	c, err := d.pool.Acquire(ctx)
	if err != nil {
		return d.translate(ctx, err)
	}
	s := sessionOf(c)
	for n := 1; ; n++ {
		if err = verb(s); n == sends || ctx.Err() != nil || !d.Retryable(err) {
			break
		}
	}
	d.release(c, err)
	return d.translate(ctx, err)
}

// release gives a connection back. One that is broken, busy or inside a
// transaction is destroyed by the pool, and so is one to a server that accepts
// no writes: after a failover the pool would keep it otherwise.
func (d *Driver) release(c *pgxpool.Conn, err error) {
	if code(err) == codeReadOnly {
		ctx, cancel := d.detached(context.Background())
		c.Conn().Close(ctx)
		cancel()
	}
	c.Release()
}

// rollback ends the transaction of a connection whatever became of ctx. When it
// returns, the server has undone it, or could not be asked and undoes it as soon
// as it sees that the connection is gone.
func (d *Driver) rollback(ctx context.Context, conn *pgconn.PgConn) {
	ctx, cancel := d.detached(ctx)
	defer cancel()
	if !conn.IsClosed() && !conn.IsBusy() && conn.TxStatus() != 'I' {
		if _, err := conn.Exec(ctx, "ROLLBACK").ReadAll(); err == nil {
			return
		}
	}
	switch {
	case conn.IsClosed():
		// After a cancelled query pgx closes in the background, and is done
		// when the server has: then the key is free.
		select {
		case <-conn.CleanupDone():
		case <-ctx.Done():
		case <-time.After(parting):
		}
	case conn.IsBusy() || conn.TxStatus() != 'I':
		conn.Close(ctx)
	}
}

// isLost reports that a batch may have reached the server without its answer
// having reached us.
func isLost(conn *pgconn.PgConn, err error) bool {
	return err != nil && !pgconn.SafeToRetry(err) && !definite(conn, err) && !errors.Is(err, errReply)
}
