package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/idem-go/idem/driver"
)

var guaranteesRules = []rule{
	{
		id:      "guarantees/stated",
		promise: "every guarantee is stated, in the words there are for it, and always alike",
		check: func(ctx context.Context, e *env) error {
			g := e.d.Guarantees()
			switch {
			case g != e.d.Guarantees():
				return errors.New("two calls of Guarantees differ")
			case g.Backend == "" || g.Failover == "" || g.WhenFull == "":
				return fmt.Errorf("backend, Failover or WhenFull is empty: %+v", g)
			case !slices.Contains([]driver.Durability{driver.DurableAlways, driver.DurableConfigured, driver.DurableNever}, g.DurableClaim):
				return fmt.Errorf("DurableClaim is %q", g.DurableClaim)
			case !slices.Contains([]driver.Clock{driver.ServerClock, driver.HostClock}, g.Clock):
				return fmt.Errorf("clock is %q", g.Clock)
			case !slices.Contains([]driver.Sharing{driver.SharedByGoroutines, driver.SharedByProcesses, driver.SharedByHosts}, g.Sharing):
				return fmt.Errorf("sharing is %q", g.Sharing)
			case !slices.Contains([]driver.TxDuplicate{driver.TxDuplicateNone, driver.TxDuplicateFailFast, driver.TxDuplicateFailFastLocal}, g.TxDuplicate):
				return fmt.Errorf("TxDuplicate is %q", g.TxDuplicate)
			}
			return nil
		},
	},
	{
		id:      "guarantees/transactions",
		promise: "a driver states that it is atomic with business data exactly when it has transactions",
		check: func(ctx context.Context, e *env) error {
			g := e.d.Guarantees()
			// TxDriver is generic, so only its methods can be asked for.
			_, begin := reflect.TypeOf(e.d).MethodByName("BeginClaim")
			_, complete := reflect.TypeOf(e.d).MethodByName("BeginComplete")
			switch {
			case begin != complete:
				return fmt.Errorf("has BeginClaim: %t, has BeginComplete: %t", begin, complete)
			case g.AtomicWithBusinessData != begin:
				return fmt.Errorf("states atomic with business data: %t, has transactions: %t", g.AtomicWithBusinessData, begin)
			case (g.TxDuplicate != driver.TxDuplicateNone) != begin:
				return fmt.Errorf("states about duplicates %q, has transactions: %t", g.TxDuplicate, begin)
			case g.SingleWriter && !begin:
				return errors.New("states a single writer, and has no transactions")
			}
			return nil
		},
	},
	{
		id:      "guarantees/sharing",
		promise: "a driver states that processes can share the store exactly when a second handle works",
		check: func(ctx context.Context, e *env) error {
			shared := e.d.Guarantees().Sharing != driver.SharedByGoroutines
			if shared != (e.makeSecond != nil) {
				return fmt.Errorf("states sharing %q, and the harness has a second handle: %t", e.d.Guarantees().Sharing, e.makeSecond != nil)
			}
			if !shared {
				return nil
			}
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			got, err := get(ctx, e.other(), p.Key, t0)
			if err != nil {
				return err
			}
			return unchanged(got, r)
		},
	},
	{
		id:      "guarantees/durability",
		promise: "a driver states that claims are durable only when they survive reopening the store",
		check: func(ctx context.Context, e *env) error {
			switch g := e.d.Guarantees(); {
			case g.DurableClaim == driver.DurableAlways && e.makeReopened == nil:
				return errors.New("states that claims are always durable, and the harness cannot reopen the store")
			case g.DurableClaim == driver.DurableNever && e.makeReopened != nil:
				return errors.New("states that claims are never durable, and the harness reopens the store")
			case e.makeReopened == nil:
				return nil
			}
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			e.reopen()
			got, err := e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			return unchanged(got, r)
		},
	},
	{
		id:      "guarantees/clock",
		promise: "Now of a record is the instant given or, without one, that of the clock which is stated",
		check: func(ctx context.Context, e *env) error {
			k := e.key()
			r, err := e.get(ctx, k, t0.Add(time.Microsecond))
			if err != nil {
				return err
			}
			if !r.Now.Equal(t0.Add(time.Microsecond)) {
				return fmt.Errorf("get at %s says it is %s", offset(t0.Add(time.Microsecond)), offset(r.Now))
			}
			before := time.Now()
			if r, err = e.get(ctx, k, time.Time{}); err != nil {
				return err
			}
			after := time.Now()
			if r.Now.IsZero() || !r.Now.Equal(r.Now.Truncate(time.Microsecond)) {
				return fmt.Errorf("get without Now says it is %v, want whole microseconds", r.Now)
			}
			if e.d.Guarantees().Clock == driver.HostClock && (r.Now.Before(before.Truncate(time.Microsecond)) || r.Now.After(after)) {
				return fmt.Errorf("get between %v and %v by the host's clock says it is %v", before, after, r.Now)
			}
			return nil
		},
	},
}
