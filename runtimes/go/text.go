package t2r

// #include <t2r.h>
import "C"

import (
	"runtime"
	"unsafe"
)

// Tokenizer converts text to tokens and back. It may outlive its decoder.
type Tokenizer struct {
	use
	handle *C.t2r_tokenizer
}

// Tokenizer returns the one in the graph's metadata.
func (d *Decoder) Tokenizer() (*Tokenizer, error) {
	made := &Tokenizer{use: use{name: "tokenizer"}}
	return made, d.do(func() C.t2r_kind { return C.t2r_open_tokenizer(d.handle, &made.handle) }, nil)
}

// SourceTokenizer returns that of a translator's sources; the graph's own if there is no other.
func (d *Decoder) SourceTokenizer() (*Tokenizer, error) {
	made := &Tokenizer{use: use{name: "tokenizer"}}
	return made, d.do(func() C.t2r_kind { return C.t2r_open_source_tokenizer(d.handle, &made.handle) }, nil)
}

// NewTokenizer makes one from the text of a tokenizer.json. bosToken: what an empty text becomes, or -1.
func NewTokenizer(json string, bosToken int64) (*Tokenizer, error) {
	made := &Tokenizer{use: use{name: "tokenizer"}}
	return made, try(func() C.t2r_kind {
		return C.t2r_make_tokenizer(bytes(json), C.size_t(len(json)), C.int64_t(bosToken), &made.handle)
	})
}

// Close releases the memory.
func (t *Tokenizer) Close() error {
	return t.do(func() C.t2r_kind { return C.t2r_close_tokenizer(t.handle) }, nil)
}

// Encode returns the tokens of a text, with the tokenizer's special tokens around it.
func (t *Tokenizer) Encode(text string) ([]int64, error) { return t.encode(text, 1) }

// EncodePlain is Encode without special tokens around the text.
func (t *Tokenizer) EncodePlain(text string) ([]int64, error) { return t.encode(text, 0) }

func (t *Tokenizer) encode(text string, special C.int) (tokens []int64, err error) {
	var found *C.int64_t
	var count C.size_t
	err = t.do(func() C.t2r_kind {
		return C.t2r_encode(t.handle, bytes(text), C.size_t(len(text)), special, &found, &count)
	}, func() { tokens = copied[int64](found, int(count)) })
	return tokens, err
}

// Decode returns the text of tokens, without special ones.
func (t *Tokenizer) Decode(tokens []int64) (string, error) {
	return t.text(func(found **C.char, size *C.size_t) C.t2r_kind {
		return C.t2r_decode(t.handle, numbers(tokens), C.size_t(len(tokens)), found, size)
	})
}

// Stream streams text token by token, never half a character. It may outlive its tokenizer.
type Stream struct {
	use
	handle *C.t2r_stream
}

// Stream streams the text of tokens that follow a prompt, without the prompt's text.
func (t *Tokenizer) Stream(prompt []int64) (*Stream, error) {
	made := &Stream{use: use{name: "stream"}}
	return made, t.do(func() C.t2r_kind {
		return C.t2r_open_stream(t.handle, numbers(prompt), C.size_t(len(prompt)), &made.handle)
	}, nil)
}

// StopAt ends the text, from here on, before the first of these that occurs. A possible beginning of one is held back.
func (s *Stream) StopAt(texts ...string) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	given, err := words(texts, &pinner)
	if err != nil {
		return err
	}
	return s.do(func() C.t2r_kind { return C.t2r_stop_at(s.handle, given, C.size_t(len(texts))) }, nil)
}

// Stopped returns whether one of them has occurred; later tokens give no text.
func (s *Stream) Stopped() (bool, error) {
	var found C.int
	err := s.do(func() C.t2r_kind { return C.t2r_stopped(s.handle, &found) }, nil)
	return found != 0, err
}

// Feed returns the text that this token completes, perhaps empty.
func (s *Stream) Feed(token int64) (string, error) {
	return s.text(func(found **C.char, size *C.size_t) C.t2r_kind {
		return C.t2r_feed(s.handle, C.int64_t(token), found, size)
	})
}

// End returns the text held back for the rest of a character.
func (s *Stream) End() (string, error) {
	return s.text(func(found **C.char, size *C.size_t) C.t2r_kind { return C.t2r_end_stream(s.handle, found, size) })
}

// Close releases the memory.
func (s *Stream) Close() error {
	return s.do(func() C.t2r_kind { return C.t2r_close_stream(s.handle) }, nil)
}

// text makes a call that returns a text.
func (u *use) text(call func(**C.char, *C.size_t) C.t2r_kind) (text string, err error) {
	var found *C.char
	var size C.size_t
	err = u.do(func() C.t2r_kind { return call(&found, &size) }, func() {
		text = string(unsafe.Slice((*byte)(unsafe.Pointer(found)), int(size)))
	})
	return text, err
}

// bytes are a text's bytes for C.
func bytes(text string) *C.char { return (*C.char)(unsafe.Pointer(unsafe.StringData(text))) }
