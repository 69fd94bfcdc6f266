// Command orders is an HTTP server that creates each order once, however often
// the request for it arrives.
//
//	go run ./examples/orders
//
// keeps the orders and the records of their keys in an SQLite file, in a temporary
// directory, and prints two commands to try it with. -driver and -dsn choose
// another store:
//
//	-driver sqlite   -dsn FILE                        one transaction holds order and key
//	-driver bolt     -dsn FILE                        the same
//	-driver postgres -dsn postgres://user@host/db     the same
//	-driver redis    -dsn redis://host:6379           no transaction; see redis.go
//
// It pays orders back, too, each once. The key of a refund is the order's, GET shows a
// clerk what became of it, and a refund that a crash has left unknown is not sent
// again but resolved by a person:
//
//	curl -si -H 'Idempotency-Key: order-7' -d '{"amount":500}' http://127.0.0.1:8080/refunds
//	curl -s http://127.0.0.1:8080/refunds/order-7
//	curl -s -d '{"paid":500,"reason":"statement 118"}' http://127.0.0.1:8080/refunds/order-7/resolve
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// options are what the command line says.
type options struct {
	addr, driver, dsn string
	wait, lease       time.Duration
	allowPause        bool
}

func main() {
	var o options
	flag.StringVar(&o.addr, "addr", "127.0.0.1:8080", "`address` to listen on")
	flag.StringVar(&o.driver, "driver", "sqlite", "where orders and keys are kept: sqlite, bolt, postgres or redis")
	flag.StringVar(&o.dsn, "dsn", "", "`file` of sqlite or bolt (default: in a temporary directory), URL of postgres or redis")
	flag.DurationVar(&o.wait, "wait", 10*time.Second, "how long a duplicate waits for the first request; 0: it gets 409 at once")
	flag.DurationVar(&o.lease, "lease", 10*time.Second, "how long the key of a process that died stays taken, for refunds and on redis")
	flag.BoolVar(&o.allowPause, "allow-pause", false, "for demonstrations: let a request pause, by a header (Demo-Pause: 30s), when its effect has happened and its answer is not stored")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, o options) (err error) {
	if o.dsn == "" {
		if o.driver != "sqlite" && o.driver != "bolt" {
			return fmt.Errorf("-driver %s needs -dsn", o.driver)
		}
		dir, err := os.MkdirTemp("", "orders-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.dsn = filepath.Join(dir, "orders.db")
	}
	st, err := open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close()) }() // when nothing uses it any more
	shop, err := newShop(st, o)
	if err != nil {
		return err
	}

	// Records that are over, of orders and refunds, are deleted by a goroutine of the
	// application's own.
	maintained, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := shop.orders.Operation().Maintain(maintained); maintained.Err() == nil {
			log.Printf("purging stopped: %v", err)
		}
	})
	defer wg.Wait()
	defer stop()

	ln, err := net.Listen("tcp", o.addr)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: shop.handler(), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	greet("http://"+ln.Addr().String()+"/orders", o)
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	return srv.Shutdown(ctx) // requests in progress end first
}

const shutdownTimeout = 15 * time.Second

func greet(url string, o options) {
	post := fmt.Sprintf(`curl -si -H 'Idempotency-Key: %s' -d '{"item":"tea","quantity":2}' %s`, rand.Text(), url)
	fmt.Printf(`Listening on %s, with %s.

Send one request twice at the same moment, then count the orders:

  %s & %s & wait

  curl -s %s

`, url, o.driver, post, post, url)
}
