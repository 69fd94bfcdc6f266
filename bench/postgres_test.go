package bench

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
	"github.com/idem-go/idem/internal/proxy"
)

const (
	pgSchema   = "CREATE TABLE business (name text NOT NULL); CREATE TABLE byhand (key text PRIMARY KEY, fingerprint bytea NOT NULL, result bytea)"
	pgBusiness = "INSERT INTO business (name) VALUES ($1)"
	pgClaim    = "INSERT INTO byhand (key, fingerprint) VALUES ($1, $2) ON CONFLICT DO NOTHING"
	pgStore    = "UPDATE byhand SET result = $2 WHERE key = $1"
	pgWhole    = "INSERT INTO byhand (key, fingerprint, result) VALUES ($1, $2, $3)"
	pgRead     = "SELECT fingerprint, result FROM byhand WHERE key = $1"
)

// Names that the targets refer to.
const (
	bareTx     = "BEGIN, INSERT, COMMIT"
	byHand     = "by hand: claim; BEGIN, INSERT, UPDATE, COMMIT"
	byHandInTx = "by hand: BEGIN, claim, INSERT, UPDATE, COMMIT"
	byHandOnce = "by hand, one batch, result known in advance"
	bareRead   = "SELECT of a stored result"
	doTx       = "idem DoTx"
	doBatch    = "idem DoBatch"
	do         = "idem Do"
	doThenTx   = "idem DoThenTx"
	replayDo   = "idem Do, replay"
	replayDoTx = "idem DoTx, replay"
)

var errTaken = errors.New("the key is taken")

func newDatabase(tb testing.TB) *pgtest.Database {
	db := pgtest.Shared(tb).Database(tb)
	if _, err := db.Conn(tb).Exec(tb.Context(), pgSchema); err != nil {
		tb.Fatal(err)
	}
	pool := db.Pool(tb)
	if err := postgres.New(pool).Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return db
}

// pgFirst are the ways of running an order for the first time.
func pgFirst(tb testing.TB, _, pool *pgxpool.Pool) []subject {
	op := must[*idem.TxOperation[[]byte, pgx.Tx]](tb)(idem.NewTx[[]byte](postgres.New(pool), config))
	batch := must[*idem.BatchOperation[[]byte, *pgx.Batch]](tb)(idem.NewBatch[[]byte](postgres.New(pool), config))
	insert := func(ctx context.Context, tx pgx.Tx, id string) error {
		_, err := tx.Exec(ctx, pgBusiness, id)
		return err
	}
	claim := func(ctx context.Context, q interface {
		Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	}, id string) error {
		tag, err := q.Exec(ctx, pgClaim, id, print().Sum())
		if err == nil && tag.RowsAffected() == 0 {
			err = errTaken
		}
		return err
	}
	finish := func(ctx context.Context, tx pgx.Tx, id string) error {
		if err := insert(ctx, tx, id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, pgStore, id, result)
		return err
	}
	return []subject{
		{name: bareTx, call: func(ctx context.Context, id string) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return insert(ctx, tx, id) })
		}},
		{name: byHand, call: func(ctx context.Context, id string) error {
			if err := claim(ctx, pool, id); err != nil {
				return err
			}
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return finish(ctx, tx, id) })
		}},
		{name: byHandInTx, call: func(ctx context.Context, id string) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if err := claim(ctx, tx, id); err != nil {
					return err
				}
				return finish(ctx, tx, id)
			})
		}},
		{name: byHandOnce, call: func(ctx context.Context, id string) error {
			var b pgx.Batch
			b.Queue(pgWhole, id, print().Sum(), result)
			b.Queue(pgBusiness, id)
			return pool.SendBatch(ctx, &b).Close()
		}},
		{name: doTx, call: func(ctx context.Context, id string) error {
			res, err := op.DoTx(ctx, key(id), print(), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				return result, insert(ctx, tx, id)
			})
			return is(false, res, err)
		}},
		{name: do, call: func(ctx context.Context, id string) error {
			res, err := op.Do(ctx, key(id), print(), runs)
			return is(false, res, err)
		}},
		{name: doThenTx, call: func(ctx context.Context, id string) error {
			res, err := op.DoThenTx(ctx, key(id), print(), runs, func(ctx context.Context, tx pgx.Tx, v []byte) ([]byte, error) {
				return v, insert(ctx, tx, id)
			})
			return is(false, res, err)
		}},
		{name: doBatch, call: func(ctx context.Context, id string) error {
			var b pgx.Batch
			b.Queue(pgBusiness, id)
			res, err := batch.DoBatch(ctx, key(id), print(), result, &b)
			return is(false, res, err)
		}},
	}
}

