//go:build linux

package faults

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/driver/redis"
)

// PostgreSQL and Redis judge by the server's clock, and an application's clock does
// not matter: one of the two callers here lives in the year 2000, where the clock of a
// synctest bubble begins, and stands still while the network is waited for.
func TestClockOfTheServer(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, s server) (driver.Driver, func()){
		"postgres": func(t *testing.T, s server) (driver.Driver, func()) {
			pool, err := pgxpool.New(ctx(), s.dsn())
			if err != nil {
				t.Fatal(err)
			}
			return postgres.New(pool), pool.Close
		},
		"redis": func(t *testing.T, s server) (driver.Driver, func()) {
			client := goredis.NewClient(&goredis.Options{Addr: s.dsn(), ContextTimeoutEnabled: true})
			return redis.New(client), func() { client.Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, name)
			here, end := use(t, s)
			defer end()
			claim := func(d driver.Driver, id string) (driver.Record, bool) {
				p := driver.ClaimParams{
					Key: driver.Key{Scope: "clock", ID: id}, Operation: "clock", Fingerprint: []byte("f"), Token: driver.NewToken(),
					Lease: time.Minute, Retention: time.Hour,
				}
				r, err := d.Claim(ctx(), p)
				if err != nil {
					t.Fatal(err)
				}
				return r, r.Token == p.Token
			}
			mine, _ := claim(here, "here")
			var theirs driver.Record
			synctest.Test(t, func(t *testing.T) {
				if year := time.Now().Year(); year != 2000 {
					t.Fatalf("the clock here says %d", year)
				}
				there, end := use(t, s)
				defer end()
				if r, granted := claim(there, "here"); granted || r.StateAt(r.Now) != driver.StateInFlight {
					t.Errorf("by an old clock the live claim is %v", r.StateAt(r.Now))
				}
				theirs, _ = claim(there, "there")
			})
			if r, granted := claim(here, "there"); granted || r.StateAt(r.Now) != driver.StateInFlight {
				t.Errorf("a claim by an old clock is %v", r.StateAt(r.Now))
			}
			if d := theirs.Now.Sub(mine.Now); d < 0 || d > time.Minute {
				t.Errorf("their instant is %v from mine", d)
			}
		})
	}
}
