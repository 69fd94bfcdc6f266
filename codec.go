package idem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
)

// Codec encodes the results of an operation. It is used concurrently.
//
// Every caller, the first included, gets the value decoded from the encoding, so
// that all of them see equal values, also where the encoding is lossy.
type Codec interface {
	// Marshal encodes a result. An error leaves the operation complete without
	// its result; see [Result.NotStored].
	Marshal(v any) ([]byte, error)
	// Unmarshal decodes into the pointer v. It must copy what it keeps of data.
	Unmarshal(data []byte, v any) error
}

// defaultCodec is JSON, except for a string or []byte, which are stored as they are.
func defaultCodec[R any]() (Codec, error) {
	switch any((*R)(nil)).(type) {
	case *string, *[]byte:
		return rawCodec{}, nil
	}
	return jsonCodec{}, encodable[R]()
}

type rawCodec struct{}

// Marshal takes a pointer: unlike a string, it is not copied to be passed.
func (c rawCodec) Marshal(v any) ([]byte, error) { return c.encode(nil, v), nil }

// encode returns a new slice of head and the encoding of the value that v points to.
func (rawCodec) encode(head []byte, v any) []byte {
	switch v := v.(type) {
	case *string:
		return append(append(make([]byte, 0, len(head)+len(*v)), head...), *v...)
	case *[]byte:
		if *v != nil { // one byte tells empty from nil
			return append(append(append(make([]byte, 0, len(head)+1+len(*v)), head...), 0), *v...)
		}
	}
	return slices.Clone(head)
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	switch v := v.(type) {
	case *string:
		*v = string(data)
	case *[]byte:
		if *v = nil; len(data) > 0 {
			*v = append([]byte{}, data[1:]...)
		}
	}
	return nil
}

// jsonCodec is JSON in which numbers held by an interface come back as
// json.Number, so that integers over 2^53 keep every digit.
type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err == nil && replaced(b) && !faithful(v, b) {
		return nil, errors.New("a string is not valid UTF-8, which JSON cannot hold")
	}
	return b, err
}

// faithful reports whether the encoding b of v comes back as the same bytes: then
// the escape stands in JSON that v holds as text.
func faithful(v any, b []byte) bool {
	back := reflect.New(reflect.TypeOf(v))
	if err := json.Unmarshal(b, back.Interface()); err != nil {
		return false
	}
	again, err := json.Marshal(back.Elem().Interface())
	return err == nil && bytes.Equal(again, b)
}

func (jsonCodec) Unmarshal(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("data after the JSON value")
	}
	return nil
}

// replaced reports whether encoding/json put U+FFFD in place of invalid UTF-8. It
// writes the escape for that; a U+FFFD that was in the string is written raw.
func replaced(b []byte) bool {
	for {
		i := bytes.IndexByte(b, '\\')
		if i < 0 || i+1 == len(b) {
			return false
		}
		if bytes.HasPrefix(b[i:], []byte(`\ufffd`)) {
			return true
		}
		b = b[i+2:]
	}
}

// encode returns the outcome to store for a value, never longer than c.MaxResult.
// When the value cannot be stored, the error says why, and the outcome tells it
// to repeats.
func (c *Config) encode(v any) ([]byte, *NotStoredError) {
	payload, err := c.marshal(v)
	if err != nil {
		// The error may quote the value, so it is not stored.
		outcome, e := notStored(fmt.Sprintf("a %T cannot be encoded", v))
		e.Err = err
		return outcome, e
	}
	return c.fit(outcomeOf(kindValue, payload))
}

// marshal turns a panic of the codec into an error: fn has succeeded, and must
// not run again because its result is odd.
func (c *Config) marshal(v any) (b []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the codec panicked: %v", p)
		}
	}()
	return c.Codec.Marshal(v)
}

// fit replaces an outcome that is over the limit.
func (c *Config) fit(outcome []byte) ([]byte, *NotStoredError) {
	if n := len(outcome) - 2; n > c.MaxResult {
		return notStored(fmt.Sprintf("it has %d bytes, the limit is %d", n, c.MaxResult))
	}
	return outcome, nil
}

func notStored(reason string) ([]byte, *NotStoredError) {
	return outcomeOf(kindNotStored, []byte(reason)), &NotStoredError{Reason: reason}
}

// encodable reports, as an error, a type of which encoding/json can never encode
// a value: a function, a channel, a complex number.
func encodable[R any]() (err error) {
	defer func() { _ = recover() }() // a method that cannot take the zero value says nothing about others
	var zero R
	_, err = json.Marshal(zero)
	var unsupported *json.UnsupportedTypeError
	if errors.As(err, &unsupported) {
		return unsupported
	}
	return nil
}
