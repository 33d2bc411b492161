package t2r

// #include <stdlib.h>
// #include <t2r.h>
import "C"

import (
	"runtime"
	"strings"
	"unsafe"
)

// Tensor is a state: its bytes, row-major, in native byte order.
type Tensor struct {
	Name  string
	Dtype string // float32, float16, int8, int32 or int64
	Shape []int64
	Data  []byte
}

// States returns copies of all states.
func (d *Decoder) States() ([]Tensor, error) {
	info, err := d.Info()
	states := make([]Tensor, info.States)
	for i := 0; i < len(states) && err == nil; i++ {
		states[i], err = d.state(i)
	}
	return states, err
}

func (d *Decoder) state(index int) (state Tensor, err error) {
	var found C.t2r_tensor
	err = d.do(func() C.t2r_kind { return C.t2r_state(d.handle, C.size_t(index), &found) }, func() {
		state = Tensor{
			C.GoString(found.name), C.GoString(found.dtype), copied[int64](found.shape, int(found.rank)),
			copied[byte]((*C.char)(found.data), int(found.bytes)),
		}
	})
	return state, err
}

// SetStates continues from a complete set of states; the batch becomes theirs. position: tokens read, if no state says it.
func (d *Decoder) SetStates(states []Tensor, position int64) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	given := make([]C.t2r_tensor, len(states))
	for i, state := range states {
		if strings.IndexByte(state.Name+state.Dtype, 0) >= 0 {
			return failed(KindSnapshot, "expected a state's name and dtype; received a zero byte in it; see Decoder.States")
		}
		given[i].name, given[i].dtype = C.CString(state.Name), C.CString(state.Dtype)
		defer C.free(unsafe.Pointer(given[i].name))
		defer C.free(unsafe.Pointer(given[i].dtype))
		given[i].rank, given[i].bytes = C.size_t(len(state.Shape)), C.size_t(len(state.Data))
		if len(state.Shape) > 0 {
			given[i].shape = numbers(state.Shape)
			pinner.Pin(given[i].shape)
		}
		if len(state.Data) > 0 {
			given[i].data = unsafe.Pointer(unsafe.SliceData(state.Data))
			pinner.Pin(given[i].data)
		}
	}
	first := unsafe.SliceData(given)
	return d.do(func() C.t2r_kind {
		return C.t2r_set_states(d.handle, first, C.size_t(len(given)), C.int64_t(position))
	}, nil)
}

// Save writes the states to a file, and a token that was chosen but not read, or -1.
func (d *Decoder) Save(path string, token int64) error {
	return onPath(path, func(name *C.char) error {
		return d.do(func() C.t2r_kind { return C.t2r_save(d.handle, name, C.int64_t(token)) }, nil)
	})
}

// Load continues from such a file, of any language's runtime. It returns the saved token, or -1.
func (d *Decoder) Load(path string) (int64, error) {
	token := C.int64_t(-1)
	err := onPath(path, func(name *C.char) error {
		return d.do(func() C.t2r_kind { return C.t2r_load(d.handle, name, &token) }, nil)
	})
	return int64(token), err
}

// SaveMemory returns the bytes that Save would write.
func (d *Decoder) SaveMemory(token int64) (snapshot []byte, err error) {
	var data unsafe.Pointer
	var size C.size_t
	err = d.do(func() C.t2r_kind { return C.t2r_save_memory(d.handle, C.int64_t(token), &data, &size) }, func() {
		snapshot = copied[byte]((*C.char)(data), int(size))
	})
	return snapshot, err
}

// LoadMemory is Load, from such bytes.
func (d *Decoder) LoadMemory(snapshot []byte) (int64, error) {
	token := C.int64_t(-1)
	data := unsafe.Pointer(&nothing)
	if len(snapshot) > 0 {
		data = unsafe.Pointer(unsafe.SliceData(snapshot))
	}
	err := d.do(func() C.t2r_kind { return C.t2r_load_memory(d.handle, data, C.size_t(len(snapshot)), &token) }, nil)
	return int64(token), err
}
