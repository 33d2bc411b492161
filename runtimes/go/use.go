package t2r

// #include <stdlib.h>
// #include <t2r.h>
import "C"

import (
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// use lets one goroutine at a time use a handle, until a call's results have been copied.
type use struct {
	name  string
	mutex sync.Mutex
}

// do makes a call, and then copies its results with then, which may be nil.
func (u *use) do(call func() C.t2r_kind, then func()) error {
	if !u.mutex.TryLock() {
		return failed(KindState, "expected one call at a time in a %s; received another, from a second goroutine or a callback; "+
			"give each goroutine one of its own", u.name)
	}
	defer u.mutex.Unlock()
	if err := try(call); err != nil {
		return err
	}
	if then != nil {
		then()
	}
	return nil
}

// try makes a call. The error message is thread-local.
func try(call func() C.t2r_kind) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if kind := call(); kind != C.T2R_OK {
		return &Error{Kind(kind), C.GoString(C.t2r_error())}
	}
	return nil
}

var nothing C.int64_t

// numbers is a pointer to a slice's first element for C, never NULL.
func numbers(tokens []int64) *C.int64_t {
	if len(tokens) == 0 {
		return &nothing
	}
	return (*C.int64_t)(unsafe.SliceData(tokens))
}

// copied is a copy of the library's memory.
func copied[T, F any](pointer *F, count int) []T {
	return slices.Clone(unsafe.Slice((*T)(unsafe.Pointer(pointer)), count))
}

// flat is rows of one length, concatenated, and the length.
func flat(rows [][]int64) ([]int64, int, error) {
	if len(rows) == 0 {
		return nil, 0, nil
	}
	for _, row := range rows {
		if len(row) != len(rows[0]) {
			return nil, 0, failed(KindBatch, "expected rows of one length; received %d and %d tokens; read them one by one", len(rows[0]), len(row))
		}
	}
	return slices.Concat(rows...), len(rows[0]), nil
}

// words are texts for C, which stay pinned until the pinner releases them.
func words(texts []string, pinner *runtime.Pinner) (**C.char, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	made := make([]*C.char, len(texts))
	for i, text := range texts {
		if strings.IndexByte(text, 0) >= 0 {
			return nil, failed(KindArgument, "expected a text; received one with a zero byte in it; leave that out")
		}
		made[i] = bytes(text + "\x00")
		pinner.Pin(made[i])
	}
	pinner.Pin(&made[0])
	return &made[0], nil
}

// onPath calls with a path for C.
func onPath(path string, call func(*C.char) error) error {
	if strings.IndexByte(path, 0) >= 0 {
		return failed(KindFile, "expected a path; received one with a zero byte in it; name a file")
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	return call(name)
}
