// Package t2r runs the graphs of t2r-export: tokens in, logits out, states kept between them.
//
// It is a layer over libt2r (runtimes/cpp). Every failure is an *[Error]: a kind, and one line. The caller owns what a call
// returns. A handle is used by one goroutine at a time: concurrent use is an error, and so is use after Close. A handle that
// is not closed keeps its memory until the program ends.
//
// A call that runs the graph takes a [context.Context]. When that ends, also within a step, the call does, and returns the
// context's Err(). The decoder then has the states of its last complete step, and [Info] has the number of tokens read.
package t2r

// #cgo LDFLAGS: -lt2r
// #include <stdlib.h>
// #include <t2r.h>
import "C"

import (
	"context"
	"runtime"
	"slices"
	"unsafe"
)

// Decoder is an opened step graph and the states of the texts that it reads.
type Decoder struct {
	use
	handle          *C.t2r_decoder
	vocabSize, topK int
	inputSize       int
}

// Options say how a graph is opened.
type Options struct {
	Threads       int32 // in an operator; 0: those of ShareThreads, else one per core
	Companions    bool  // whether to use the prefill graph beside the graph
	MaxStateBytes int64 // limit of a graph's state bytes, at batch 1
	// ONNX Runtime's session options, keys and values alternating.
	Config []string
	// An execution provider, by its name in ONNX Runtime or its library's path, then its options as in Config; nil: the CPU. It
	// runs all nodes, unless Config has "session.disable_cpu_ep_fallback", "0".
	Provider []string
	// Maximum tokens of a translator's source, besides the graph's own limit.
	MaxSource int64
}

// ShareThreads shares this number of threads among all graphs opened without their own; 0: one per core. Call it before the
// first graph is opened.
func ShareThreads(threads int32) error {
	return try(func() C.t2r_kind { return C.t2r_share_threads(C.int32_t(threads)) })
}

// DefaultOptions are the library's defaults.
func DefaultOptions() Options {
	var made C.t2r_options
	C.t2r_defaults(&made, C.sizeof_t2r_options)
	return Options{Threads: int32(made.threads), Companions: made.companions != 0, MaxStateBytes: int64(made.max_state_bytes),
		MaxSource: int64(made.max_source)}
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

// File is a file in memory.
type File struct {
	Name string // as it would have in a folder
	Data []byte
}

// OpenMemory opens a step graph from memory, the first of the files. The others are weights and companions, named as they
// would be beside it.
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
	given.max_source = C.int64_t(o.MaxSource)
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

// Fork makes another decoder of the same opened graph, at the start of a text, for another goroutine: the weights are shared.
func (d *Decoder) Fork() (*Decoder, error) {
	var handle *C.t2r_decoder
	if err := d.do(func() C.t2r_kind { return C.t2r_fork(d.handle, &handle) }, nil); err != nil {
		return nil, err
	}
	return opened(handle)
}

// Copy is Fork with a copy of this decoder's states.
func (d *Decoder) Copy() (*Decoder, error) {
	var handle *C.t2r_decoder
	if err := d.do(func() C.t2r_kind { return C.t2r_copy(d.handle, &handle) }, nil); err != nil {
		return nil, err
	}
	return opened(handle)
}

// Metadata is the graph's metadata under a key, such as "t2r.chat_template"; "" if there is none.
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
	decoder.vocabSize, decoder.topK, decoder.inputSize = int(info.VocabSize), info.TopK, info.InputSize
	return decoder, err
}

// Close releases the memory. All later calls of the decoder are errors.
func (d *Decoder) Close() error {
	return d.do(func() C.t2r_kind { return C.t2r_close(d.handle) }, nil)
}

// Info has the properties of a graph, and the progress of its decoder.
type Info struct {
	VocabSize    int64
	Batch        int   // current number of sequences
	FixedBatch   int   // the only batch that the graph takes; 0: any
	Position     int64 // tokens read by the furthest sequence
	MaxPositions int64 // position after which a step is refused; 0: no limit
	BOSToken     int64 // -1: none
	EOSTokens    []int64
	TopK         int // how many logits Decoder.TopK returns; 0: the graph has no such outputs
	States       int
	Checkpoint   string // its SHA-256
	Prefills     bool   // whether there is a prefill graph
	Translates   bool   // whether the graph is a translator's
	Chats        bool   // whether Decoder.Metadata has "t2r.chat_template"
	InputSize    int    // elements of the vectors that Decoder.ReadVectors takes; 0: the graph reads tokens
}

// Info returns the current Info.
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
			Translates:   found.translates != 0,
			Chats:        found.chats != 0,
			InputSize:    int(found.input_size),
		}
	})
	return info, err
}

