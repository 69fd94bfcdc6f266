package main

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/fingerprint"
)

// payment is what a message asks for.
type payment struct {
	key     string
	account string
	amount  int64 // cents
}

// parse reads a message. Its error is one that no repetition mends.
func parse(fields map[string]any) (payment, error) {
	text := func(name string) string {
		s, _ := fields[name].(string)
		return s
	}
	p := payment{key: text("key"), account: text("account")}
	var err error
	if p.amount, err = strconv.ParseInt(text("amount"), 10, 64); err != nil || p.account == "" || p.key == "" {
		return p, fmt.Errorf("a message needs key, account and amount, this one has %v", fields)
	}
	return p, nil
}

// receipt is the stored outcome of a payment.
type receipt struct {
	Balance int64
}

// ledger keeps the accounts.
type ledger struct {
	db    *sql.DB
	scope string
	book  *idem.TxOperation[receipt, *sql.Tx]
}

const schema = `
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, account TEXT NOT NULL, amount INTEGER NOT NULL);`

func openLedger(ctx context.Context, drv *sqlite.Driver) (*ledger, error) {
	if _, err := drv.DB().ExecContext(ctx, schema); err != nil {
		return nil, err
	}
	// Keys are kept for longer than a message can be on its way.
	book, err := idem.NewTx[receipt](drv, idem.Config{Name: "payments.book", Retention: 30 * 24 * time.Hour})
	if err != nil {
		return nil, err
	}
	return &ledger{db: drv.DB(), scope: "payments", book: book}, nil
}

// post books a payment, unless it has been. during runs inside the transaction.
func (l *ledger) post(ctx context.Context, p payment, during func()) (idem.Result[receipt], error) {
	// The producer's key, not the ID of the stream's entry: an entry that was added
	// twice has two IDs.
	key := idem.Key{Scope: l.scope, ID: p.key}
	fp := fingerprint.Bytes([]byte(p.account), strconv.AppendInt(nil, p.amount, 10)).
		WithSummary(fmt.Sprintf("%d to %s", p.amount, p.account))
	return l.book.DoTx(ctx, key, fp, func(ctx context.Context, tx *sql.Tx) (r receipt, err error) {
		if _, err = tx.ExecContext(ctx, "INSERT INTO entries (account, amount) VALUES (?, ?)", p.account, p.amount); err != nil {
			return r, err
		}
		err = tx.QueryRowContext(ctx, `
			INSERT INTO accounts (name, balance) VALUES (?, ?)
			ON CONFLICT (name) DO UPDATE SET balance = balance + excluded.balance
			RETURNING balance`, p.account, p.amount).Scan(&r.Balance)
		during()
		return r, err
	})
}
