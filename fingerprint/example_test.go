package fingerprint_test

import (
	"errors"
	"fmt"

	"github.com/idem-go/idem/fingerprint"
)

func ExampleBytes() {
	a := fingerprint.Bytes([]byte("POST"), []byte("/orders"), []byte(`{"item":"tea"}`))
	b := fingerprint.Bytes([]byte("POST"), []byte("/orders"), []byte(`{"item": "tea"}`))
	fmt.Println(a.Recipe(), a == b)
	// Output: bytes.v1 false
}

func ExampleJSON() {
	a, _ := fingerprint.JSON([]byte(`{"item":"tea","price":1.50}`))
	b, _ := fingerprint.JSON([]byte(`{ "price": 1.5, "item": "tea" }`))
	c, _ := fingerprint.JSON(map[string]any{"item": "tea", "price": 1.5})
	fmt.Println(a == b, a == c)

	_, err := fingerprint.JSON([]byte(`{"id":9007199254740993}`))
	fmt.Println(errors.Is(err, fingerprint.ErrInvalidJSON))
	fmt.Println(err)
	// Output:
	// true true
	// true
	// fingerprint: JSON without a fingerprint: a number that a double cannot hold exactly at offset 6
}

func ExampleFields() {
	a, _ := fingerprint.Fields([]byte(`{"item":"tea","qty":2,"sent":"10:00"}`), "/item", "/qty")
	b, _ := fingerprint.Fields([]byte(`{"item":"tea","qty":2,"sent":"10:05"}`), "/item", "/qty")
	c, _ := fingerprint.Fields([]byte(`{"item":"tea"}`), "/item", "/qty")
	d, _ := fingerprint.Fields([]byte(`{"item":"tea","qty":null}`), "/item", "/qty")
	fmt.Println(a == b, c == d)
	// Output: true false
}

func ExampleNone() {
	fmt.Println(fingerprint.None().Recipe())
	// Output: none.v1
}
