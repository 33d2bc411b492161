package t2r

// #include <t2r.h>
import "C"

import "fmt"

// Kind is the kind of an error, with the same name in every language's runtime.
type Kind int

const (
	KindFile      Kind = C.T2R_FILE      // no such file, or one that cannot be read or written
	KindGraph     Kind = C.T2R_GRAPH     // not a graph that ONNX Runtime opens, or of another role
	KindVersion   Kind = C.T2R_VERSION   // another contract version, or a newer opset than ONNX Runtime reads
	KindMetadata  Kind = C.T2R_METADATA  // metadata that is missing, malformed or too large; states that are too large
	KindInterface Kind = C.T2R_INTERFACE // inputs or outputs that differ from the metadata
	KindWeights   Kind = C.T2R_WEIGHTS   // weights that are missing, too short, or outside of the graph's folder
	KindTokenizer Kind = C.T2R_TOKENIZER // no tokenizer, one with unknown parts, or text that is not UTF-8
	KindToken     Kind = C.T2R_TOKEN     // a token outside the vocabulary
	KindPosition  Kind = C.T2R_POSITION  // more tokens than the model has positions
	KindBatch     Kind = C.T2R_BATCH     // a wrong number of sequences
	KindSnapshot  Kind = C.T2R_SNAPSHOT  // an invalid snapshot, or invalid states
	KindSampling  Kind = C.T2R_SAMPLING  // an option out of range
	KindProvider  Kind = C.T2R_PROVIDER  // an execution provider, its options, or threads
	KindArgument  Kind = C.T2R_ARGUMENT  // NULL, an index or a structure's size that a C function does not accept
	KindState     Kind = C.T2R_STATE     // a handle that is closed, or in use
	KindMemory    Kind = C.T2R_MEMORY    // no more memory, or too many open handles
	KindRuntime   Kind = C.T2R_RUNTIME   // ONNX Runtime failed in a run
	KindCancelled Kind = C.T2R_CANCELLED // t2r_cancel ended the call
)

// String is the kind's name, as in "token".
func (k Kind) String() string { return C.GoString(C.t2r_kind_name(C.t2r_kind(k))) }

// Error is the type of every failure.
type Error struct {
	Kind    Kind
	Message string // one line: what was expected, what was received, what to do
}

func (e *Error) Error() string { return e.Kind.String() + ": " + e.Message }

func failed(kind Kind, message string, values ...any) error {
	return &Error{kind, fmt.Sprintf(message, values...)}
}
