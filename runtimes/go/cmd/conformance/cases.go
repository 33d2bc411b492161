package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"t2r.internal/t2r"
)

var ctx = context.Background()

// kinds of cases: runtimes/contract/conformance.md.
var kinds = map[string]func(golden, string){
	"trace": trace, "sampling": sampling, "calls": calls, "snapshot": snapshot,
	"tokenizer": tokenizer, "stream": stream, "translator": translator, "bad": bad,
}

type tolerance struct {
	Logits float64 `json:"logits_absolute"`
	State  float64 `json:"state_relative_to_its_largest"`
}

// golden is a case; each kind has some of these fields.
type golden struct {
	Graph      string
	Tolerance  tolerance
	IDs        array
	Logits     array
	Start      map[string]array
	End        json.RawMessage
	Cuts       []int
	Top        *struct{ Logits, Tokens array }
	Greedy     *struct{ Prompt, Tokens []int64 }
	Texts      []json.RawMessage
	Operations []call
	Snapshot   string
	Position   int64
	Token      *int64
	States     map[string]array
	Sources    [][]int64
	Searches   []search
	Files      []file
}

// call is a call of a decoder, named by the fields that are present, and its result.
type call struct {
	Reset     *int
	Adapt     []string // null: ""
	Reorder   *[]int64
	Step      []int64
	Prefill   [][]int64
	TopK      [][]int64 `json:"top_k"`
	Load      string
	Generate  *[]int64
	MaxTokens int64 `json:"max_tokens"`
	Options   json.RawMessage
	EndsAt    int `json:"ends_at"`
	Tokens    []int64
	Logits    *array
	Error     string
	Position  *int64
}

type file struct {
	File, Call, Kind, Graph, Text string
	Tokens                        [][]int64
	Source                        []int64
	Beam                          json.RawMessage
}

func (g golden) open(folder string) *t2r.Decoder {
	return got(t2r.Open(filepath.Join(folder, g.Graph)))
}

func trace(g golden, folder string) {
	decoder := g.open(folder)
	defer decoder.Close()
	ones := make([]int, g.IDs.Shape[1])
	for i := range ones {
		ones[i] = 1
	}
	pieces(decoder, g, ones)
	if g.Cuts != nil {
		pieces(decoder, g, g.Cuts)
	}
	if g.Top != nil {
		top(decoder, g)
	}
	if g.Greedy != nil {
		options := got(decoder.Sampling()).Greedy()
		options.StopTokens = []int64{}
		ok(decoder.Reset(1))
		same(got(decoder.Generate(ctx, g.Greedy.Prompt, int64(len(g.Greedy.Tokens)), options, nil)), g.Greedy.Tokens, "greedy tokens")
	}
}

// pieces reads a trace in pieces of these lengths; it checks the logits after each, and the states after the last.
func pieces(decoder *t2r.Decoder, g golden, lengths []int) {
	set(decoder, g.Start)
	read := 0
	for _, length := range lengths {
		var found []float32
		if length == 1 {
			found = step(decoder, g.IDs, read)
		} else {
			found = got(decoder.Prefill(ctx, g.IDs.tokens(read, read+length)...))
		}
		read += length
		near(found, g.Logits.column(read-1), g.Tolerance.Logits, fmt.Sprintf("logits after %d tokens", read))
	}
	same(int64(read), g.IDs.Shape[1], "tokens read")
	compare(decoder, g.end(), g.Tolerance)
}

// end is the final states; in a stream's case the field is a text.
func (g golden) end() (states map[string]array) {
	ok(json.Unmarshal(g.End, &states))
	return states
}

func top(decoder *t2r.Decoder, g golden) {
	set(decoder, g.Start)
	for t := 0; t < int(g.IDs.Shape[1]); t++ {
		logits, tokens, err := decoder.TopK(ctx, g.IDs.tokens(t, t+1)...)
		ok(err)
		near(logits, g.Top.Logits.column(t), g.Tolerance.Logits, "largest logits")
		same(tokens, whole(g.Top.Tokens.column(t)), "largest tokens")
	}
}

