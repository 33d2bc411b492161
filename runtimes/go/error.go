package t2r

// #include <t2r.h>
import "C"

import "fmt"

// Kind is what went wrong: the same kinds, by the same names, in every language's runtime.
type Kind int

const (
	KindFile      Kind = C.T2R_FILE      // no such file, or one that cannot be read or written
	KindGraph     Kind = C.T2R_GRAPH     // not a graph that ONNX Runtime opens, or of another role
	KindVersion   Kind = C.T2R_VERSION   // another contract version, or a newer opset than ONNX Runtime reads
	KindMetadata  Kind = C.T2R_METADATA  // metadata that is missing, malformed or too large; states that are
	KindInterface Kind = C.T2R_INTERFACE // other inputs or outputs than the metadata says
	KindWeights   Kind = C.T2R_WEIGHTS   // weights that are missing, too short, or outside of the graph's folder
	KindTokenizer Kind = C.T2R_TOKENIZER // no tokenizer, one of parts that are not known, or text that is no UTF-8
	KindToken     Kind = C.T2R_TOKEN     // a token that the model has not
	KindPosition  Kind = C.T2R_POSITION  // more tokens than the model has positions
	KindBatch     Kind = C.T2R_BATCH     // another number of sequences
	KindSnapshot  Kind = C.T2R_SNAPSHOT  // anything wrong with a snapshot, or with states that are given
	KindSampling  Kind = C.T2R_SAMPLING  // an option out of range
	KindProvider  Kind = C.T2R_PROVIDER  // an execution provider, its options, or threads
	KindArgument  Kind = C.T2R_ARGUMENT  // NULL, an index or a structure's size where a function of C cannot take it
	KindState     Kind = C.T2R_STATE     // a handle that is closed, or in use
	KindMemory    Kind = C.T2R_MEMORY    // no more memory, or too many open handles
	KindRuntime   Kind = C.T2R_RUNTIME   // ONNX Runtime failed in a run
	KindCancelled Kind = C.T2R_CANCELLED // t2r_cancel ended the call
)

// String is the kind's name, as in "token".
func (k Kind) String() string { return C.GoString(C.t2r_kind_name(C.t2r_kind(k))) }

// Error is what every failure is.
type Error struct {
	Kind    Kind
	Message string // one line: what was expected, what was received, what to do
}

func (e *Error) Error() string { return e.Kind.String() + ": " + e.Message }

func failed(kind Kind, message string, values ...any) error {
	return &Error{kind, fmt.Sprintf(message, values...)}
}
