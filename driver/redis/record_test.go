package redis_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
)

// The scripts write the bytes that the codec of package driver writes.
func TestEncoding(t *testing.T) {
	d, c := single(t)
	ctx := t.Context()
	same := func(k driver.Key, want driver.Record) {
		t.Helper()
		h := k.Hash("", nil)
		stored, err := c.Get(ctx, nameOf(k)).Bytes()
		must(t, "GET", err)
		want.Now = time.Time{}
		stored, marked := bytes.CutPrefix(stored, []byte("idem"))
		if b := want.AppendBinary(nil, h); !marked || !bytes.Equal(stored, b) {
			got, err := driver.DecodeRecord(stored, h)
			t.Errorf("stored (-codec +script), %v:\n%s", err, cmp.Diff(want, got))
		}
	}
	for _, result := range [][]byte{nil, {}, []byte("\x00\xff binary \r\n"), bytes.Repeat([]byte{7}, 1<<20)} {
		p := claimOf(driver.NewToken().String())
		p.Now, p.Hold = now, true
		p.Fingerprint = []byte{0, 1, 255}
		p.Summary = "π ≠ 3"
		r, _ := driver.Record{}.AfterClaim(p, now)
		mustClaim(t, d, p)
		same(p.Key, r)

		q := completionOf(holderOf(p, r))
		q.Result, q.Note = result, "by hand"
		r, err := r.AfterComplete(q, now)
		must(t, "AfterComplete", err)
		must(t, "Complete", d.Complete(ctx, q))
		same(p.Key, r)

		expired := r.RetainUntil
		if result != nil {
			n, err := d.Purge(ctx, driver.PurgeParams{Limit: 10, Now: expired})
			if err != nil || n != 1 {
				t.Fatalf("Purge: %d, %v", n, err)
			}
			r, _, _ = r.AfterPurge(expired)
			same(p.Key, r)
		}
		must(t, "Forget", d.Forget(ctx, driver.ForgetParams{HolderParams: q.HolderParams}))
	}
}

// What is not a record of the key, or is a newer one, is refused and left alone.
func TestForeignRecords(t *testing.T) {
	d, c := single(t)
	ctx := t.Context()
	p := claimOf("k")
	r, _ := driver.Record{}.AfterClaim(p, now)
	record := "idem" + string(r.AppendBinary(nil, p.Key.Hash("", nil)))
	other := "idem" + string(r.AppendBinary(nil, p.Key.Hash("another", nil)))
	for _, tt := range []struct {
		name  string
		put   func(key string) error
		wants error
	}{
		{"another application's string", func(k string) error { return c.Set(ctx, k, "locked by 42", 0).Err() }, driver.ErrForeignRecord},
		{"empty", func(k string) error { return c.Set(ctx, k, "", 0).Err() }, driver.ErrForeignRecord},
		{"another type", func(k string) error { return c.HSet(ctx, k, "s", "1").Err() }, driver.ErrForeignRecord},
		{"another key's record", func(k string) error { return c.Set(ctx, k, other, 0).Err() }, driver.ErrForeignRecord},
		{"truncated", func(k string) error { return c.Set(ctx, k, record[:len(record)-1], 0).Err() }, driver.ErrForeignRecord},
		{"trailing bytes", func(k string) error { return c.Set(ctx, k, record+"x", 0).Err() }, driver.ErrForeignRecord},
		{"unknown state", func(k string) error { return c.Set(ctx, k, record[:5]+"\x09"+record[6:], 0).Err() }, driver.ErrForeignRecord},
		{"unknown flag", func(k string) error { return c.Set(ctx, k, record[:6]+"\x04"+record[7:], 0).Err() }, driver.ErrForeignRecord},
		{"length beyond the end", func(k string) error { return c.Set(ctx, k, record[:91]+"\xff\xff\xff\xff"+record[95:], 0).Err() }, driver.ErrForeignRecord},
		{"newer version", func(k string) error { return c.Set(ctx, k, "idem\x02"+record[5:], 0).Err() }, driver.ErrNewerVersion},
		{"newer layout", func(k string) error { return c.Set(ctx, k, "idem\xffnew", 0).Err() }, driver.ErrNewerVersion},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key := nameOf(p.Key)
			must(t, "DEL", c.Del(ctx, key).Err())
			must(t, "write", tt.put(key))
			before := c.Dump(ctx, key).Val()
			h := holderOf(p, r)
			_, claimErr := d.Claim(ctx, p)
			_, getErr := d.Get(ctx, driver.GetParams{Key: p.Key})
			for verb, err := range map[string]error{
				"Claim": claimErr, "Get": getErr,
				"Renew":    d.Renew(ctx, driver.RenewParams{HolderParams: h, Lease: time.Minute}),
				"Complete": d.Complete(ctx, completionOf(h)),
				"Release":  d.Release(ctx, driver.ReleaseParams{HolderParams: h}),
				"Forget":   d.Forget(ctx, driver.ForgetParams{HolderParams: h}),
			} {
				if !errors.Is(err, tt.wants) {
					t.Errorf("%s: got %v, want %v", verb, err, tt.wants)
				}
			}
			if n, err := d.Purge(ctx, driver.PurgeParams{Limit: 10, Now: now.AddDate(9, 0, 0)}); n != 0 || err != nil {
				t.Errorf("Purge: %d, %v, want nothing", n, err)
			}
			records, _, err := d.List(ctx, driver.ListParams{State: driver.StateInFlight, Limit: 10, Now: now})
			if newer := tt.wants == driver.ErrNewerVersion; len(records) > 0 || newer != errors.Is(err, driver.ErrNewerVersion) || !newer && err != nil {
				t.Errorf("List: %d records, %v", len(records), err)
			}
			if after := c.Dump(ctx, key).Val(); after != before {
				t.Error("the value was changed")
			}
		})
	}
}

