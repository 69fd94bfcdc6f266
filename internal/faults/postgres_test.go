//go:build linux

package faults

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// pgServer is a PostgreSQL server that is killed and started again, with its
// files, on one port.
type pgServer struct {
	bin, dir string
	port     int
	attr     *syscall.SysProcAttr
	proc     *process
}

func startPostgres(t *testing.T) *pgServer {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if p, err := exec.LookPath("postgres"); err == nil {
		found = append(found, p)
	}
	if len(found) == 0 {
		if os.Getenv("IDEM_REQUIRE_ALL") == "1" {
			t.Fatal("postgres is not installed, and IDEM_REQUIRE_ALL is 1")
		}
		t.Skip("postgres is not installed")
	}
	sort.Strings(found)
	s := &pgServer{bin: found[len(found)-1], port: freePort(t), attr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}
	dir, err := os.MkdirTemp("", "idem-faults-")
	if err != nil {
		t.Fatal(err)
	}
	s.dir = dir
	t.Cleanup(func() {
		s.kill()
		within(10*time.Second, func() error { return os.RemoveAll(dir) })
	})
	if os.Getuid() == 0 { // the server refuses to run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			u, err = user.Lookup("nobody")
		}
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		s.attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	init := exec.Command(filepath.Join(filepath.Dir(s.bin), "initdb"), "-D", filepath.Join(dir, "data"), "-U", "postgres",
		"--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	init.SysProcAttr, init.Dir = s.attr, dir
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// start starts the server, and again while the processes of a killed one hold its
// shared memory.
func (s *pgServer) start() error {
	deadline := time.Now().Add(60 * time.Second)
	for {
		err := s.try(deadline)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *pgServer) try(deadline time.Time) error {
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.bin, "-D", filepath.Join(s.dir, "data"), "-p", strconv.Itoa(s.port), "-k", s.dir,
		"-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200", "-c", "shared_buffers=32MB", "-c", "fsync=on", "-c", "synchronous_commit=on")
	cmd.SysProcAttr, cmd.Dir, cmd.Stdout, cmd.Stderr = s.attr, s.dir, log, log
	if s.proc, err = startProcess(cmd); err != nil {
		return err
	}
	for {
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		conn, err := pgx.Connect(ctx, s.dsn(s.port))
		if err == nil {
			err = conn.Close(ctx)
		}
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-s.proc.ended:
			said, _ := os.ReadFile(log.Name())
			return fmt.Errorf("the server ended: %s", said)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.kill()
			return fmt.Errorf("the server does not answer: %w", err)
		}
	}
}

func (s *pgServer) kill() { s.proc.kill() }

// dsn names the server, or a proxy in front of it.
func (s *pgServer) dsn(port int) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable&connect_timeout=2", port)
}

func (s *pgServer) query(sql string) (n int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn(s.port))
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, sql).Scan(&n)
	return n, err
}

// settings changes the configuration of the running server.
func (s *pgServer) settings(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn(s.port))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT pg_reload_conf()")
	return err
}

// terminate ends one of the workers' backends, and reports whether there was one.
func (s *pgServer) terminate() (bool, error) {
	n, err := s.query(`SELECT count(pg_terminate_backend(pid)) FROM (
		SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
		ORDER BY state = 'idle', random() LIMIT 1) AS one`)
	return n > 0, err
}

// clean reports, once nobody calls any more, what is left of the calls.
func (s *pgServer) clean() error {
	return within(5*time.Second, func() error {
		locks, err := s.query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
		if err != nil {
			return err
		}
		open, err := s.query("SELECT count(*) FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'")
		if err != nil {
			return err
		}
		if locks+open > 0 {
			return fmt.Errorf("%d advisory locks and %d transactions are left in the server", locks, open)
		}
		return nil
	})
}
