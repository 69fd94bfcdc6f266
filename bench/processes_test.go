package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The variables that make this binary a worker of a crowd.
const (
	workerKind  = "IDEM_BENCH_WORKER"
	workerWhere = "IDEM_BENCH_WHERE"
)

// crash is the testing.TB of a worker, which ends with its first mistake.
type crash struct {
	testing.TB
	ctx context.Context
}

func (c crash) Helper()                  {}
func (c crash) Cleanup(func())           {}
func (c crash) Context() context.Context { return c.ctx }
func (c crash) Fatal(args ...any)        { fmt.Fprintln(os.Stderr, args...); os.Exit(1) }
func (c crash) Fatalf(format string, args ...any) {
	c.Fatal(fmt.Sprintf(format, args...))
}

// worker reads ids from its standard input and answers each with a burst, until
// the input ends, which it does with the parent.
func worker(kind, where string) {
	tb := crash{ctx: context.Background()}
	w := openers[kind](tb, where)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		b, err := together(tb.ctx, w, in.Text(), duplicates/processes)
		if err != nil {
			tb.Fatal(err)
		}
		fmt.Println(b.runs, b.ended, b.last)
	}
}

// apart is a crowd that comes from several processes.
func apart(tb testing.TB, name, kind, where string) *crowd {
	type child struct {
		in  io.Writer
		out *bufio.Reader
	}
	var all []child
	self := must[string](tb)(os.Executable())
	for range processes {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), workerKind+"="+kind, workerWhere+"="+where)
		cmd.Stderr = os.Stderr
		in, out := must[io.WriteCloser](tb)(cmd.StdinPipe()), must[io.ReadCloser](tb)(cmd.StdoutPipe())
		if err := cmd.Start(); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			in.Close()
			if err := cmd.Wait(); err != nil {
				tb.Errorf("%s: a worker: %v", name, err)
			}
		})
		all = append(all, child{in, bufio.NewReader(out)})
	}
	call := func(_ context.Context, id string) (sum burst, err error) {
		for _, c := range all {
			if _, err := io.WriteString(c.in, id+"\n"); err != nil {
				return sum, err
			}
		}
		for _, c := range all {
			var b burst
			if _, err := fmt.Fscanln(c.out, &b.runs, &b.ended, &b.last); err != nil {
				return sum, err
			}
			sum.runs += b.runs
			sum.ended, sum.last = max(sum.ended, b.ended), max(sum.last, b.last)
		}
		if sum.runs == 0 {
			err = errors.New("nobody ran it")
		}
		return sum, err
	}
	// The first burst of a process opens its connections.
	if _, err := call(tb.Context(), newID()); err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return &crowd{name: name, ours: strings.HasPrefix(name, "idem"), call: call}
}