// A secret keeps the key out of the store, and namespaces keep applications apart.
func TestSecretAndNamespace(t *testing.T) {
	plain, c := single(t)
	p := claimOf("customer 4711")
	secret := redis.New(c, redis.WithPrefix("s:"), redis.WithSecret([]byte("pepper")))
	shop := redis.New(c, redis.WithNamespace("shop"))
	for _, d := range []driver.Driver{secret, shop, plain} {
		mustClaim(t, d, p)
		p.Token = driver.NewToken()
	}
	ctx := t.Context()
	for _, key := range c.Keys(ctx, "*").Val() {
		bare := strings.HasPrefix(key, "s:")
		if stored := c.Get(ctx, key).Val(); strings.Contains(stored, p.Key.ID) == bare {
			t.Errorf("under %s the key stands readable: %v, want %v", key, !bare, !bare)
		}
	}
	for name, d := range map[string]*redis.Driver{"plain": plain, "shop": shop, "secret": secret} {
		records, _, err := d.List(ctx, driver.ListParams{State: driver.StateInFlight, Limit: 10})
		if err != nil || len(records) != 1 {
			t.Errorf("%s lists %d records, %v, want its own one", name, len(records), err)
		}
	}
	if r, err := secret.Get(ctx, driver.GetParams{Key: p.Key}); err != nil || r.Key != (driver.Key{}) || r.State != driver.StateInFlight {
		t.Errorf("Get with the secret: %+v, %v", r, err)
	}
}

// The prefix is taken literally, also where SCAN would take it for a pattern.
func TestPrefixIsNoPattern(t *testing.T) {
	_, c := single(t)
	d := redis.New(c, redis.WithPrefix(`a*?[b]\:`))
	mustClaim(t, d, claimOf("k"))
	mustClaim(t, redis.New(c, redis.WithPrefix(`axyb:`)), claimOf("k"))
	records, _, err := d.List(t.Context(), driver.ListParams{State: driver.StateInFlight, Limit: 10})
	if err != nil || len(records) != 1 {
		t.Errorf("List: %d records, %v, want 1", len(records), err)
	}
}
