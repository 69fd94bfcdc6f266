package driver_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/idem-go/idem/driver"
)

func randomRecord(rnd *rand.Rand) driver.Record {
	text := func(most int) string {
		b := make([]byte, rnd.IntN(most+1))
		for i := range b {
			b[i] = byte(rnd.UintN(256))
		}
		return string(b)
	}
	instant := func() time.Time {
		if rnd.IntN(3) == 0 {
			return time.Time{}
		}
		return time.UnixMicro(rnd.Int64N(1 << 53)).UTC()
	}
	r := driver.Record{
		Key: driver.Key{Scope: text(255), ID: text(255)}, State: driver.State(1 + rnd.IntN(3)), Operation: text(128), Summary: text(1024),
		Fence: rnd.Int64(), Attempt: rnd.IntN(1 << 31), Hold: rnd.IntN(2) == 0, Note: text(1024),
		CreatedAt: instant(), LeaseUntil: instant(), CompletedAt: instant(), RetainUntil: instant(), GraceUntil: instant(),
	}
	if f := text(128); f != "" {
		r.Fingerprint = []byte(f)
	}
	for i := range r.Token {
		r.Token[i] = byte(rnd.UintN(256))
	}
	if rnd.IntN(4) > 0 {
		r.Result = append([]byte{}, text(4096)...)
	}
	return r
}

func TestCodecRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	records := []driver.Record{inFlight(), held(), complete(), released()}
	for range 500 {
		records = append(records, randomRecord(rnd))
	}
	h := key.Hash("ns", nil)
	for _, want := range records {
		b := want.AppendBinary([]byte("prefix"), h)
		if !bytes.HasPrefix(b, []byte("prefix")) {
			t.Fatal("AppendBinary does not append")
		}
		got, err := driver.DecodeRecord(b[len("prefix"):], h)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(want, got) { // cmp compares bytes one by one
			t.Fatalf("the record changed (-want +got):\n%s", cmp.Diff(want, got))
		}
	}
}

// With the race detector slices.Grow allocates twice.
func TestCodecDoesNotGrow(t *testing.T) {
	r, h := randomRecord(rand.New(rand.NewPCG(1, 2))), key.Hash("ns", nil)
	for _, r := range []driver.Record{{}, inFlight(), complete(), r} {
		if n := testing.AllocsPerRun(10, func() { r.AppendBinary(nil, h) }); n > 2 {
			t.Errorf("a record is encoded with %v allocations, want at most 2", n)
		}
	}
}

func TestCodecTellsNoResultFromAnEmptyOne(t *testing.T) {
	h := key.Hash("", nil)
	for _, result := range [][]byte{nil, {}} {
		r := complete()
		r.Result = result
		got, err := driver.DecodeRecord(r.AppendBinary(nil, h), h)
		if err != nil || (got.Result == nil) != (result == nil) {
			t.Errorf("result %#v came back as %#v, %v", result, got.Result, err)
		}
	}
}

func TestDecodedRecordSharesNothing(t *testing.T) {
	h := key.Hash("", nil)
	b := complete().AppendBinary(nil, h)
	got, err := driver.DecodeRecord(b, h)
	if err != nil {
		t.Fatal(err)
	}
	clear(b)
	if d := cmp.Diff(complete(), got); d != "" {
		t.Errorf("the record changed with its bytes:\n%s", d)
	}
}

func TestDecodeRefuses(t *testing.T) {
	h := key.Hash("", nil)
	noResult := complete()
	noResult.Result = nil
	whole := noResult.AppendBinary(nil, h)
	edit := func(i int, v byte) []byte {
		b := bytes.Clone(whole)
		b[i] = v
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"nothing":            {nil, driver.ErrForeignRecord},
		"a newer version":    {edit(0, whole[0]+1), driver.ErrNewerVersion},
		"version 255":        {edit(0, 255), driver.ErrNewerVersion},
		"version 0":          {edit(0, 0), driver.ErrForeignRecord},
		"state absent":       {edit(1, byte(driver.StateAbsent)), driver.ErrForeignRecord},
		"a state of time":    {edit(1, byte(driver.StateUnknown)), driver.ErrForeignRecord},
		"an unknown flag":    {edit(2, 1<<7), driver.ErrForeignRecord},
		"another key's hash": {edit(3, whole[3]^1), driver.ErrForeignRecord},
		"bytes after it":     {append(bytes.Clone(whole), 0), driver.ErrForeignRecord},
		"text":               {[]byte("\x01" + strings.Repeat("some other application's value", 10)), driver.ErrForeignRecord},
		"JSON":               {[]byte(`{"v":1}`), driver.ErrNewerVersion},
		"a length too large": {append(bytes.Clone(whole[:79]), bytes.Repeat([]byte{0xff}, 40)...), driver.ErrForeignRecord},
	} {
		r, err := driver.DecodeRecord(c.b, h)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want one that matches %v", name, err, c.want)
		}
		if d := cmp.Diff(driver.Record{}, r); d != "" {
			t.Errorf("%s: a record came beside the error:\n%s", name, d)
		}
	}
	if _, err := driver.DecodeRecord(whole, key.Hash("other", nil)); !errors.Is(err, driver.ErrForeignRecord) {
		t.Errorf("read under another hash: %v", err)
	}
	for n := range whole {
		if _, err := driver.DecodeRecord(whole[:n], h); !errors.Is(err, driver.ErrForeignRecord) {
			t.Errorf("cut to %d of %d bytes: %v", n, len(whole), err)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	h := key.Hash("", nil)
	for _, r := range []driver.Record{inFlight(), held(), complete(), released()} {
		f.Add(r.AppendBinary(nil, h))
	}
	f.Add([]byte{})
	f.Add([]byte{1, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := driver.DecodeRecord(b, h)
		if err != nil {
			if !errors.Is(err, driver.ErrForeignRecord) && !errors.Is(err, driver.ErrNewerVersion) {
				t.Fatalf("got error %v, of no known kind", err)
			}
			return
		}
		// What is read can be written, and means the same.
		again, err := driver.DecodeRecord(r.AppendBinary(nil, h), h)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(r, again); d != "" {
			t.Fatalf("the record changed:\n%s", d)
		}
	})
}
