package bolt

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// The first two pages of a file each begin, after the head of the page, with a
// description of the file: the one with the later transaction is in force, unless
// its sum is wrong. All numbers are in the byte order of the machine.
const (
	pageHead  = 16
	metaMagic = 0xED0CDAED
	metaSize  = 64
	atPage    = 8  // size of a page, 4 bytes
	atUsed    = 40 // number of pages in use, 8 bytes
	atTx      = 48 // transaction, 8 bytes
	atSum     = 56 // FNV-1a of what stands before it, 8 bytes
)

// whole reports an error when the file is shorter than it says it is. bbolt would
// map what is not there, and reading that ends the process. What else may be wrong
// with the file is bbolt's to report.
func whole(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var last, used uint64
	page := int64(os.Getpagesize())
	for i := range int64(2) {
		m := make([]byte, metaSize)
		if _, err := f.ReadAt(m, i*page+pageHead); err != nil {
			break
		}
		sum := fnv.New64a()
		sum.Write(m[:atSum])
		if order := binary.NativeEndian; order.Uint32(m) == metaMagic && order.Uint64(m[atSum:]) == sum.Sum64() {
			page = int64(order.Uint32(m[atPage:]))
			if tx := order.Uint64(m[atTx:]); used == 0 || tx > last {
				last, used = tx, order.Uint64(m[atUsed:])
			}
		}
	}
	size, err := f.Seek(0, io.SeekEnd) // after it was read: a writer makes the file longer first
	if err != nil {
		return nil
	}
	if want := int64(used) * page; size > 0 && size < want {
		return fmt.Errorf("the file is cut short: it has %d bytes, and at least %d are in use", size, want)
	}
	return nil
}
