package postgres_test

import (
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
)

// A claim that is sent again has the lease that it asks for, also when the holder abandons
// it between the two statements that extend the lease and read it.
func TestExtendedLeaseIsTheOneReturned(t *testing.T) {
	t.Parallel()
	s := open(t, setup{})
	p := s.claim()
	p.Now = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	p.Lease = time.Minute
	s.mustClaim(t, p)
	// Once, what abandoning does stands behind the first statement.
	if _, err := s.pool.Exec(t.Context(), `CREATE TABLE once_more (n int); INSERT INTO once_more VALUES (1);
		CREATE FUNCTION abandon() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			DELETE FROM once_more;
			IF FOUND THEN UPDATE `+postgres.DefaultTable+` SET lease_until = '2040-01-01T00:00:31Z'; END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER abandon AFTER UPDATE ON `+postgres.DefaultTable+` FOR EACH STATEMENT EXECUTE FUNCTION abandon()`); err != nil {
		t.Fatal(err)
	}
	p.Now = p.Now.Add(30 * time.Second)
	until := p.Now.Add(p.Lease)
	if r := s.mustClaim(t, p); !r.LeaseUntil.Equal(until) {
		t.Errorf("the lease ends at %v, want %v", r.LeaseUntil, until)
	}
	r, err := s.Get(t.Context(), driver.GetParams{Key: p.Key, Now: p.Now})
	if err != nil || !r.LeaseUntil.Equal(until) {
		t.Errorf("stored: the lease ends at %v, want %v; %v", r.LeaseUntil, until, err)
	}
}
