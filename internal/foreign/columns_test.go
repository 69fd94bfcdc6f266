package foreign

import (
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/internal/pgtest"
)

var us = now.UnixMicro()

// FuzzSQLite: any values in the columns that the schema accepts.
func FuzzSQLite(f *testing.F) {
	for _, state := range []int64{0, 1, 2, 3, 4, 5, 255, 257, -1, math.MaxInt64} {
		for _, at := range []int64{0, 1, us - 1, us, us + 1, math.MaxInt64, math.MinInt64} {
			f.Add(state, token[:], int64(fence), int64(1), int64(state&1), at, at, at, at, "tenant", "key", "operation", []byte("fingerprint"), []byte("result"))
		}
	}
	f.Add(int64(1), []byte("short"), int64(math.MaxInt64), int64(math.MaxInt64), int64(7), us, us, us, us, "tenant", "another", "\xff\x00", []byte{}, []byte(nil))
	d, err := sqlite.Open(filepath.Join(f.TempDir(), "foreign.db"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = d.Close() })
	f.Fuzz(func(t *testing.T, state int64, token []byte, fence, attempt, hold, lease, retain, grace, due int64, scope, id, operation string, fingerprint, result []byte) {
		put := func() error {
			_, err := d.DB().ExecContext(t.Context(), `INSERT OR REPLACE INTO idem_keys (kh, state, token, fence, attempt, hold,
				lease_us, retain_us, grace_us, due_us, scope, id, operation, fingerprint, result, summary, note, created_us, completed_us)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', 1, 1)`,
				hash[:], state, token, fence, attempt, hold, lease, retain, grace, due, scope, id, operation, fingerprint, result)
			return err
		}
		check(t, d, put, nil)
	})
}

// FuzzPostgres: any values in the columns that the schema accepts. The largest instant
// stands for infinity.
func FuzzPostgres(f *testing.F) {
	for _, state := range []int16{0, 1, 2, 3, 4, 5, 255, 256, -1, math.MaxInt16} {
		for _, at := range []int64{0, 1, us - 1, us, us + 1, math.MaxInt64, math.MinInt64} {
			f.Add(state, state&1 == 0, int64(fence), int32(1), at, at, at, at, "tenant", "key", "operation", []byte("fingerprint"), []byte("result"))
		}
	}
	f.Add(int16(1), true, int64(math.MaxInt64), int32(math.MaxInt32), us, us, us, us, "tenant", "another", "", []byte{}, []byte(nil))
	pool := pgtest.Pool(f)
	d := postgres.New(pool)
	if err := d.Migrate(f.Context()); err != nil {
		f.Fatal(err)
	}
	instant := func(us int64) any {
		switch us {
		case math.MaxInt64:
			return "infinity"
		case math.MinInt64:
			return "-infinity"
		}
		return nil
	}
	f.Fuzz(func(t *testing.T, state int16, hold bool, fence int64, attempt int32, lease, retain, grace, due int64, scope, id, operation string, fingerprint, result []byte) {
		put := func() error {
			_, err := pool.Exec(t.Context(), `INSERT INTO idem_records (kh, state, hold, attempt, fence, token, created_at, completed_at,
				lease_until, retain_until, grace_until, purge_after, namespace, scope, id, operation, summary, note, fingerprint, result)
				VALUES ($1, $2, $3, $4, $5, $6, 'epoch', 'epoch',
				coalesce($7::text::timestamptz, 'epoch'::timestamptz + $8::bigint * interval '1 microsecond'),
				coalesce($9::text::timestamptz, 'epoch'::timestamptz + $10::bigint * interval '1 microsecond'),
				coalesce($11::text::timestamptz, 'epoch'::timestamptz + $12::bigint * interval '1 microsecond'),
				coalesce($13::text::timestamptz, 'epoch'::timestamptz + $14::bigint * interval '1 microsecond'),
				'', $15, $16, $17, '', '', $18, $19)
				ON CONFLICT (kh) DO UPDATE SET state = excluded.state, hold = excluded.hold, attempt = excluded.attempt, fence = excluded.fence,
				token = excluded.token, lease_until = excluded.lease_until, retain_until = excluded.retain_until,
				grace_until = excluded.grace_until, purge_after = excluded.purge_after, scope = excluded.scope, id = excluded.id,
				operation = excluded.operation, fingerprint = excluded.fingerprint, result = excluded.result`,
				[16]byte(hash), state, hold, attempt, fence, [16]byte(token), instant(lease), lease, instant(retain), retain, instant(grace), grace,
				instant(due), due, scope, id, operation, fingerprint, result)
			return err
		}
		check(t, d, put, nil)
	})
}

// A row that nobody can read is passed by, and keeps no other from being purged.
func TestSQLite_PurgePassesBy(t *testing.T) {
	d, err := sqlite.Open(filepath.Join(t.TempDir(), "foreign.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for id, change := range map[string]string{
		"good": "state = 2", "hold": "hold = 7", "state": "state = 9", "token": "token = x'01'",
	} {
		k := driver.Key{Scope: "tenant", ID: id}
		r, err := d.Claim(t.Context(), driver.ClaimParams{
			Key: k, Operation: "operation", Fingerprint: []byte("f"), Token: token, Lease: time.Second, Retention: time.Second, Now: now,
		})
		if err != nil {
			t.Fatal(err)
		}
		h := driver.HolderParams{Key: k, Token: token, Fence: r.Fence, Now: now}
		if err := d.Complete(t.Context(), driver.CompleteParams{HolderParams: h, Retention: time.Second}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.DB().Exec("UPDATE idem_keys SET "+change+" WHERE id = ?", id); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{1, 0} {
		if n, err := d.Purge(t.Context(), driver.PurgeParams{Limit: 1, Now: now.Add(time.Hour)}); n != want || err != nil {
			t.Errorf("Purge: %d, %v, want %d", n, err, want)
		}
	}
}
