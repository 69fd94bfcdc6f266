// Package foreign puts records into stores that no driver has written: its tests are
// what somebody with access to the store, a damaged page or a newer version can do to
// the reader.
package foreign
