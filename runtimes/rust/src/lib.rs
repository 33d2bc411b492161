//! Run the graphs of t2r-export: tokens in, logits out, states kept between them.
//!
//! A safe layer over libt2r (runtimes/cpp), whose header is [`sys`]. Every failure is an [`Error`]: a kind, and one line.
//!
//! A [`Decoder`] is used by one thread at a time, and its slices are valid until its next call; the compiler ensures
//! both. It may be moved to another thread; [`Decoder::fork`] makes one more of the same opened graph.
//!
//! ```no_run
//! let mut decoder = t2r::Decoder::open("story.onnx")?;
//! decoder.step(&[1])?;
//! std::thread::spawn(move || decoder.step(&[2]).map(<[f32]>::len)).join().unwrap()?;
//! # Ok::<(), t2r::Error>(())
//! ```
//!
//! Two threads in one decoder, a decoder in its own callback, logits after the next call, and a decoder or a tokenizer after
//! its end are refused by the compiler:
//!
//! ```compile_fail,E0499
//! let mut decoder = t2r::Decoder::open("story.onnx")?;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| decoder.step(&[1]).map(<[f32]>::len));
//!     scope.spawn(|| decoder.step(&[2]).map(<[f32]>::len));
//! });
//! # Ok::<(), t2r::Error>(())
//! ```
//! ```compile_fail,E0499
//! let mut decoder = t2r::Decoder::open("story.onnx")?;
//! decoder.generate_with(&[1], 5, &t2r::Sampling::greedy(), |token| decoder.step(&[token]).is_ok())?;
//! # Ok::<(), t2r::Error>(())
//! ```
//! ```compile_fail,E0499
//! let mut decoder = t2r::Decoder::open("story.onnx")?;
//! let logits = decoder.step(&[1])?;
//! decoder.step(&[2])?;
//! println!("{}", logits[0]);
//! # Ok::<(), t2r::Error>(())
//! ```
//! ```compile_fail,E0382
//! let mut decoder = t2r::Decoder::open("story.onnx")?;
//! drop(decoder);
//! decoder.step(&[1])?;
//! # Ok::<(), t2r::Error>(())
//! ```
//! ```compile_fail,E0382
//! let mut tokenizer = t2r::Decoder::open("story.onnx")?.tokenizer()?;
//! drop(tokenizer);
//! tokenizer.encode("once")?;
//! # Ok::<(), t2r::Error>(())
//! ```

mod decoder;
mod error;
mod log;
mod options;
pub mod sys;
mod text;
mod translator;

pub use decoder::{Canceller, Decoder, Info, Tensor};
pub use error::{Error, Kind, Result};
pub use log::{clear_log, set_log, Level};
pub use options::{share_threads, Beam, EarlyStopping, Options, Sampling};
pub use text::{Stream, Tokenizer};
pub use translator::Translation;
