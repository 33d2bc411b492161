// Package t2r runs the graphs of t2r-export: tokens in, logits out, states kept between them.
//
// It is a layer over libt2r (runtimes/cpp). Every failure is an *[Error]: a kind, and one line. What a call returns is the
// caller's own. A handle is of one goroutine at a time: a second one in it is told so, and so is who uses one that was
// closed. What is not closed keeps its memory until the program ends.
package t2r

// #cgo LDFLAGS: -lt2r
// #include <stdlib.h>
// #include <t2r.h>
import "C"

import (
	"runtime"
	"unsafe"
)

// Decoder is an opened step graph and the states of the texts that it reads.
type Decoder struct {
	use
	handle          *C.t2r_decoder
	vocabSize, topK int
}

// Options say how a graph is opened.
type Options struct {
	Threads       int32 // inside an operator; 0: those of ShareThreads, else one a core
	Companions    bool  // whether the prefill and generation graphs that lie beside are used
	MaxStateBytes int64 // what a graph may ask for, at batch 1
	// ONNX Runtime's own options of a session, each a key and behind it its value.
	Config []string
	// An execution provider, as ONNX Runtime names it or by its library's path, then its options as in Config; nil: the CPU. It
	// runs all nodes, unless Config has "session.disable_cpu_ep_fallback", "0".
	Provider []string
}

// ShareThreads has one set of threads for all graphs but those that are opened with a number of their own: as many; 0: one a
// core. Before the first is opened.
func ShareThreads(threads int32) error {
	return try(func() C.t2r_kind { return C.t2r_share_threads(C.int32_t(threads)) })
}

// DefaultOptions are the library's.
func DefaultOptions() Options {
	var made C.t2r_options
	C.t2r_defaults(&made, C.sizeof_t2r_options)
	return Options{Threads: int32(made.threads), Companions: made.companions != 0, MaxStateBytes: int64(made.max_state_bytes)}
}

// Open opens a step graph, at the start of a text.
func Open(path string) (*Decoder, error) { return OpenWith(path, DefaultOptions()) }

// OpenWith is Open with options.
func OpenWith(path string, options Options) (*Decoder, error) {
	return options.open(func(given *C.t2r_options, handle **C.t2r_decoder) error {
		return onPath(path, func(name *C.char) error {
			return try(func() C.t2r_kind { return C.t2r_open(name, given, handle) })
		})
	})
}

// File is a file that is in memory.
type File struct {
	Name string // as it would have in a folder
	Data []byte
}

// OpenMemory opens a step graph that is in memory, the first of the files. The others are weights and companions, each under
// the name that it would have beside it.
func OpenMemory(files []File, options Options) (*Decoder, error) {
	return options.open(func(given *C.t2r_options, handle **C.t2r_decoder) error {
		var pinner runtime.Pinner
		defer pinner.Unpin()
		made := make([]C.t2r_file, max(len(files), 1))
		for i, file := range files {
			name, err := words([]string{file.Name}, &pinner)
			if err != nil {
				return err
			}
			made[i].name, made[i].bytes = *name, C.size_t(len(file.Data))
			if len(file.Data) > 0 {
				made[i].data = unsafe.Pointer(unsafe.SliceData(file.Data))
				pinner.Pin(made[i].data)
			}
		}
		return try(func() C.t2r_kind { return C.t2r_open_memory(&made[0], C.size_t(len(files)), given, handle) })
	})
}

// open makes a decoder with options for C.
func (o Options) open(open func(*C.t2r_options, **C.t2r_decoder) error) (*Decoder, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	given := C.t2r_options{size: C.sizeof_t2r_options}
	given.threads = C.int32_t(o.Threads)
	given.companions = number(o.Companions)
	given.max_state_bytes = C.int64_t(o.MaxStateBytes)
	var err error
	if given.config, err = words(o.Config, &pinner); err != nil {
		return nil, err
	}
	if given.provider, err = words(o.Provider, &pinner); err != nil {
		return nil, err
	}
	given.config_count, given.provider_count = C.size_t(len(o.Config)), C.size_t(len(o.Provider))
	var handle *C.t2r_decoder
	if err := open(&given, &handle); err != nil {
		return nil, err
	}
	return opened(handle)
}

// Fork is another decoder of the same opened graph, at the start of a text, for another goroutine: the weights are shared.
func (d *Decoder) Fork() (*Decoder, error) {
	var handle *C.t2r_decoder
	if err := d.do(func() C.t2r_kind { return C.t2r_fork(d.handle, &handle) }, nil); err != nil {
		return nil, err
	}
	return opened(handle)
}

// Copy is the same with the states of this one: it goes on where this one stands.
func (d *Decoder) Copy() (*Decoder, error) {
	var handle *C.t2r_decoder
	if err := d.do(func() C.t2r_kind { return C.t2r_copy(d.handle, &handle) }, nil); err != nil {
		return nil, err
	}
	return opened(handle)
}

// Cancel ends the call that is in the decoder, from another goroutine or a callback: it fails with KindCancelled, within a
// step too. Where none is in it, nothing happens.
func (d *Decoder) Cancel() error {
	return try(func() C.t2r_kind { return C.t2r_cancel(d.handle) })
}

// Metadata is what the graph's file says under a key, as in "t2r.chat_template"; "" where it says nothing.
func (d *Decoder) Metadata(key string) (value string, err error) {
	name := C.CString(key)
	defer C.free(unsafe.Pointer(name))
	var found *C.char
	err = d.do(func() C.t2r_kind { return C.t2r_metadata(d.handle, name, &found, nil) }, func() { value = C.GoString(found) })
	return value, err
}

