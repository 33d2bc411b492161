package main

import (
	"context"
	"fmt"
	"time"

	"t2r.internal/t2r"
)

// contexts prints what calls return whose context ends before, while they run, and at a deadline.
func contexts(folder string) error {
	decoder, translator := open(folder, "tiny"), open(folder, "translator")
	before, cancel := context.WithCancel(ctx)
	cancel()
	ended(before, decoder, translator)
	late, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
	defer cancel()
	ended(late, decoder, translator)
	inCallbacks(decoder)
	whileReading(decoder)
	return nil
}

// ended prints the errors of all calls with a context that has ended, and that nothing was read.
func ended(gone context.Context, decoder, translator *t2r.Decoder) {
	tokens, err := decoder.Generate(gone, []int64{1}, 2, greedy(decoder), nil)
	fmt.Println(err, len(tokens))
	beam, source := must(translator.Beam()), []int64{3, 2}
	fmt.Println(second(decoder.Step(gone, 1)), second(decoder.Prefill(gone, []int64{1})), second(decoder.ReadVectors(gone, []float32{1})))
	_, _, err = decoder.TopK(gone, []int64{1})
	fmt.Println(err, translator.EncodeSources(gone, source), second(translator.Translate(gone, source, beam)))
	fmt.Println(must(decoder.Info()).Position)
}

// inCallbacks prints whether each text, cancelled at one of its tokens, has the tokens until then, and goes on as if it had not been.
func inCallbacks(decoder *t2r.Decoder) {
	whole, good := texts(decoder, ctx, []int64{1, 3}, 9, func(int) {}), 0
	for at := 1; at < len(whole); at++ {
		ending, cancel := context.WithCancel(ctx)
		must(0, decoder.Reset(1))
		begun := texts(decoder, ending, []int64{1, 3}, 9, func(count int) {
			if count == at {
				cancel()
			}
		})
		rest := texts(decoder, ctx, begun[len(begun)-1:], 9-int64(at), func(int) {})
		if len(begun) == at && fmt.Sprint(append(begun, rest...)) == fmt.Sprint(whole) {
			good++
		}
	}
	fmt.Println(good, "of", len(whole)-1)
}

// texts generates; cancelled, it must be by its context.
func texts(decoder *t2r.Decoder, ending context.Context, prompt []int64, most int64, watch func(int)) []int64 {
	sampling, count := greedy(decoder), 0
	sampling.StopTokens = []int64{}
	found, err := decoder.Generate(ending, prompt, most, sampling, func(int64) bool {
		count++
		watch(count)
		return true
	})
	if err != ending.Err() {
		panic(err)
	}
	return found
}

// whileReading prints the errors of a long prompt, cancelled by another goroutine and by a deadline, and whether the decoder has
// read a part of it and goes on.
func whileReading(decoder *t2r.Decoder) {
	prompt := make([]int64, 3_000_000)
	ending, cancel := context.WithCancel(ctx)
	must(0, decoder.Reset(1))
	go func() {
		defer cancel()
		for in := error(nil); in == nil; { // until the decoder is in use
			_, in = decoder.Info()
		}
	}()
	err := error(nil)
	for err = second(decoder.Prefill(ending, prompt)); err != context.Canceled; { // while Info is in the way
		err = second(decoder.Prefill(ending, prompt))
	}
	goesOn(decoder, err, len(prompt))
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	must(0, decoder.Reset(1))
	goesOn(decoder, second(decoder.Prefill(soon, prompt)), len(prompt))
}

func goesOn(decoder *t2r.Decoder, err error, most int) {
	position := must(decoder.Info()).Position
	must(decoder.Step(ctx, 1))
	fmt.Println(err, position < int64(most), must(decoder.Info()).Position-position)
}
