package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds everything that a test waits for.
const patience = 30 * time.Second

// build builds the program as a user would.
func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "orders")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// process is a running server.
type process struct {
	url   string
	cmd   *exec.Cmd
	lines chan string // what it prints
	ended chan error  // one value: how it ended
}

// start starts the server and waits until it listens.
func start(t *testing.T, bin string, args ...string) *process {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{
		cmd:   exec.Command(bin, append([]string{"-addr", "127.0.0.1:0", "-allow-pause", "-lease", "3s"}, args...)...),
		lines: make(chan string, 1000),
		ended: make(chan error, 1),
	}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = in, in, dieWithParent()
	started := make(chan error)
	go func() {
		// The signal that follows the parent's death follows that of the thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		in.Close()
		if err == nil {
			p.ended <- p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	go p.read(out)
	t.Cleanup(func() { p.cmd.Process.Kill() })
	url, _, _ := strings.Cut(strings.TrimPrefix(p.printed(t, "Listening on "), "Listening on "), ",")
	p.url = strings.TrimSuffix(url, "/orders")
	return p
}

func (p *process) read(out io.ReadCloser) {
	defer out.Close()
	defer close(p.lines)
	for s := bufio.NewScanner(out); s.Scan(); {
		p.lines <- s.Text()
	}
}

// printed returns the next line that contains text.
func (p *process) printed(t *testing.T, text string) string {
	t.Helper()
	timeout := time.After(patience)
	var all []string
	for {
		select {
		case line, ok := <-p.lines:
			if strings.Contains(line, text) {
				return line
			}
			if all = append(all, line); !ok {
				t.Fatalf("the server ended without printing %q; it printed\n%s", text, strings.Join(all, "\n"))
			}
		case <-timeout:
			t.Fatalf("the server did not print %q in %v; it printed\n%s", text, patience, strings.Join(all, "\n"))
		}
	}
}

// kill ends the process as kill -9 does.
func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wait(t)
}

// terminate asks the process to end.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// wait returns how the process ended.
func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(patience):
		t.Fatalf("the server did not end in %v", patience)
		return nil
	}
}