func sampling(g golden, folder string) {
	decoder := g.open(folder)
	defer decoder.Close()
	for _, raw := range g.Texts {
		text := struct {
			Prompt, Tokens []int64
			MaxTokens      int64 `json:"max_tokens"`
			Options        options
		}{Options: options(got(decoder.Sampling()))}
		decode(raw, &text)
		for _, callback := range []func(int64) bool{nil, func(int64) bool { return true }} {
			ok(decoder.Reset(1))
			found := got(decoder.Generate(ctx, text.Prompt, text.MaxTokens, t2r.Sampling(text.Options), callback))
			same(found, text.Tokens, fmt.Sprintf("tokens of %v with a callback %v", text.Prompt, callback != nil))
		}
		if len(text.Tokens) > 1 {
			ok(decoder.Reset(1))
			ending, cancel := context.WithCancel(ctx)
			first := func(int64) bool { cancel(); return true }
			found, err := decoder.Generate(ending, text.Prompt, text.MaxTokens, t2r.Sampling(text.Options), first)
			same(err, context.Canceled, "the error of a text that is cancelled")
			same(found, text.Tokens[:1], "tokens before it was cancelled")
		}
	}
}

// options are t2r.Sampling, by the names in golden files.
type options struct {
	Temperature       float64
	TopK              int64   `json:"top_k"`
	TopP              float64 `json:"top_p"`
	MinP              float64 `json:"min_p"`
	RepetitionPenalty float64 `json:"repetition_penalty"`
	NoRepeatNgram     int64   `json:"no_repeat_ngram"`
	Seed              int64
	StopTokens        []int64 `json:"stop_tokens"`
}

// decode refuses unknown fields.
func decode(raw json.RawMessage, into any) {
	reader := json.NewDecoder(strings.NewReader(string(raw)))
	reader.DisallowUnknownFields()
	ok(reader.Decode(into))
}

func calls(g golden, folder string) {
	decoder := g.open(folder)
	defer decoder.Close()
	for n, one := range g.Operations {
		var found *t2r.Error
		logits, err := one.do(decoder, folder)
		require(err == nil || errors.As(err, &found), "%v", err)
		kind := ""
		if found != nil {
			kind = found.Kind.String()
		}
		same(kind, one.Error, fmt.Sprintf("the error of call %d (%v)", n, err))
		if one.Logits != nil {
			near(logits, one.Logits.Data, g.Tolerance.Logits, fmt.Sprintf("logits of call %d", n))
		}
		if one.Position != nil {
			same(got(decoder.Info()).Position, *one.Position, fmt.Sprintf("the position after call %d", n))
		}
	}
	compare(decoder, g.end(), g.Tolerance)
}

// do makes the call: its logits, if it has any.
func (c call) do(decoder *t2r.Decoder, folder string) (logits []float32, err error) {
	switch {
	case c.Reset != nil:
		err = decoder.Reset(*c.Reset)
	case c.Adapt != nil:
		err = decoder.Adapt(c.Adapt...)
	case c.Reorder != nil:
		err = decoder.Reorder(*c.Reorder...)
	case c.Load != "":
		_, err = decoder.Load(filepath.Join(folder, c.Load))
	case c.Step != nil:
		logits, err = decoder.Step(ctx, c.Step...)
	case c.Prefill != nil:
		logits, err = decoder.Prefill(ctx, c.Prefill...)
	case c.TopK != nil:
		_, _, err = decoder.TopK(ctx, c.TopK...)
	default:
		err = c.generate(decoder)
	}
	return logits, err
}

func (c call) generate(decoder *t2r.Decoder) error {
	given, seen := options(got(decoder.Sampling())), 0
	decode(c.Options, &given)
	var callback func(int64) bool
	if c.EndsAt > 0 {
		callback = func(int64) bool {
			seen++
			return seen < c.EndsAt
		}
	}
	tokens, err := decoder.Generate(ctx, *c.Generate, c.MaxTokens, t2r.Sampling(given), callback)
	if err == nil {
		same(tokens, c.Tokens, "tokens")
	}
	return err
}

