package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/internal/process"
)

// Bouncer starts pgbouncer in transaction mode in front of the database, with
// poolSize connections to the server, and returns its host:port. It ends with the test.
func (d *Database) Bouncer(t testing.TB, poolSize int) string {
	t.Helper()
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		if path = "/usr/sbin/pgbouncer"; !executable(path) {
			unavailable(t, fmt.Errorf("%w: nor is pgbouncer", errNoPrograms))
		}
	}
	as, err := account()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	dir, err := os.MkdirTemp("", "idem-pgbouncer-")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	port, err := freePort()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	target := fmt.Sprintf("host=%s port=%d user=%s", d.Server.host, d.Server.port, d.Server.user)
	if d.Server.pass != "" {
		target += " password=" + d.Server.pass
	}
	ini := fmt.Sprintf(`[databases]
%s = %s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = %d
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
`, d.Name, target, port, poolSize)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(ini), 0o600); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if err := give(as, dir, file); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	cmd := exec.Command(path, file)
	var said bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &said
	proc, err := process.Start(cmd, as)
	if err != nil {
		t.Fatalf("pgtest: pgbouncer: %v", err)
	}
	t.Cleanup(proc.Kill)

	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
	c := d.Config(t, Through(addr)).ConnConfig
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.ConnectConfig(ctx, c)
		if err == nil {
			conn.Close(ctx)
			return addr
		}
		select {
		case <-proc.Ended():
			t.Fatalf("pgtest: pgbouncer ended at once: %s", said.Bytes())
		case <-ctx.Done():
			t.Fatalf("pgtest: pgbouncer does not answer: %v", err)
		case <-tick.C:
		}
	}
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&0o111 != 0
}
