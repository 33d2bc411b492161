// greedy GRAPH THREADS TOKEN: a greedy text, asked as ../protocol.hpp says.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"t2r.internal/t2r"
)

const discarded = 5 // turns that do not count

func main() {
	if err := serve(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func serve(arguments []string) error {
	if len(arguments) != 4 {
		return fmt.Errorf("usage: greedy GRAPH THREADS TOKEN")
	}
	threads, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	first, err := strconv.ParseInt(arguments[3], 10, 64)
	if err != nil {
		return err
	}
	options := t2r.DefaultOptions()
	options.Threads = int32(threads)
	decoder, err := t2r.OpenWith(arguments[1], options)
	if err != nil {
		return err
	}
	defer decoder.Close()
	fmt.Println("ready")
	for {
		var word string
		var count int
		if n, _ := fmt.Scan(&word, &count); n != 2 {
			return nil
		}
		if err := answer(decoder, first, word == "time", count); err != nil {
			return err
		}
	}
}

func answer(decoder *t2r.Decoder, token int64, timed bool, count int) error {
	if err := decoder.Reset(1); err != nil {
		return err
	}
	if timed {
		count += discarded
	}
	for turn := 0; turn < count; turn++ {
		before := time.Now()
		logits, err := decoder.Step(context.Background(), token)
		if err != nil {
			return err
		}
		token = largest(logits)
		milliseconds := time.Since(before).Seconds() * 1e3
		if !timed {
			fmt.Print(token, " ")
		} else if turn >= discarded {
			fmt.Print(milliseconds, " ")
		}
	}
	fmt.Println()
	return nil
}

func largest(logits []float32) int64 {
	best := 0
	for token, logit := range logits {
		if logit > logits[best] {
			best = token
		}
	}
	return int64(best)
}