func snapshot(g golden, folder string) {
	file := t2r.File{Name: g.Graph, Data: got(os.ReadFile(filepath.Join(folder, g.Graph)))}
	decoder := got(t2r.OpenMemory([]t2r.File{file}, t2r.DefaultOptions()))
	defer decoder.Close()
	path, wanted := filepath.Join(folder, g.Snapshot), int64(-1)
	if g.Token != nil {
		wanted = *g.Token
	}
	token := got(decoder.Load(path))
	same(token, wanted, "the token")
	same(got(decoder.Info()).Position, g.Position, "the position")
	for _, state := range got(decoder.States()) {
		golden := g.States[state.Name]
		rounded := make([]float32, len(golden.Data))
		for i, number := range golden.Data {
			rounded[i] = float32(number)
		}
		same(numbers(state), rounded, state.Name)
	}
	again := filepath.Join(got(os.MkdirTemp("", "t2r")), "again")
	defer os.RemoveAll(filepath.Dir(again))
	ok(decoder.Save(again, token))
	require(string(got(os.ReadFile(again))) == string(got(os.ReadFile(path))), "other bytes when it is saved again")
	saved := got(decoder.SaveMemory(token))
	require(string(saved) == string(got(os.ReadFile(path))), "other bytes in memory")
	ok(decoder.Reset(0))
	same(got(decoder.LoadMemory(saved)), token, "the token in memory")
	for t := 0; t < int(g.IDs.Shape[1]); t++ {
		near(step(decoder, g.IDs, t), g.Logits.column(t), g.Tolerance.Logits, "logits")
	}
}

func tokenizer(g golden, folder string) {
	decoder := g.open(folder)
	defer decoder.Close()
	made := got(decoder.Tokenizer())
	defer made.Close()
	for _, raw := range g.Texts {
		var text, decoded string
		var tokens []int64
		decode(raw, &[]any{&text, &tokens, &decoded})
		same(got(made.Encode(text)), tokens, fmt.Sprintf("tokens of %q", text))
		same(got(made.Decode(tokens)), decoded, fmt.Sprintf("text of %v", tokens))
	}
}

func stream(g golden, folder string) {
	decoder := g.open(folder)
	defer decoder.Close()
	made := got(decoder.Tokenizer())
	defer made.Close()
	for _, raw := range g.Texts {
		var text struct {
			Prompt, Tokens []int64
			Pieces         []string
			End            string
		}
		decode(raw, &text)
		stream := got(made.Stream(text.Prompt))
		pieces := make([]string, len(text.Tokens))
		for i, token := range text.Tokens {
			pieces[i] = got(stream.Feed(token))
		}
		same(pieces, text.Pieces, "pieces")
		same(got(stream.End()), text.End, "the end")
		ok(stream.Close())
		stops(got(made.Stream(text.Prompt)), text.Tokens, strings.Join(pieces, "")+text.End)
	}
}

// stops checks that a stream that stops at all of its text gives none of it.
func stops(stream *t2r.Stream, tokens []int64, whole string) {
	ok(stream.StopAt(whole))
	for _, token := range tokens {
		same(got(stream.Feed(token)), "", "a piece before a stop")
	}
	same(got(stream.End()), "", "the end before a stop")
	require(got(stream.Stopped()), "a stream that does not stop")
	ok(stream.Close())
}

type search struct {
	Source       []int64
	Beam         json.RawMessage
	Translations []t2r.Translation
}

