package sqlite_test

import (
	"database/sql"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
)

const callers = 64

var benchKeys atomic.Int64

func claimParams(id string) driver.ClaimParams {
	return driver.ClaimParams{
		Key: driver.Key{Scope: "tenant", ID: id}, Operation: "orders.create", Fingerprint: []byte("fingerprint"),
		Token: driver.NewToken(), Lease: time.Minute, Retention: time.Hour,
	}
}

func completeParams(r driver.Record, result []byte) driver.CompleteParams {
	return driver.CompleteParams{
		HolderParams: driver.HolderParams{Key: r.Key, Token: r.Token, Fence: r.Fence},
		Result:       result, Retention: time.Hour,
	}
}

// parallel runs fn from that many goroutines, each time with a new key.
func parallel(b *testing.B, goroutines int, fn func(id string) error) {
	b.SetParallelism(max(1, goroutines/runtime.GOMAXPROCS(0)))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := fn(strconv.FormatInt(benchKeys.Add(1), 10)); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "keys/s")
}

// BenchmarkLeased claims and completes a key: two durable steps.
func BenchmarkLeased(b *testing.B) {
	result := make([]byte, 200)
	step := func(d driver.Driver, do func(func() error) error) func(string) error {
		return func(id string) error {
			var r driver.Record
			err := do(func() (err error) {
				r, err = d.Claim(b.Context(), claimParams(id))
				return err
			})
			if err != nil {
				return err
			}
			return do(func() error { return d.Complete(b.Context(), completeParams(r, result)) })
		}
	}
	b.Run("group commit", func(b *testing.B) {
		parallel(b, callers, step(fresh(b), func(fn func() error) error { return fn() }))
	})
	b.Run("one commit a step", func(b *testing.B) {
		var mu sync.Mutex // one caller at a time: every group is of one
		parallel(b, callers, step(fresh(b), func(fn func() error) error {
			mu.Lock()
			defer mu.Unlock()
			return fn()
		}))
	})
}

// BenchmarkReplay claims a key that is complete: one read.
func BenchmarkReplay(b *testing.B) {
	d := fresh(b)
	p := claimParams("replayed")
	r, err := d.Claim(b.Context(), p)
	if err != nil {
		b.Fatal(err)
	}
	if err := d.Complete(b.Context(), completeParams(r, make([]byte, 200))); err != nil {
		b.Fatal(err)
	}
	parallel(b, callers, func(string) error {
		_, err := d.Claim(b.Context(), claimParams("replayed"))
		return err
	})
}

// BenchmarkTx claims, writes a row and completes in one transaction.
func BenchmarkTx(b *testing.B) {
	b.Run("idem", func(b *testing.B) {
		d := fresh(b)
		result := make([]byte, 200)
		parallel(b, 8, func(id string) error {
			tx, r, err := d.BeginClaim(b.Context(), claimParams(id))
			if err != nil {
				return err
			}
			if err := insertRow(b.Context(), tx.Handle(), id); err != nil {
				return err
			}
			return tx.Commit(b.Context(), driver.CommitParams{CompleteParams: completeParams(r, result)})
		})
	})
	b.Run("the row alone", func(b *testing.B) {
		db := fresh(b).DB()
		var mu sync.Mutex
		parallel(b, 8, func(id string) error {
			mu.Lock()
			defer mu.Unlock()
			tx, err := db.BeginTx(b.Context(), &sql.TxOptions{})
			if err != nil {
				return err
			}
			if err := insertRow(b.Context(), tx, id); err != nil {
				return err
			}
			return tx.Commit()
		})
	})
}
