package process_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/idem-go/idem/internal/process"
)

// TestMain is also the program that the tests start: it says so, and waits.
func TestMain(m *testing.M) {
	if os.Getenv("IDEM_PROCESS_CHILD") == "1" {
		os.Stdout.WriteString("up\n")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(3)
	}
	os.Exit(m.Run())
}

func child(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "IDEM_PROCESS_CHILD=1")
	return cmd
}

func TestWaitReportsTheEnd(t *testing.T) {
	p, err := process.Start(child(t), nil) // its standard input is empty
	if err != nil {
		t.Fatal(err)
	}
	if err, ok := errors.AsType[*exec.ExitError](p.Wait()); !ok || err.ExitCode() != 3 {
		t.Errorf("got %v, want exit status 3", err)
	}
	<-p.Ended()
}

func TestKillAndAbort(t *testing.T) {
	for name, end := range map[string]func(*process.Process){
		"kill":  (*process.Process).Kill,
		"abort": (*process.Process).Abort,
	} {
		cmd := child(t)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		p, err := process.Start(cmd, nil)
		if err != nil {
			t.Fatal(err)
		}
		end(p)
		if err := p.Wait(); err == nil {
			t.Errorf("%s: the program ended by itself", name)
		}
		in.Close()
	}
}

func TestNoProgram(t *testing.T) {
	if p, err := process.Start(exec.Command("/there/is/no/such/program"), nil); err == nil {
		p.Kill()
		t.Error("a program that does not exist was started")
	}
}