// translator runs with and without companions: the encoder exists in both cases.
func translator(g golden, folder string) {
	for _, companions := range []bool{false, true} {
		options := t2r.DefaultOptions()
		options.Companions = companions
		decoder := got(t2r.OpenWith(filepath.Join(folder, g.Graph), options))
		ok(decoder.EncodeSources(ctx, g.Sources...))
		compare(decoder, g.States, g.Tolerance)
		for _, search := range g.Searches {
			found := got(decoder.Translate(ctx, search.Source, beam(decoder, search.Beam)))
			same(len(found), len(search.Translations), "translations found")
			for i, wanted := range search.Translations {
				same(found[i].Tokens, wanted.Tokens, "a translation")
				require(math.Abs(found[i].Score-wanted.Score) <= 1e-4, "another score, %v for %v", found[i].Score, wanted.Score)
			}
		}
		ok(decoder.Close())
	}
}

// beam is t2r.Beam, from the option names in golden files.
func beam(decoder *t2r.Decoder, raw json.RawMessage) t2r.Beam {
	made := struct {
		Width             int64
		MaxTokens         int64   `json:"max_tokens"`
		MinTokens         int64   `json:"min_tokens"`
		EarlyStopping     any     `json:"early_stopping"`
		ForcedEnd         bool    `json:"forced_end"`
		NBest             int64   `json:"n_best"`
		LengthPenalty     float64 `json:"length_penalty"`
		RepetitionPenalty float64 `json:"repetition_penalty"`
		NoRepeatNgram     int64   `json:"no_repeat_ngram"`
		Copy              bool
	}{}
	b := got(decoder.Beam())
	made.Width, made.MaxTokens, made.MinTokens, made.ForcedEnd, made.NBest = b.Width, b.MaxTokens, b.MinTokens, b.ForcedEnd, b.NBest
	made.LengthPenalty, made.RepetitionPenalty, made.NoRepeatNgram = b.LengthPenalty, b.RepetitionPenalty, b.NoRepeatNgram
	made.Copy = b.Copy
	decode(raw, &made)
	early := b.EarlyStopping
	if made.EarlyStopping != nil {
		early = map[any]t2r.EarlyStopping{true: t2r.Finished, "never": t2r.Never}[made.EarlyStopping]
	}
	return t2r.Beam{
		Width: made.Width, MaxTokens: made.MaxTokens, MinTokens: made.MinTokens, EarlyStopping: early,
		ForcedEnd: made.ForcedEnd, NBest: made.NBest, LengthPenalty: made.LengthPenalty,
		RepetitionPenalty: made.RepetitionPenalty, NoRepeatNgram: made.NoRepeatNgram, Copy: made.Copy,
	}
}

func bad(g golden, folder string) {
	for _, one := range g.Files {
		var found *t2r.Error
		err := attempt(one, folder)
		require(err != nil, "%s is taken", one.File)
		require(errors.As(err, &found), "%s: %v", one.File, err)
		same(found.Kind.String(), one.Kind, fmt.Sprintf("%s (%v)", one.File, err))
		require(strings.HasPrefix(found.Message, "expected ") && !strings.Contains(found.Message, "\n"), "no message of one line")
	}
}

// attempt makes the call that must fail on a bad file.
func attempt(one file, folder string) error {
	path := filepath.Join(folder, one.File)
	if one.Call == "snapshot" {
		path = filepath.Join(folder, one.Graph)
	}
	decoder, err := t2r.Open(path)
	if err != nil || one.Call == "open" {
		return err
	}
	defer decoder.Close()
	switch one.Call {
	case "tokenizer":
		_, err = decoder.Tokenizer()
	case "encode":
		made := got(decoder.Tokenizer())
		defer made.Close()
		_, err = made.Encode(one.Text)
	case "snapshot":
		_, err = decoder.Load(filepath.Join(folder, one.File))
	case "generate":
		_, err = decoder.Generate(ctx, []int64{1}, 3, got(decoder.Sampling()), nil)
	case "prefill":
		_, err = decoder.Prefill(ctx, one.Tokens...)
	case "translate":
		_, err = decoder.Translate(ctx, one.Source, beam(decoder, one.Beam))
	default:
		err = fmt.Errorf("a call that is not known, %s", one.Call)
	}
	return err
}
