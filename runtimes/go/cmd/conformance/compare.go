package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"

	"t2r.internal/t2r"
)

// wrong is why a case has failed.
type wrong struct{ error }

func ok(err error) {
	if err != nil {
		panic(wrong{err})
	}
}

func require(good bool, why string, values ...any) {
	if !good {
		panic(wrong{fmt.Errorf(why, values...)})
	}
}

// got is the value of a call that must succeed.
func got[T any](value T, err error) T {
	ok(err)
	return value
}

func same[T any](found, wanted T, what string) {
	require(reflect.DeepEqual(found, wanted), "%s: %.100s for %.100s", what, fmt.Sprint(found), fmt.Sprint(wanted))
}

// array is an array of a golden file, row-major.
type array struct {
	Shape []int64
	Data  []float64
}

// column is one T of an array (B, T, N) or (B, T), rows concatenated.
func (a array) column(t int) (found []float64) {
	size := 1
	if len(a.Shape) == 3 {
		size = int(a.Shape[2])
	}
	for row := 0; row < int(a.Shape[0]); row++ {
		begin := (row*int(a.Shape[1]) + t) * size
		found = append(found, a.Data[begin:begin+size]...)
	}
	return found
}

// tokens are a range of T of an array (B, T): one list per sequence.
func (a array) tokens(from, to int) [][]int64 {
	rows := make([][]int64, a.Shape[0])
	for row := range rows {
		begin := row * int(a.Shape[1])
		rows[row] = whole(a.Data[begin+from : begin+to])
	}
	return rows
}

func whole(numbers []float64) []int64 {
	found := make([]int64, len(numbers))
	for i, number := range numbers {
		found[i] = int64(number)
	}
	return found
}

// step reads one token per sequence, those of one T.
func step(decoder *t2r.Decoder, ids array, t int) []float32 {
	return got(decoder.Step(ctx, whole(ids.column(t))...))
}

func near(found []float32, wanted []float64, bound float64, what string) {
	same(len(found), len(wanted), what)
	for i, number := range wanted {
		off := math.Abs(float64(found[i]) - number)
		require(off <= bound, "%s: off by %.3g of %.3g", what, off, bound)
	}
}

// compare compares states with those of a case.
func compare(decoder *t2r.Decoder, wanted map[string]array, bound tolerance) {
	found := map[string]t2r.Tensor{}
	for _, state := range got(decoder.States()) {
		found[state.Name] = state
	}
	for name, golden := range wanted {
		largest := 0.0
		for _, number := range golden.Data {
			largest = max(largest, math.Abs(number))
		}
		same(found[name].Shape, golden.Shape, "the shape of "+name)
		near(numbers(found[name]), golden.Data, bound.State*largest, name)
	}
}

// numbers are a state's elements. No golden file has an integer that float32 rounds, nor states of float16.
func numbers(state t2r.Tensor) []float32 {
	values := made(state.Dtype, state.Shape)
	ok(binary.Read(bytes.NewReader(state.Data), binary.NativeEndian, values.Interface()))
	found := make([]float32, values.Len())
	for i := range found {
		found[i] = float32(values.Index(i).Convert(reflect.TypeFor[float64]()).Float())
	}
	return found
}

// made is a slice of a dtype, with as many elements as a shape.
func made(dtype string, shape []int64) reflect.Value {
	types := map[string]reflect.Type{
		"float32": reflect.TypeFor[float32](), "int32": reflect.TypeFor[int32](), "int64": reflect.TypeFor[int64](),
	}
	count := 1
	for _, dim := range shape {
		count *= int(dim)
	}
	return reflect.MakeSlice(reflect.SliceOf(types[dtype]), count, count)
}

// set sets the states to golden ones.
func set(decoder *t2r.Decoder, golden map[string]array) {
	given := got(decoder.States())
	for i, state := range given {
		wanted := golden[state.Name]
		values := made(state.Dtype, wanted.Shape)
		for n, number := range wanted.Data {
			values.Index(n).Set(reflect.ValueOf(number).Convert(values.Type().Elem()))
		}
		var content bytes.Buffer
		ok(binary.Write(&content, binary.NativeEndian, values.Interface()))
		given[i].Shape, given[i].Data = wanted.Shape, content.Bytes()
	}
	ok(decoder.SetStates(given, 0))
}
