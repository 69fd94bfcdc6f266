//go:build linux

package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/sqlite"
)

// Set in the environment of a process that works on a file until it is killed, or done.
const (
	childFile = "IDEM_SQLITE_CHILD_FILE"
	childName = "IDEM_SQLITE_CHILD_NAME"

	// Processes whose names begin with it run their transactions in groups.
	inGroups = "groups"
)

// keysShared is how many keys all processes run in transactions.
const keysShared = 120

func TestMain(m *testing.M) {
	if file := os.Getenv(childFile); file != "" {
		child(file, os.Getenv(childName))
		return
	}
	os.Exit(m.Run())
}

// child runs every shared key in a transaction, and leased keys of its own between,
// and prints a line for each answer it got.
func child(file, name string) {
	opts := []sqlite.Option{sqlite.WithBusyTimeout(30 * time.Second)}
	if strings.HasPrefix(name, inGroups) {
		opts = append(opts, sqlite.GroupTransactions())
	}
	d, err := sqlite.Open(file, opts...)
	if err != nil {
		fmt.Println("error", err)
		return
	}
	var mu sync.Mutex
	ack := func(words ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(words...)
	}
	ctx := context.Background()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i, k := range rand.Perm(keysShared) {
				p := claimParams(fmt.Sprintf("%s-%d-%d", name, g, i))
				r, err := d.Claim(ctx, p)
				if err != nil {
					ack("error", err)
					continue
				}
				ack("claim", p.Key.ID, r.Token)
				if err := d.Complete(ctx, completeParams(r, []byte(name))); err != nil {
					ack("error", err)
					continue
				}
				ack("complete", p.Key.ID, r.Token)

				p = claimParams(fmt.Sprint("shared", k))
				tx, r, err := d.BeginClaim(ctx, p)
				if err != nil {
					ack("error", err)
				}
				if tx == nil {
					continue
				}
				err = errors.Join(
					insertRow(ctx, tx.Handle(), p.Key.ID),
					tx.Commit(ctx, driver.CommitParams{CompleteParams: completeParams(r, []byte(name))}),
				)
				if err != nil {
					ack("error", err)
					continue
				}
				ack("complete", p.Key.ID, r.Token)
			}
		})
	}
	wg.Wait()
}

// acks are the answers that processes have seen.
type acks struct {
	mu   sync.Mutex
	seen map[string]map[string]string // verb -> id -> token
}

// run starts a process, and kills it once it has printed that many lines (0: never).
func (a *acks) run(t *testing.T, file, name string, killAfter int) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childFile+"="+file, childName+"="+name)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Errorf("starting: %v", err)
		return
	}
	if err := c.Start(); err != nil {
		t.Errorf("starting: %v", err)
		return
	}
	lines := 0
	for scan := bufio.NewScanner(out); scan.Scan(); {
		words := strings.Fields(scan.Text())
		if len(words) != 3 || words[0] == "error" {
			if len(words) > 0 && words[0] == "error" {
				t.Errorf("process %s: %s", name, scan.Text())
			}
			continue // the last line of a process that was killed may be half of one
		}
		a.mu.Lock()
		if a.seen[words[0]] == nil {
			a.seen[words[0]] = make(map[string]string)
		}
		if other := a.seen[words[0]][words[1]]; other != "" {
			t.Errorf("two processes were told that they own %s: %s and %s", words[1], other, words[2])
		}
		a.seen[words[0]][words[1]] = words[2]
		a.mu.Unlock()
		if lines++; lines == killAfter {
			_ = c.Process.Kill()
		}
	}
	_ = c.Wait()
}

// check compares what the processes were told with what the file holds.
func (a *acks) check(t *testing.T, d *sqlite.Driver) {
	t.Helper()
	for id, token := range a.seen["claim"] {
		if r := read(t, d, id); r.State == driver.StateAbsent || r.Token.String() != token {
			t.Errorf("the claim of %s was acknowledged, and is lost: %+v", id, r)
		}
	}
	for id, token := range a.seen["complete"] {
		if r := read(t, d, id); r.State != driver.StateComplete || r.Token.String() != token || len(r.Result) == 0 {
			t.Errorf("the outcome of %s was acknowledged, and is lost: %+v", id, r)
		}
	}
	for k := range keysShared {
		id := fmt.Sprint("shared", k)
		want := 0
		if read(t, d, id).State == driver.StateComplete {
			want = 1
		}
		wantRows(t, d, id, want)
	}
	var verdict string
	if err := d.DB().QueryRowContext(t.Context(), `PRAGMA integrity_check`).Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("integrity check: %s, %v", verdict, err)
	}
	t.Logf("%d claims and %d outcomes acknowledged", len(a.seen["claim"]), len(a.seen["complete"]))
}

func read(t *testing.T, d *sqlite.Driver, id string) driver.Record {
	t.Helper()
	r, err := d.Get(t.Context(), driver.GetParams{Key: driver.Key{Scope: "tenant", ID: id}})
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return r
}

// openShared creates the file with its tables, and closes it.
func openShared(t *testing.T, file string) {
	t.Helper()
	d, err := sqlite.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := withRows(t, d).Close(); err != nil {
		t.Fatal(err)
	}
}

func reopened(t *testing.T, file string) *sqlite.Driver {
	t.Helper()
	d, err := sqlite.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// Several processes run the same keys: each once, and nobody meets an error.
func TestProcesses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	openShared(t, file)
	a := &acks{seen: make(map[string]map[string]string)}
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() { a.run(t, file, fmt.Sprint([...]string{"alone", inGroups}[i%2], i), 0) })
	}
	wg.Wait()
	d := reopened(t, file)
	a.check(t, d)
	for k := range keysShared {
		wantRows(t, d, fmt.Sprint("shared", k), 1)
	}
}

// What a process was told survives its sudden end, ten times over, beside one that goes on.
func TestKill(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	openShared(t, file)
	a := &acks{seen: make(map[string]map[string]string)}
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for round := range 5 {
				a.run(t, file, fmt.Sprintf("%s%d", [...]string{"alone", inGroups}[i], round), 20+rand.IntN(200))
			}
		})
	}
	wg.Wait()
	a.check(t, reopened(t, file))
}
