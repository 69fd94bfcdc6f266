package idem_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/fingerprint"
)

// Example is the one in the README, run twice: the client heard no answer.
func Example() {
	store, closeStore := openShop()
	defer closeStore()
	for range 2 {
		if err := readme(context.Background(), store); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// order 1, replayed: false
	// order 1, replayed: true
}

// readme is shown in the README; TestReadme holds the two together.
func readme(ctx context.Context, store *sqlite.Driver) error {
	createOrder, err := idem.NewTx[int64](store, idem.Config{
		Name: "orders.create", Retention: 7 * 24 * time.Hour,
	})
	if err != nil {
		return err
	}
	key := idem.Key{Scope: "tenant-7", ID: "8e03978e"} // who asks, and the key that came with the request
	request := fingerprint.Bytes([]byte("POST"), []byte("/orders"), []byte(`{"item":"tea"}`))
	res, err := createOrder.DoTx(ctx, key, request, func(ctx context.Context, tx *sql.Tx) (int64, error) {
		row, err := tx.ExecContext(ctx, `INSERT INTO orders (item) VALUES ('tea')`)
		if err != nil {
			return 0, err // rolled back: nothing happened, and a repeat runs
		}
		return row.LastInsertId()
	})
	if err != nil {
		return err
	}
	fmt.Printf("order %d, replayed: %t\n", res.Value, res.Replayed)
	return nil
}

// TestReadme: the Go code in the README stands in the examples, and so is tested.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var source string
	for _, name := range []string{"example_test.go", "example_http_test.go"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source += string(b)
	}
	blocks := strings.Split(string(readme), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("the README has no Go code")
	}
	for _, b := range blocks {
		code, _, _ := strings.Cut(b, "```")
		if !strings.Contains(unindented(source), unindented(code)) {
			t.Errorf("this code of the README is not in an example:\n%s", code)
		}
	}
}

func unindented(code string) string {
	lines := strings.Split(code, "\n")
	for i := range lines {
		lines[i] = strings.TrimLeft(lines[i], "\t ")
	}
	return strings.Join(lines, "\n")
}

func ExampleOperation_Do() {
	sendMail, err := idem.New[string](memory.New(), idem.Config{Name: "mail.send"})
	if err != nil {
		log.Fatal(err)
	}
	key := idem.Key{Scope: "tenant-7", ID: "welcome-42"}
	for range 2 {
		res, err := sendMail.Do(context.Background(), key, fingerprint.None(),
			func(ctx context.Context, run *idem.Run) (string, error) {
				// The provider is given a key, too, so that an attempt after a crash
				// does not send a second mail.
				fmt.Println("sending, attempt", run.Attempt, "with a key of", len(run.DownstreamKey("send")), "characters")
				return "message 1", nil
			})
		fmt.Println(res.Value, res.Replayed, err)
	}
	// Output:
	// sending, attempt 1 with a key of 32 characters
	// message 1 false <nil>
	// message 1 true <nil>
}

func ExampleTxOperation_DoTx() {
	store, closeStore := openShop()
	defer closeStore()
	createOrder, err := idem.NewTx[string](store, idem.Config{Name: "orders.create"})
	if err != nil {
		log.Fatal(err)
	}
	key := idem.Key{Scope: "tenant-7", ID: "8e03978e"}
	call := func(fail error) {
		res, err := createOrder.DoTx(context.Background(), key, fingerprint.Bytes([]byte("tea")),
			func(ctx context.Context, tx *sql.Tx) (string, error) {
				if _, err := tx.ExecContext(ctx, `INSERT INTO orders (item) VALUES ('tea')`); err != nil {
					return "", err
				}
				return "ordered", fail
			})
		fmt.Printf("%q, replayed: %t, error: %v, rows: %d\n", res.Value, res.Replayed, err, countOrders(store))
	}
	call(errors.New("the price list is not there")) // rolled back: the key is free again
	call(nil)
	call(nil)
	// Output:
	// "", replayed: false, error: the price list is not there, rows: 0
	// "ordered", replayed: false, error: <nil>, rows: 1
	// "ordered", replayed: true, error: <nil>, rows: 1
}

func ExampleTxOperation_DoThenTx() {
	store, closeStore := openShop()
	defer closeStore()
	charge, err := idem.NewTx[string](store, idem.Config{Name: "orders.charge"})
	if err != nil {
		log.Fatal(err)
	}
	key := idem.Key{Scope: "tenant-7", ID: "8e03978e"}
	for range 2 {
		res, err := charge.DoThenTx(context.Background(), key, fingerprint.Bytes([]byte("tea")),
			func(ctx context.Context, run *idem.Run) (string, error) {
				fmt.Println("calling the payment provider") // with run.DownstreamKey("charge")
				return "charge 1", nil
			},
			func(ctx context.Context, tx *sql.Tx, charge string) (string, error) {
				// Commits together with the outcome, if the claim is still ours.
				_, err := tx.ExecContext(ctx, `INSERT INTO orders (item) VALUES (?)`, "paid by "+charge)
				return charge, err
			})
		fmt.Println(res.Value, res.Replayed, err, countOrders(store))
	}
	// Output:
	// calling the payment provider
	// charge 1 false <nil> 1
	// charge 1 true <nil> 1
}

