package driver

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// recordVersion is the first byte of an encoded record. A reader accepts its own
// version and older ones, and answers [ErrNewerVersion] to the rest.
const recordVersion = 1

// emptyBytes is what a record takes that has no texts and no result: the fixed fields,
// and six lengths.
const emptyBytes = 3 + 16 + 16 + 8 + 4 + 5*8 + 6*4

// AppendBinary appends an encoding of r for the key h, for stores of opaque values. Now
// is not encoded. [DecodeRecord] reads it back.
func (r Record) AppendBinary(b []byte, h KeyHash) []byte {
	b = slices.Grow(b, emptyBytes+len(r.Key.Scope)+len(r.Key.ID)+len(r.Operation)+len(r.Summary)+len(r.Note)+
		len(r.Fingerprint)+len(r.Result))
	b = append(b, recordVersion, byte(r.State), flags(r))
	b = append(b, h[:]...)
	b = append(b, r.Token[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Fence))
	b = binary.BigEndian.AppendUint32(b, uint32(r.Attempt))
	for _, t := range [...]time.Time{r.CreatedAt, r.LeaseUntil, r.CompletedAt, r.RetainUntil, r.GraceUntil} {
		b = binary.BigEndian.AppendUint64(b, uint64(micros(t)))
	}
	for _, s := range [...]string{r.Key.Scope, r.Key.ID, r.Operation, r.Summary, r.Note} {
		b = appendBytes(b, s)
	}
	b = appendBytes(b, r.Fingerprint)
	return append(b, r.Result...)
}

const (
	flagHold   = 1 << 0
	flagResult = 1 << 1 // a result is present, though it may be empty
)

func flags(r Record) (f byte) {
	if r.Hold {
		f |= flagHold
	}
	if r.Result != nil {
		f |= flagResult
	}
	return f
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func appendBytes[T string | []byte](b []byte, s T) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// DecodeRecord reads what [Record.AppendBinary] wrote for the key h. The record
// shares no memory with b. It returns an error that wraps [ErrNewerVersion], or
// [ErrForeignRecord] when b is truncated, is not a record, or belongs to another key.
func DecodeRecord(b []byte, h KeyHash) (Record, error) {
	if len(b) == 0 {
		return Record{}, fmt.Errorf("%w: no bytes", ErrForeignRecord)
	}
	if b[0] > recordVersion {
		return Record{}, fmt.Errorf("%w: record version %d, this is %d", ErrNewerVersion, b[0], recordVersion)
	}
	d := decoder{b: b[1:], ok: b[0] == recordVersion}
	r := Record{State: State(d.byte())}
	f := d.byte()
	stored := KeyHash(d.array())
	r.Token = Token(d.array())
	r.Fence = int64(d.uint64())
	r.Attempt = int(d.uint32())
	for _, t := range [...]*time.Time{&r.CreatedAt, &r.LeaseUntil, &r.CompletedAt, &r.RetainUntil, &r.GraceUntil} {
		*t = d.time()
	}
	for _, s := range [...]*string{&r.Key.Scope, &r.Key.ID, &r.Operation, &r.Summary, &r.Note} {
		*s = string(d.bytes())
	}
	r.Fingerprint = append([]byte(nil), d.bytes()...)
	r.Hold = f&flagHold != 0
	if f&flagResult != 0 {
		r.Result = append([]byte{}, d.b...)
	} else if len(d.b) > 0 {
		d.ok = false
	}
	switch {
	case !d.ok, f&^(flagHold|flagResult) != 0, r.State == StateAbsent, r.State > StateReleased:
		return Record{}, fmt.Errorf("%w: %d bytes that are not a record", ErrForeignRecord, len(b))
	case stored != h:
		return Record{}, fmt.Errorf("%w: the record of %v stands under %v", ErrForeignRecord, stored, h)
	}
	return r, nil
}

// decoder reads fields off the front of b; ok turns false at the first that is not there.
type decoder struct {
	b  []byte
	ok bool
}

func (d *decoder) take(n int) []byte {
	if !d.ok || n < 0 || n > len(d.b) {
		d.ok = false
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte {
	if v := d.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) uint32() uint32 {
	if v := d.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if v := d.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (d *decoder) array() (a [16]byte) {
	copy(a[:], d.take(len(a)))
	return a
}

func (d *decoder) bytes() []byte { return d.take(int(d.uint32())) }

func (d *decoder) time() time.Time {
	if us := int64(d.uint64()); us != 0 {
		return time.UnixMicro(us).UTC()
	}
	return time.Time{}
}
