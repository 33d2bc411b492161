package t2r

// #include <t2r.h>
// int t2rCallback(int64_t token, void *user);
import "C"

import (
	"context"
	"runtime"
	"runtime/cgo"
	"unsafe"
)

// Sampling says how tokens are chosen. [Decoder.Sampling] returns the graph's.
type Sampling struct {
	Temperature       float64 // 0: the largest logit, the lowest token on ties
	TopK              int64   // 0: all
	TopP              float64 // 1: all
	MinP              float64 // 0: all
	RepetitionPenalty float64 // 1: none
	NoRepeatNgram     int64   // 0: no limit
	Seed              int64   // the same seed gives the same text; -1: a new seed for each
	StopTokens        []int64 // the text ends with the first of them; nil: the graph's own
}

// Sampling returns the graph's options, which the caller may change.
func (d *Decoder) Sampling() (Sampling, error) {
	var made C.t2r_sampling
	err := d.do(func() C.t2r_kind { return C.t2r_sampling_defaults(d.handle, &made, C.sizeof_t2r_sampling) }, nil)
	return Sampling{
		float64(made.temperature), int64(made.top_k), float64(made.top_p), float64(made.min_p),
		float64(made.repetition_penalty), int64(made.no_repeat_ngram), int64(made.seed), nil,
	}, err
}

// Greedy is the same, but always chooses the most likely token.
func (s Sampling) Greedy() Sampling {
	s.Temperature = 0
	return s
}

// given is the options for C. The stop tokens stay pinned until the pinner releases them.
func (s Sampling) given(pinner *runtime.Pinner) C.t2r_sampling {
	made := C.t2r_sampling{size: C.sizeof_t2r_sampling}
	made.temperature = C.double(s.Temperature)
	made.top_k = C.int64_t(s.TopK)
	made.top_p = C.double(s.TopP)
	made.min_p = C.double(s.MinP)
	made.repetition_penalty = C.double(s.RepetitionPenalty)
	made.no_repeat_ngram = C.int64_t(s.NoRepeatNgram)
	made.seed = C.int64_t(s.Seed)
	if s.StopTokens != nil {
		made.stop_tokens, made.stop_count = numbers(s.StopTokens), C.size_t(len(s.StopTokens))
		pinner.Pin(made.stop_tokens)
	}
	return made
}

// Generate reads a prompt, and generates up to maxTokens tokens. The last is chosen but not read: begin the next call with
// it. callback gets each token as it is chosen, and false ends the text there; it may be nil. On an error, and when ctx ends,
// the tokens chosen before are returned too.
func (d *Decoder) Generate(ctx context.Context, prompt []int64, maxTokens int64, sampling Sampling, callback func(token int64) bool) (written []int64, err error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	given := sampling.given(&pinner)
	var called C.t2r_callback
	progress := &progress{ctx: ctx, callback: callback}
	user := cgo.NewHandle(progress)
	defer user.Delete()
	if callback != nil {
		called = C.t2r_callback(C.t2rCallback)
	}
	var tokens *C.int64_t
	var count C.size_t
	err = d.run(ctx, func() C.t2r_kind {
		kind := C.t2r_generate(d.handle, numbers(prompt), C.size_t(len(prompt)), C.int64_t(maxTokens), &given, called,
			unsafe.Pointer(&user), &tokens, &count)
		written = copied[int64](tokens, int(count))
		return kind
	}, nil)
	if progress.panicked != nil {
		panic(progress.panicked)
	}
	if err == nil {
		err = progress.ended
	}
	return written, err
}

// Choose returns the token that Generate would choose from a row's logits, which the caller may modify. draw: how many tokens
// were chosen in its text before.
func (d *Decoder) Choose(logits []float32, row int, sampling Sampling, draw int64) (int64, error) {
	if len(logits) != d.vocabSize {
		return 0, failed(KindArgument, "expected %d logits of one row; received %d; cut them", d.vocabSize, len(logits))
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	given := sampling.given(&pinner)
	var token C.int64_t
	err := d.do(func() C.t2r_kind {
		return C.t2r_choose(d.handle, (*C.float)(unsafe.SliceData(logits)), C.size_t(row), &given, C.int64_t(draw), &token)
	}, nil)
	return int64(token), err
}

// progress is a callback passed through C. A panic must not unwind through C.
type progress struct {
	ctx      context.Context
	callback func(int64) bool
	ended    error // of the context, in the callback: no more tokens are chosen
	panicked any
}

//export t2rCallback
func t2rCallback(token C.int64_t, user unsafe.Pointer) (goOn C.int) {
	progress := (*(*cgo.Handle)(user)).Value().(*progress)
	defer func() {
		if progress.panicked = recover(); progress.panicked != nil {
			goOn = 0
		}
	}()
	proceed := progress.callback(int64(token))
	progress.ended = progress.ctx.Err()
	return C.int(number(proceed && progress.ended == nil))
}
