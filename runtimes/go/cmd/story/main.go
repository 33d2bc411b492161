// story GRAPH PROMPT: a story as it is written, piece by piece, until it is interrupted.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"t2r.internal/t2r"
)

func story(ctx context.Context, graph, prompt string) error {
	decoder, err := t2r.Open(graph)
	if err != nil {
		return err
	}
	defer decoder.Close()
	tokenizer, err := decoder.Tokenizer()
	if err != nil {
		return err
	}
	defer tokenizer.Close()
	tokens, err := tokenizer.Encode(prompt)
	if err != nil {
		return err
	}
	stream, err := tokenizer.Stream(tokens)
	if err != nil {
		return err
	}
	defer stream.Close()
	sampling, err := decoder.Sampling()
	if err != nil {
		return err
	}
	fmt.Print(prompt)
	_, err = decoder.Generate(ctx, tokens, 200, sampling.Greedy(), func(token int64) bool {
		piece, err := stream.Feed(token)
		fmt.Print(piece)
		return err == nil
	})
	if err != nil {
		return err
	}
	rest, err := stream.End()
	fmt.Println(rest)
	return err
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: story GRAPH PROMPT")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := story(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err) // one line: its kind, what was expected, what was received, what to do
		os.Exit(2)
	}
}