func opened(handle *C.t2r_decoder) (*Decoder, error) {
	decoder := &Decoder{use: use{name: "decoder"}, handle: handle}
	info, err := decoder.Info()
	decoder.vocabSize, decoder.topK = int(info.VocabSize), info.TopK
	return decoder, err
}

// Close gives the memory back. A decoder that is closed is an error in all calls from then on.
func (d *Decoder) Close() error {
	return d.do(func() C.t2r_kind { return C.t2r_close(d.handle) }, nil)
}

// Info is what a graph says of itself, and where its decoder stands.
type Info struct {
	VocabSize    int64
	Batch        int   // sequences side by side, now
	FixedBatch   int   // the only number of them that the graph takes; 0: any
	Position     int64 // tokens read by the furthest sequence
	MaxPositions int64 // after which a step is refused; 0: there is no end
	BOSToken     int64 // -1: none
	EOSTokens    []int64
	TopK         int // how many Decoder.TopK gives; 0: the graph has no such outputs
	States       int
	Checkpoint   string // its SHA-256
	Prefills     bool   // whether a prefill graph lies beside
	Generates    bool   // whether a generation graph does
	Translates   bool   // whether it is a translator's
	Chats        bool   // whether Decoder.Metadata has "t2r.chat_template"
}

// Info tells where the decoder stands.
func (d *Decoder) Info() (info Info, err error) {
	var found C.t2r_info
	err = d.do(func() C.t2r_kind { return C.t2r_get_info(d.handle, &found, C.sizeof_t2r_info) }, func() {
		info = Info{
			VocabSize:    int64(found.vocab_size),
			Batch:        int(found.batch),
			FixedBatch:   int(found.fixed_batch),
			Position:     int64(found.position),
			MaxPositions: int64(found.max_positions),
			BOSToken:     int64(found.bos_token),
			EOSTokens:    copied[int64](found.eos_tokens, int(found.eos_count)),
			TopK:         int(found.top_k),
			States:       int(found.states),
			Checkpoint:   C.GoString(found.checkpoint),
			Prefills:     found.prefills != 0,
			Generates:    found.generates != 0,
			Translates:   found.translates != 0,
			Chats:        found.chats != 0,
		}
	})
	return info, err
}

// Reset goes back to the start of a text, of so many sequences; 0 leaves their number as it is.
func (d *Decoder) Reset(batch int) error {
	return d.do(func() C.t2r_kind { return C.t2r_reset(d.handle, C.size_t(batch)) }, nil)
}

// Step reads one token of each sequence. The logits of what comes next, (batch, VocabSize), row by row.
func (d *Decoder) Step(tokens ...int64) (logits []float32, err error) {
	var found *C.float
	err = d.do(func() C.t2r_kind {
		return C.t2r_step(d.handle, numbers(tokens), C.size_t(len(tokens)), &found)
	}, func() { logits = copied[float32](found, len(tokens)*d.vocabSize) })
	return logits, err
}

// Prefill reads many tokens of each sequence, as many of each; many in one run where there is a prefill graph. The logits
// of what comes next, (batch, VocabSize).
func (d *Decoder) Prefill(rows ...[]int64) (logits []float32, err error) {
	tokens, length, err := flat(rows)
	if err != nil {
		return nil, err
	}
	var found *C.float
	err = d.do(func() C.t2r_kind {
		return C.t2r_prefill(d.handle, numbers(tokens), C.size_t(len(rows)), C.size_t(length), &found)
	}, func() { logits = copied[float32](found, len(rows)*d.vocabSize) })
	return logits, err
}

// TopK is Prefill, of whose logits only the largest come out, (batch, TopK), and their tokens.
func (d *Decoder) TopK(rows ...[]int64) (logits []float32, chosen []int64, err error) {
	tokens, length, err := flat(rows)
	if err != nil {
		return nil, nil, err
	}
	var largest *C.float
	var found *C.int64_t
	err = d.do(func() C.t2r_kind {
		return C.t2r_top_k(d.handle, numbers(tokens), C.size_t(len(rows)), C.size_t(length), &largest, &found)
	}, func() {
		logits = copied[float32](largest, len(rows)*d.topK)
		chosen = copied[int64](found, len(rows)*d.topK)
	})
	return logits, chosen, err
}

// Reorder goes on with these sequences in this order: drop, repeat or exchange them. The batch becomes their number.
func (d *Decoder) Reorder(rows ...int64) error {
	return d.do(func() C.t2r_kind { return C.t2r_reorder(d.handle, numbers(rows), C.size_t(len(rows))) }, nil)
}

// A Row is one of a decoder's.
type Row struct {
	Decoder *Decoder
	Row     int64
}

// Take becomes rows of decoders of one opened graph, forks and copies, and of this one too.
func (d *Decoder) Take(rows ...Row) error {
	from, places := make([]*C.t2r_decoder, len(rows)+1), make([]int64, len(rows))
	for i, row := range rows {
		from[i], places[i] = row.Decoder.handle, row.Row
	}
	err := d.do(func() C.t2r_kind {
		return C.t2r_take(d.handle, unsafe.SliceData(from), numbers(places), C.size_t(len(rows)))
	}, nil)
	runtime.KeepAlive(rows)
	return err
}

func number(flag bool) C.int32_t {
	if flag {
		return 1
	}
	return 0
}