// Reset goes back to the start of a text, for batch sequences; 0 keeps the batch.
func (d *Decoder) Reset(batch int) error {
	return d.do(func() C.t2r_kind { return C.t2r_reset(d.handle, C.size_t(batch)) }, nil)
}

// Draft sets whether [Decoder.Generate], from now on, guesses tokens by what followed the latest ones before, and checks several in one
// run. The graph must have a draft-check graph beside it.
func (d *Decoder) Draft(lookup bool) error {
	var on C.int32_t
	if lookup {
		on = 1
	}
	return d.do(func() C.t2r_kind { return C.t2r_draft(d.handle, on) }, nil)
}

// Adapt chooses the low-rank adapters that the tokens from now on use, by names in the metadata "t2r.adapters", "" for none:
// one per sequence, or one for all. Rows keep theirs when they move; [Decoder.Reset] chooses none.
func (d *Decoder) Adapt(names ...string) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	given, err := words(names, &pinner)
	if err != nil {
		return err
	}
	for i, pointers := 0, unsafe.Slice(given, len(names)); i < len(names); i++ {
		if names[i] == "" {
			pointers[i] = nil
		}
	}
	return d.do(func() C.t2r_kind { return C.t2r_adapt(d.handle, given, C.size_t(len(names))) }, nil)
}

// Step reads one token per sequence. It returns the logits of the next token, (batch, VocabSize), row-major.
func (d *Decoder) Step(ctx context.Context, tokens ...int64) (logits []float32, err error) {
	var found *C.float
	err = d.run(ctx, func() C.t2r_kind {
		return C.t2r_step(d.handle, numbers(tokens), C.size_t(len(tokens)), &found)
	}, func() { logits = copied[float32](found, len(tokens)*d.vocabSize) })
	return logits, err
}

// Prefill reads equally many tokens of each sequence, many per run if there is a prefill graph. It returns the logits of
// the next token, (batch, VocabSize).
func (d *Decoder) Prefill(ctx context.Context, rows ...[]int64) (logits []float32, err error) {
	tokens, length, err := flat(rows)
	if err != nil {
		return nil, err
	}
	var found *C.float
	err = d.run(ctx, func() C.t2r_kind {
		return C.t2r_prefill(d.handle, numbers(tokens), C.size_t(len(rows)), C.size_t(length), &found)
	}, func() { logits = copied[float32](found, len(rows)*d.vocabSize) })
	return logits, err
}

// TopK is Prefill, but returns only the largest logits, (batch, TopK), and their tokens.
func (d *Decoder) TopK(ctx context.Context, rows ...[]int64) (logits []float32, chosen []int64, err error) {
	tokens, length, err := flat(rows)
	if err != nil {
		return nil, nil, err
	}
	var largest *C.float
	var found *C.int64_t
	err = d.run(ctx, func() C.t2r_kind {
		return C.t2r_top_k(d.handle, numbers(tokens), C.size_t(len(rows)), C.size_t(length), &largest, &found)
	}, func() {
		logits = copied[float32](largest, len(rows)*d.topK)
		chosen = copied[int64](found, len(rows)*d.topK)
	})
	return logits, chosen, err
}

// ReadVectors is for a graph that reads vectors, which the calls for tokens refuse: it reads equally many of each sequence,
// row-major, Info.InputSize elements each. One is a step. It returns the next logits, (batch, VocabSize).
func (d *Decoder) ReadVectors(ctx context.Context, rows ...[]float32) (logits []float32, err error) {
	size, elements := max(d.inputSize, 1), 0 // a graph of tokens refuses the call
	if len(rows) > 0 {
		elements = len(rows[0])
	}
	for _, row := range rows {
		if len(row) != elements || elements%size != 0 {
			return nil, failed(KindBatch, "expected equally many vectors of %d elements of each sequence; received %d elements; read them one by one", size, len(row))
		}
	}
	vectors := append(slices.Concat(rows...), 0) // never NULL
	var found *C.float
	err = d.run(ctx, func() C.t2r_kind {
		return C.t2r_read_vectors(d.handle, (*C.float)(unsafe.SliceData(vectors)), C.size_t(len(rows)), C.size_t(elements/size),
			C.size_t(size), &found)
	}, func() { logits = copied[float32](found, len(rows)*d.vocabSize) })
	return logits, err
}

// Reorder drops, repeats or reorders the sequences. The batch becomes the number of rows.
func (d *Decoder) Reorder(rows ...int64) error {
	return d.do(func() C.t2r_kind { return C.t2r_reorder(d.handle, numbers(rows), C.size_t(len(rows))) }, nil)
}

// A Row is a row of a decoder.
type Row struct {
	Decoder *Decoder
	Row     int64
}

// Take replaces the states with rows of decoders of the same graph: forks, copies and this one.
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
