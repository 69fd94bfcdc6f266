//go:build linux

package bolt_test

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

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
)

// Set in the environment of a process that works on a file until it is killed, or done.
const (
	childFile = "IDEM_BOLT_CHILD_FILE"
	childName = "IDEM_BOLT_CHILD_NAME"
)

// keysShared is how many keys every process runs in transactions.
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
	d, err := bolt.Open(file)
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
					insertRow(tx.Handle(), p.Key.ID),
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
func (a *acks) check(t *testing.T, d *bolt.Driver) {
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
	err := d.DB().View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("the file is damaged: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d claims and %d outcomes acknowledged", len(a.seen["claim"]), len(a.seen["complete"]))
}

func read(t *testing.T, d *bolt.Driver, id string) driver.Record {
	t.Helper()
	r, err := d.Get(t.Context(), driver.GetParams{Key: driver.Key{Scope: "tenant", ID: id}})
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return r
}

// What a process was told survives its sudden end, ten times over.
func TestKill(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	a := &acks{seen: make(map[string]map[string]string)}
	for round := range 10 {
		a.run(t, file, fmt.Sprint("p", round), 20+rand.IntN(200))
	}
	d, err := bolt.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	a.check(t, d)
}
