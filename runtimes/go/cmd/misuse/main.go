// misuse FOLDER NAME: one misuse of the golden files of FOLDER, and its result.
package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"t2r.internal/t2r"
)

var ctx = context.Background()

var misuses = map[string]func(folder string) error{
	"no-file":         func(folder string) error { return opened(folder + "/nowhere.onnx") },
	"zero-byte":       func(folder string) error { return opened(folder + "/tiny\x00.onnx") },
	"zero-byte-saved": func(folder string) error { return open(folder, "tiny").Save("saved\x00", -1) },
	"zero-byte-loaded": func(folder string) error {
		return second(open(folder, "tiny").Load(folder + "/tiny.state\x00"))
	},
	"state-name": func(folder string) error {
		decoder := open(folder, "tiny")
		states := must(decoder.States())
		states[0].Name += "\x00"
		return decoder.SetStates(states, 0)
	},
	"prefill-graph": func(folder string) error { return opened(folder + "/bad/role.onnx") },
	"token":         func(folder string) error { return second(open(folder, "tiny").Step(ctx, 17)) },
	"batch":         func(folder string) error { return second(open(folder, "tiny").Step(ctx, 1, 2)) },
	"rows": func(folder string) error {
		return second(open(folder, "tiny").Prefill(ctx, []int64{1, 2}, []int64{1}))
	},
	"position": func(folder string) (err error) {
		decoder := open(folder, "ends")
		for step := 0; step <= 40 && err == nil; step++ {
			_, err = decoder.Step(ctx, 1, 2)
		}
		return err
	},
	"other-model": func(folder string) error {
		return second(open(folder, "tiny").Load(folder + "/packed.state"))
	},
	"no-utf8": func(folder string) error {
		return second(must(open(folder, "bytes").Tokenizer()).Encode("\xff"))
	},
	"closed": func(folder string) error {
		decoder := open(folder, "tiny")
		decoder.Close()
		return second(decoder.Step(ctx, 1))
	},
	"closed-tokenizer": func(folder string) error {
		tokenizer := must(open(folder, "bytes").Tokenizer())
		tokenizer.Close()
		return second(tokenizer.Encode("a"))
	},
	"two-threads": func(folder string) error {
		decoder, inside, done := open(folder, "tiny"), make(chan bool), make(chan bool)
		go decoder.Generate(ctx, []int64{1}, 2, greedy(decoder), func(int64) bool { inside <- true; return <-done })
		<-inside
		return second(decoder.Step(ctx, 1))
	},
	"from-a-callback": func(folder string) (err error) {
		decoder := open(folder, "tiny")
		decoder.Generate(ctx, []int64{1}, 2, greedy(decoder), func(int64) bool { _, err = decoder.Step(ctx, 1); return false })
		return err
	},
	"provider": func(folder string) error {
		options := t2r.DefaultOptions()
		options.Provider = []string{"CPU", "a", "b"}
		return second(t2r.OpenWith(folder+"/tiny.onnx", options))
	},
	"late-threads": func(folder string) error {
		open(folder, "tiny")
		return t2r.ShareThreads(2)
	},
	"session-option": func(folder string) error {
		options := t2r.DefaultOptions()
		options.Threads, options.Config = 2, []string{"session.intra_op_thread_affinities", "everywhere"}
		return second(t2r.OpenWith(folder+"/tiny.onnx", options))
	},
	"long-source": func(folder string) error {
		options := t2r.DefaultOptions()
		options.MaxSource = 2
		return must(t2r.OpenWith(folder+"/translator.onnx", options)).EncodeSources(ctx, []int64{1, 2, 3})
	},
	"no-graph-in-memory": func(string) error {
		files := []t2r.File{{Name: "tiny.onnx", Data: []byte("no graph")}}
		return second(t2r.OpenMemory(files, t2r.DefaultOptions()))
	},
	"damaged-in-memory": func(folder string) error {
		decoder := open(folder, "tiny")
		return second(decoder.LoadMemory(must(decoder.SaveMemory(-1))[1:]))
	},
	"empty-stop":     func(folder string) error { return stream(folder).StopAt("") },
	"zero-byte-stop": func(folder string) error { return stream(folder).StopAt("\x00") },
	"copied": func(folder string) error {
		decoder := open(folder, "ends")
		for step := 0; step < 40; step++ {
			must(decoder.Step(ctx, 1, 2))
		}
		return second(must(decoder.Copy()).Step(ctx, 1, 2))
	},
	"taken": func(folder string) error {
		decoder := open(folder, "tiny")
		must(decoder.Step(ctx, 1))
		if err := decoder.Take(t2r.Row{Decoder: decoder}, t2r.Row{Decoder: must(decoder.Fork())}); err != nil {
			return err
		}
		logits := must(decoder.Step(ctx, 1, 2))
		must(decoder.Choose(logits[len(logits)/2:], 1, greedy(decoder), 0))
		return decoder.Take(t2r.Row{Decoder: open(folder, "tiny")})
	},
	"contexts": contexts,
	"vectors": func(folder string) error {
		decoder := open(folder, "ear")
		decoder.Reset(2)
		given, other := []float32{0.5, 1, -1, 2, 0, 1, 1, 0, 0, -2}, []float32{3, 1, 0, 1, 1, 0.25, 1, 1, 2, 3}
		for _, logit := range must(decoder.ReadVectors(ctx, given, other)) {
			fmt.Println(logit)
		}
		return second(decoder.ReadVectors(ctx, given[:6], other[:6]))
	},
	"log": func(folder string) error {
		var count atomic.Int64
		if err := t2r.SetLog(t2r.LevelVerbose, func(_ t2r.Level, message string) { count.Add(int64(len(message))) }); err != nil {
			return err
		}
		open(folder, "tiny").Close()
		err, heard := t2r.SetLog(t2r.LevelWarning, nil), count.Load()
		open(folder, "tiny").Close()
		fmt.Println(heard > 0, count.Load() == heard)
		return err
	},
	"callback": func(folder string) error {
		decoder := open(folder, "tiny")
		func() {
			defer func() { fmt.Println(recover()) }()
			decoder.Generate(ctx, []int64{1}, 5, greedy(decoder), func(int64) bool { panic("mine") })
		}()
		return second(decoder.Step(ctx, 1)) // no longer in use
	},
}

func stream(folder string) *t2r.Stream {
	return must(must(open(folder, "bytes").Tokenizer()).Stream(nil))
}

func greedy(decoder *t2r.Decoder) t2r.Sampling { return must(decoder.Sampling()).Greedy() }

func main() {
	if err := misuses[os.Args[2]](os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func open(folder, name string) *t2r.Decoder { return must(t2r.Open(folder + "/" + name + ".onnx")) }

func opened(path string) error { return second(t2r.Open(path)) }

func second[T any](_ T, err error) error { return err }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
