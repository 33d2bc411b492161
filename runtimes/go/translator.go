package t2r

// #include <t2r.h>
import "C"

import "context"

// EarlyStopping says when a search ends before its MaxTokens.
type EarlyStopping int32

const (
	Unlikely EarlyStopping = iota // when Width hypotheses are finished, and no unfinished one looks better
	Finished                      // when Width hypotheses are finished
	Never                         // when no unfinished hypothesis can become better
)

// Beam has the options of beam search. [Decoder.Beam] returns the graph's.
type Beam struct {
	Width             int64 // 1 is greedy
	MaxTokens         int64 // 0: the graph's, capped at the model's positions
	MinTokens         int64
	EarlyStopping     EarlyStopping
	ForcedEnd         bool // whether the last of MaxTokens is forced to be an end token
	NBest             int64
	LengthPenalty     float64
	RepetitionPenalty float64 // 1: none
	NoRepeatNgram     int64   // 0: no limit
	Copy              bool    // whether numbers and names of the source are copied
}

// Beam returns the graph's options, which the caller may change.
func (d *Decoder) Beam() (Beam, error) {
	var made C.t2r_beam
	err := d.do(func() C.t2r_kind { return C.t2r_beam_defaults(d.handle, &made, C.sizeof_t2r_beam) }, nil)
	return Beam{
		int64(made.width), int64(made.max_tokens), int64(made.min_tokens), EarlyStopping(made.early_stopping),
		made.forced_end != 0, int64(made.n_best), float64(made.length_penalty), float64(made.repetition_penalty),
		int64(made.no_repeat_ngram), made.copy != 0,
	}, err
}

func (b Beam) given() C.t2r_beam {
	made := C.t2r_beam{size: C.sizeof_t2r_beam}
	made.width = C.int64_t(b.Width)
	made.max_tokens = C.int64_t(b.MaxTokens)
	made.min_tokens = C.int64_t(b.MinTokens)
	made.early_stopping = C.int32_t(b.EarlyStopping)
	made.forced_end = number(b.ForcedEnd)
	made.n_best = C.int64_t(b.NBest)
	made.length_penalty = C.double(b.LengthPenalty)
	made.repetition_penalty = C.double(b.RepetitionPenalty)
	made.no_repeat_ngram = C.int64_t(b.NoRepeatNgram)
	made.copy = C.int64_t(number(b.Copy))
	return made
}

// Translation is a translation that a search found.
type Translation struct {
	Tokens []int64
	Score  float64
}

// EncodeSources reads sources; the start tokens of their translations come next. The batch becomes the number of sources.
func (d *Decoder) EncodeSources(ctx context.Context, sources ...[]int64) error {
	longest, lengths := 0, make([]int64, len(sources))
	for row, source := range sources {
		lengths[row] = int64(len(source))
		longest = max(longest, len(source))
	}
	tokens := make([]int64, len(sources)*longest)
	for row, source := range sources {
		copy(tokens[row*longest:], source)
	}
	return d.run(ctx, func() C.t2r_kind {
		return C.t2r_encode_sources(d.handle, numbers(tokens), numbers(lengths), C.size_t(len(sources)), C.size_t(longest))
	}, nil)
}

// Translate translates a source by beam search, best first.
func (d *Decoder) Translate(ctx context.Context, source []int64, beam Beam) ([]Translation, error) {
	given := beam.given()
	var found C.size_t
	err := d.run(ctx, func() C.t2r_kind {
		return C.t2r_translate(d.handle, numbers(source), C.size_t(len(source)), &given, &found)
	}, nil)
	translations := make([]Translation, int(found))
	for i := 0; i < len(translations) && err == nil; i++ {
		translations[i], err = d.translation(i)
	}
	return translations, err
}

func (d *Decoder) translation(index int) (one Translation, err error) {
	var tokens *C.int64_t
	var count C.size_t
	var score C.double
	err = d.do(func() C.t2r_kind {
		return C.t2r_translation(d.handle, C.size_t(index), &tokens, &count, &score)
	}, func() { one = Translation{copied[int64](tokens, int(count)), float64(score)} })
	return one, err
}
