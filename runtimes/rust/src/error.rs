//! Errors: a kind, and one line.

use std::ffi::{c_char, CStr, CString};
use std::fmt;

use crate::sys;

/// Error kinds, with the same names in every language's runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// No such file, or one that cannot be read or written.
    File = 1,
    /// Not a graph that ONNX Runtime opens, or one of another role; logits that are not finite.
    Graph,
    /// Another contract version, or a newer opset than ONNX Runtime reads.
    Version,
    /// Metadata that is missing, malformed or too large; states that are too large.
    Metadata,
    /// Inputs or outputs that differ from the metadata.
    Interface,
    /// Weights beside the graph that are missing, too short, or outside of its folder.
    Weights,
    /// No tokenizer, one with unknown parts, or text that is not UTF-8.
    Tokenizer,
    /// A token outside the vocabulary.
    Token,
    /// More tokens than the model has positions.
    Position,
    /// A wrong number of sequences.
    Batch,
    /// An invalid snapshot, or invalid states.
    Snapshot,
    /// An option out of range.
    Sampling,
    /// An execution provider, its options, or threads.
    Provider,
    /// NULL, an index or a structure's size that a C function does not accept.
    Argument,
    /// A handle that is closed, or in use.
    State,
    /// No more memory, or too many open handles.
    Memory,
    /// ONNX Runtime failed in a run; also a kind unknown to this crate.
    Runtime,
    /// [`crate::Canceller`] ended the call.
    Cancelled,
}

const KINDS: [Kind; 18] = [
    Kind::File,
    Kind::Graph,
    Kind::Version,
    Kind::Metadata,
    Kind::Interface,
    Kind::Weights,
    Kind::Tokenizer,
    Kind::Token,
    Kind::Position,
    Kind::Batch,
    Kind::Snapshot,
    Kind::Sampling,
    Kind::Provider,
    Kind::Argument,
    Kind::State,
    Kind::Memory,
    Kind::Runtime,
    Kind::Cancelled,
];

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(&text(unsafe { sys::t2r_kind_name(*self as sys::t2r_kind) }))
    }
}

/// An error, displayed as `kind: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: Kind,
    /// One line: what was expected, what was received, what to do.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: Kind, message: &str) -> Self {
        Self { kind, message: message.to_string() }
    }
}

/// Zero-terminated texts for C.
pub(crate) struct Words {
    _texts: Vec<CString>,
    pub(crate) pointers: Vec<*const c_char>,
}

impl Words {
    pub(crate) fn new(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let texts: Vec<CString> =
            texts.into_iter().map(|text| CString::new(text.as_ref())).collect::<std::result::Result<_, _>>().map_err(
                |_| Error::new(Kind::Argument, "expected a text; received one with a zero byte in it; leave that out"),
            )?;
        let pointers = texts.iter().map(|text| text.as_ptr()).collect();
        Ok(Self { _texts: texts, pointers })
    }
}

/// A call's kind as a Result. The message is thread-local, so it is read at once.
pub(crate) fn check(kind: sys::t2r_kind) -> Result<()> {
    if kind == sys::T2R_OK {
        return Ok(());
    }
    let known = KINDS.get(kind as usize - 1).copied().unwrap_or(Kind::Runtime);
    Err(Error { kind: known, message: text(unsafe { sys::t2r_error() }) })
}

/// The text at a pointer of the library.
pub(crate) fn text(pointer: *const c_char) -> String {
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
