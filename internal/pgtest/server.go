// Package pgtest gives tests real PostgreSQL servers: one throwaway server for a
// test binary, started when the first test asks for it, and a database of its own
// for every test.
//
// The environment variable IDEM_TEST_POSTGRES_DSN names a server to use instead;
// its role must be a superuser. Without a server and without its programs a test
// is skipped, or fails when IDEM_REQUIRE_ALL is 1.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/internal/process"
)

// errNoPrograms is returned when the server's programs are not on this machine.
var errNoPrograms = errors.New("postgres and initdb are not installed")

// startTimeout bounds the creation and the start of a server.
const startTimeout = 60 * time.Second

// Config says how a private server differs from the shared one.
type Config struct {
	Settings map[string]string // server settings, by name
	Env      []string          // environment variables, "NAME=value"
}

// Server is a running server. Its methods are safe for concurrent use.
type Server struct {
	host string
	port uint16
	user string
	pass string
	dir  string           // empty when the server is not ours
	proc *process.Process // nil when the server is not ours
	once sync.Once
}

var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Main runs the tests of a package, then stops the shared server. Call it from TestMain.
func Main(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		shared.server.stop()
	}
	os.Exit(code)
}

// Shared returns the server that the tests of this binary share. The package
// must have a TestMain that calls [Main].
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() {
		if dsn := os.Getenv("IDEM_TEST_POSTGRES_DSN"); dsn != "" {
			shared.server, shared.err = existing(dsn)
			return
		}
		shared.server, shared.err = start(Config{})
	})
	unavailable(t, shared.err)
	return shared.server
}

// Start starts a server for one test, which may stop it or break it.
func Start(t testing.TB, c Config) *Server {
	t.Helper()
	s, err := start(c)
	unavailable(t, err)
	t.Cleanup(s.stop)
	return s
}

func unavailable(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, errNoPrograms) && os.Getenv("IDEM_REQUIRE_ALL") != "1":
		t.Skipf("needs PostgreSQL: %v", err)
	default:
		t.Fatalf("pgtest: %v", err)
	}
}

// Addr returns the host:port of the server.
func (s *Server) Addr() string { return net.JoinHostPort(s.host, strconv.Itoa(int(s.port))) }

// Kill ends the server as a crash of its process would: without a checkpoint.
func (s *Server) Kill() { s.stop() }

func existing(dsn string) (*Server, error) {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("IDEM_TEST_POSTGRES_DSN: %w", err)
	}
	return &Server{host: c.Host, port: c.Port, user: c.User, pass: c.Password}, nil
}

// program returns the path of one of the server's programs, which Debian keeps out of PATH.
func program(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return "", errNoPrograms
	}
	sort.Strings(found)
	return found[len(found)-1], nil
}

// account returns whom the server runs as, as it refuses to run as root: nil when
// this process is not root's.
func account() (*process.User, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, fmt.Errorf("no user to run the server as: %w", err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return &process.User{UID: uid, GID: gid}, nil
}

// give makes files the user's.
func give(as *process.User, paths ...string) error {
	if as == nil {
		return nil
	}
	for _, p := range paths {
		if err := os.Chown(p, as.UID, as.GID); err != nil {
			return err
		}
	}
	return nil
}

func freePort() (uint16, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return uint16(ln.Addr().(*net.TCPAddr).Port), nil
}

func start(c Config) (*Server, error) {
	initdb, err := program("initdb")
	if err != nil {
		return nil, err
	}
	postgres, err := program("postgres")
	if err != nil {
		return nil, err
	}
	as, err := account()
	if err != nil {
		return nil, err
	}
	dir, err := newDir()
	if err != nil {
		return nil, err
	}
	ok := false
	defer func() {
		if !ok {
			os.RemoveAll(dir)
		}
	}()
	if err := give(as, dir); err != nil {
		return nil, err
	}
	init := exec.Command(initdb, "--pgdata", filepath.Join(dir, "data"), "--username", "postgres", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync")
	var said bytes.Buffer
	init.Dir, init.Stdout, init.Stderr = dir, &said, &said
	p, err := process.Start(init, as)
	if err == nil {
		err = p.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, said.Bytes())
	}
	// A free port may be taken by somebody else before the server has it.
	for attempt := 1; ; attempt++ {
		s, err := run(postgres, dir, as, c)
		if err == nil {
			ok = true
			return s, nil
		}
		if attempt == 5 {
			return nil, err
		}
	}
}

func run(postgres, dir string, as *process.User, c Config) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args := []string{
		"-D", filepath.Join(dir, "data"), "-p", strconv.Itoa(int(port)), "-k", dir, "-c", "listen_addresses=127.0.0.1",
		"-c", "max_connections=200", "-c", "shared_buffers=64MB",
	}
	for name, value := range c.Settings {
		args = append(args, "-c", name+"="+value)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(postgres, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append(os.Environ(), c.Env...)
	proc, err := process.Start(cmd, as)
	if err != nil {
		return nil, err
	}
	s := &Server{host: "127.0.0.1", port: port, user: "postgres", dir: dir, proc: proc}
	if err := s.await(proc.Ended()); err != nil {
		proc.Kill()
		said, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%w: %s", err, said)
	}
	return s, nil
}

func (s *Server) await(ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.dsn("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ended:
			return errors.New("the server ended at once")
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", err)
		case <-tick.C:
		}
	}
}

func (s *Server) stop() {
	if s.proc == nil {
		return
	}
	s.once.Do(func() {
		// The directory is removed when the server has ended, which on this
		// signal ends its own processes first.
		s.proc.Abort()
		select {
		case <-s.proc.Ended():
		case <-time.After(10 * time.Second):
			s.proc.Kill()
		}
		os.RemoveAll(s.dir)
		if f, ok := owned.LoadAndDelete(s.dir); ok {
			f.(*os.File).Close()
		}
	})
}