func ExampleFinal() {
	pay, err := idem.New[string](memory.New(), idem.Config{Name: "pay"})
	if err != nil {
		log.Fatal(err)
	}
	key := idem.Key{Scope: "tenant-7", ID: "8e03978e"}
	for range 2 {
		res, err := pay.Do(context.Background(), key, fingerprint.None(),
			func(ctx context.Context, run *idem.Run) (string, error) {
				fmt.Println("asking the bank")
				return "", &idem.FinalError{Code: "card_declined", Err: errors.New("the card was declined")}
			})
		var final *idem.FinalError
		if errors.As(err, &final) {
			fmt.Println(final, "/", final.Code, "/", res.Replayed)
		}
	}
	// Output:
	// asking the bank
	// the card was declined / card_declined / false
	// the card was declined / card_declined / true
}

func ExampleNotApplied() {
	pay, err := idem.New[string](memory.New(), idem.Config{Name: "pay"})
	if err != nil {
		log.Fatal(err)
	}
	key := idem.Key{Scope: "tenant-7", ID: "8e03978e"}
	for _, answer := range []error{errors.New("the bank is closed"), nil} {
		res, err := pay.Do(context.Background(), key, fingerprint.None(),
			func(ctx context.Context, run *idem.Run) (string, error) {
				return "paid", idem.NotApplied(answer)
			})
		fmt.Printf("%q %v\n", res.Value, err)
	}
	// Output:
	// "" the bank is closed
	// "paid" <nil>
}

// A duplicate that arrives while the first call is at work waits for its outcome.
func ExampleConfig_wait() {
	op, err := idem.New[string](memory.New(), idem.Config{Name: "report", Wait: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	begin, runs := make(chan struct{}), 0
	results := make([]idem.Result[string], 8)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			<-begin
			results[i], _ = op.Do(context.Background(), idem.Key{Scope: "tenant-7", ID: "june"}, fingerprint.None(),
				func(ctx context.Context, run *idem.Run) (string, error) {
					runs++ // by one goroutine only
					return "report 1", nil
				})
		})
	}
	close(begin)
	wg.Wait()
	replayed := 0
	for _, r := range results {
		if r.Value == "report 1" && r.Replayed {
			replayed++
		}
	}
	fmt.Println("runs:", runs, "replays:", replayed)
	// Output: runs: 1 replays: 7
}

// Without Wait a duplicate is told at once how long to stay away; one with
// another request is told that.
func ExampleInFlightError() {
	op, err := idem.New[string](memory.New(), idem.Config{Name: "pay"})
	if err != nil {
		log.Fatal(err)
	}
	ctx, key := context.Background(), idem.Key{Scope: "tenant-7", ID: "8e03978e"}
	request, another := fingerprint.Bytes([]byte("10 EUR")), fingerprint.Bytes([]byte("99 EUR"))
	_, err = op.Do(ctx, key, request, func(context.Context, *idem.Run) (string, error) {
		for _, fp := range []idem.Fingerprint{request, another} {
			// From elsewhere, while this call is at work.
			_, err := op.Do(ctx, key, fp, func(context.Context, *idem.Run) (string, error) { return "not reached", nil })
			var inFlight *idem.InFlightError
			fmt.Println(errors.As(err, &inFlight) && inFlight.RetryAfter > 0, errors.Is(err, idem.ErrMismatch))
		}
		return "paid", nil
	})
	fmt.Println(err)
	// Output:
	// true false
	// false true
	// <nil>
}

// Under Hold an attempt without an outcome is repeated by nobody, until a person
// has found out what happened.
func ExampleOperation_Resolve() {
	transfer, err := idem.New[string](memory.New(), idem.Config{Name: "transfer", Policy: idem.Hold})
	if err != nil {
		log.Fatal(err)
	}
	ctx, key := context.Background(), idem.Key{Scope: "tenant-7", ID: "8e03978e"}
	call := func() {
		res, err := transfer.Do(ctx, key, fingerprint.None(), func(context.Context, *idem.Run) (string, error) {
			return "", errors.New("the connection to the bank broke")
		})
		fmt.Printf("%q %v unknown: %t\n", res.Value, err, errors.Is(err, idem.ErrUnknown))
	}
	call()
	call()
	unknown, _, err := transfer.List(ctx, idem.StateUnknown, 10, "")
	fmt.Println(len(unknown), unknown[0].Key.ID, err)
	fmt.Println(transfer.Resolve(ctx, key, "ticket 118: the bank has it", "transfer 1", nil))
	call()
	// Output:
	// "" the connection to the bank broke unknown: false
	// "" idem: outcome is unknown since attempt 1 ended, and the key is held unknown: true
	// 1 8e03978e <nil>
	// <nil>
	// "transfer 1" <nil> unknown: false
}

// openShop opens an SQLite file with a business table.
func openShop() (store *sqlite.Driver, closeStore func()) {
	dir, err := os.MkdirTemp("", "idem")
	if err != nil {
		log.Fatal(err)
	}
	if store, err = sqlite.Open(filepath.Join(dir, "shop.db")); err != nil {
		log.Fatal(err)
	}
	if _, err := store.DB().Exec(`CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)`); err != nil {
		log.Fatal(err)
	}
	return store, func() {
		store.Close()
		os.RemoveAll(dir)
	}
}

func countOrders(store *sqlite.Driver) (n int) {
	if err := store.DB().QueryRow(`SELECT count(*) FROM orders`).Scan(&n); err != nil {
		log.Fatal(err)
	}
	return n
}