// pgReplay are the ways of repeating one, which ran on another pool.
func pgReplay(tb testing.TB, earlier, pool *pgxpool.Pool) []subject {
	first := pgFirst(tb, earlier, earlier)
	op := must[*idem.TxOperation[[]byte, pgx.Tx]](tb)(idem.NewTx[[]byte](postgres.New(pool), config))
	hand, ours := known(tb, first[1].call), known(tb, first[4].call)
	return []subject{
		replaying(bareRead, hand, func(ctx context.Context, id string) error {
			var sum, value []byte
			err := pool.QueryRow(ctx, pgRead, id).Scan(&sum, &value)
			return had(value, err)
		}),
		replaying("by hand: INSERT DO NOTHING; SELECT", hand, func(ctx context.Context, id string) error {
			if _, err := pool.Exec(ctx, pgClaim, id, print().Sum()); err != nil {
				return err
			}
			var sum, value []byte
			err := pool.QueryRow(ctx, pgRead, id).Scan(&sum, &value)
			return had(value, err)
		}),
		replaying(replayDo, ours, func(ctx context.Context, id string) error {
			res, err := op.Do(ctx, key(id), print(), runs)
			return is(true, res, err)
		}),
		replaying(replayDoTx, ours, func(ctx context.Context, id string) error {
			res, err := op.DoTx(ctx, key(id), print(), func(context.Context, pgx.Tx) ([]byte, error) { return nil, errTaken })
			return is(true, res, err)
		}),
	}
}

// builder makes subjects that work on pool; what has to be there before is made on earlier.
type builder func(tb testing.TB, earlier, pool *pgxpool.Pool) []subject

// counted is the name of the sessions whose cost is counted.
const counted = "idem-counted"

// pgCost counts what one call of every subject costs, on one connection.
func pgCost(tb testing.TB, db *pgtest.Database, build builder) []*cost {
	const calls = 100
	watch := db.Conn(tb)
	number := func(sql string, args ...any) (n int64) {
		if err := watch.QueryRow(tb.Context(), sql, args...).Scan(&n); err != nil {
			tb.Fatal(err)
		}
		return n
	}
	var costs []*cost
	for i, more := 0, true; more; i++ {
		px := slowLine(tb, db.Server.Addr(), 0)
		pool := db.Pool(tb, pgtest.Through(px.Addr()), pgtest.MaxConns(1), func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["application_name"] = counted
		})
		earlier := db.Pool(tb)
		all := build(tb, earlier, pool)
		earlier.Close()
		more = i+1 < len(all)
		for range 3 {
			if err := all[i].call(tb.Context(), newID()); err != nil {
				tb.Fatalf("%s: %v", all[i].name, err)
			}
		}
		trips, flushes := px.Trips(), number("SELECT wal_sync FROM pg_stat_wal")
		for range calls {
			if err := all[i].call(tb.Context(), newID()); err != nil {
				tb.Fatalf("%s: %v", all[i].name, err)
			}
		}
		c := &cost{trips: float64(px.Trips()-trips) / calls}
		pool.Close() // a session reports its flushes when it ends
		for deadline := time.Now().Add(10 * time.Second); number("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", counted) > 0; {
			if time.Now().After(deadline) {
				tb.Fatal("the session does not end")
			}
			time.Sleep(time.Millisecond)
		}
		c.flushes = float64(number("SELECT wal_sync FROM pg_stat_wal")-flushes) / calls
		costs = append(costs, c)
	}
	return costs
}

// slowLine returns a proxy that adds rtt to every round trip.
func slowLine(tb testing.TB, target string, rtt time.Duration) *proxy.Proxy {
	px := must[*proxy.Proxy](tb)(proxy.Listen(target))
	tb.Cleanup(func() { px.Close() })
	if rtt > 0 {
		// Not SetDelay: the timers of Go overshoot by as much again. A rule may block,
		// and blocks its thread here, so it is for one caller at a time.
		wait := syscall.NsecToTimespec(rtt.Nanoseconds())
		px.SetRule(func(_ *proxy.Conn, d proxy.Direction, _ []byte) proxy.Verdict {
			if d == proxy.ToServer {
				_ = syscall.Nanosleep(&wait, nil)
			}
			return proxy.Forward
		})
	}
	return px
}

const rtt = time.Millisecond

// pgTables are the tables of one builder: one caller, sixteen, and a slower line.
func pgTables(tb testing.TB, id, title string, build builder) []*table {
	db := newDatabase(tb)
	costs := pgCost(tb, db, build)
	px := slowLine(tb, db.Server.Addr(), rtt)
	near, far := db.Pool(tb, pgtest.MaxConns(16)), db.Pool(tb, pgtest.MaxConns(16), pgtest.Through(px.Addr()))
	all := []*table{
		{id: id, title: title + ", one caller", callers: 1, subjects: build(tb, near, near)},
		{id: id + "-16", title: title + ", 16 callers", callers: 16, subjects: build(tb, near, near)},
		{id: id + "-rtt", title: title + ", one caller, 1 ms of round-trip time added", callers: 1, subjects: build(tb, near, far)},
	}
	for _, t := range all {
		for i := range costs {
			t.subjects[i].cost = costs[i]
		}
	}
	return all
}
