//! The decoder: reading, generation and states.

use std::any::Any;
use std::ffi::{c_int, c_void, CString};
use std::mem::size_of;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::Path;
use std::{ptr, slice};

use crate::error::{check, text, Error, Kind, Result, Words};
use crate::options::{Options, Sampling};
use crate::sys;

/// An opened step graph and the states of the texts that it reads.
#[derive(Debug)]
pub struct Decoder {
    pub(crate) handle: *mut sys::t2r_decoder,
    vocab_size: usize,
    top_k: usize,
    input_size: usize,
    written: Vec<i64>,
}

// A handle may move between threads; `&mut self` ensures that one thread at a time uses it.
unsafe impl Send for Decoder {}

/// Properties of a graph, and the progress of its decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    pub vocab_size: i64,
    /// Current number of sequences.
    pub batch: usize,
    /// The only batch that the graph takes; None: any.
    pub fixed_batch: Option<usize>,
    /// Tokens read by the furthest sequence.
    pub position: i64,
    /// Position after which a step is refused; None: no limit.
    pub max_positions: Option<i64>,
    pub bos_token: Option<i64>,
    pub eos_tokens: Vec<i64>,
    /// How many logits [`Decoder::top_k`] returns; None: the graph has no such outputs.
    pub top_k: Option<usize>,
    /// Number of states.
    pub states: usize,
    /// The checkpoint's SHA-256.
    pub checkpoint: String,
    /// Whether there is a prefill graph.
    pub prefills: bool,
    /// Whether the graph is a translator's.
    pub translates: bool,
    /// Whether [`Decoder::metadata`] has `t2r.chat_template`.
    pub chats: bool,
    /// Elements of the vectors that [`Decoder::read_vectors`] takes; None: the graph reads tokens.
    pub input_size: Option<usize>,
}

/// A state: its bytes, row-major, in native byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// float32, float16, int8, int32 or int64.
    pub dtype: String,
    pub shape: Vec<i64>,
    pub data: Vec<u8>,
}

/// Cancels a decoder's running call, from any thread.
#[derive(Clone, Copy, Debug)]
pub struct Canceller {
    handle: *mut sys::t2r_decoder,
}

// The library's cancel is thread-safe and detects closed handles.
unsafe impl Send for Canceller {}
unsafe impl Sync for Canceller {}

impl Canceller {
    /// The running call fails with [`Kind::Cancelled`], even within a step. Without one, nothing happens.
    pub fn cancel(&self) -> Result<()> {
        check(unsafe { sys::t2r_cancel(self.handle) })
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        unsafe { sys::t2r_close(self.handle) };
    }
}

impl Decoder {
    /// Open a step graph, at the start of a text.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &Options::default())
    }

    pub fn open_with(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let (path, mut handle) = (name(path.as_ref())?, ptr::null_mut());
        options.open(|given| unsafe { sys::t2r_open(path.as_ptr(), given, &mut handle) })?;
        Self::of(handle)
    }

    /// Open a step graph from memory, the first of the files: their names, and their bytes. The others are weights and
    /// companions, named as they would be beside it.
    pub fn open_memory<B: AsRef<[u8]>>(files: &[(&str, B)], options: &Options) -> Result<Self> {
        let names = Words::new(files.iter().map(|(name, _)| name))?;
        let given: Vec<sys::t2r_file> = files
            .iter()
            .zip(&names.pointers)
            .map(|((_, bytes), &name)| {
                let bytes = bytes.as_ref();
                sys::t2r_file { name, data: bytes.as_ptr().cast(), bytes: bytes.len() }
            })
            .collect();
        let mut handle = ptr::null_mut();
        options.open(|options| unsafe { sys::t2r_open_memory(given.as_ptr(), given.len(), options, &mut handle) })?;
        Self::of(handle)
    }

    /// Another decoder of the same opened graph, at the start of a text, for another thread: the weights are shared.
    pub fn fork(&mut self) -> Result<Self> {
        let mut handle = ptr::null_mut();
        check(unsafe { sys::t2r_fork(self.handle, &mut handle) })?;
        Self::of(handle)
    }

    /// As [`Decoder::fork`], with a copy of this decoder's states.
    pub fn copy(&mut self) -> Result<Self> {
        let mut handle = ptr::null_mut();
        check(unsafe { sys::t2r_copy(self.handle, &mut handle) })?;
        Self::of(handle)
    }

    /// Cancels this decoder's calls, for another thread or a callback.
    pub fn canceller(&self) -> Canceller {
        Canceller { handle: self.handle }
    }

    /// The graph's metadata under a key, such as `t2r.chat_template`.
    pub fn metadata(&mut self, key: &str) -> Result<Option<String>> {
        let Ok(key) = CString::new(key) else { return Ok(None) };
        let (mut value, mut size) = (ptr::null(), 0);
        check(unsafe { sys::t2r_metadata(self.handle, key.as_ptr(), &mut value, &mut size) })?;
        Ok((!value.is_null()).then(|| text(value)))
    }

    fn of(handle: *mut sys::t2r_decoder) -> Result<Self> {
        let mut decoder = Self { handle, vocab_size: 0, top_k: 0, input_size: 0, written: Vec::new() };
        let info = decoder.info()?;
        decoder.vocab_size = info.vocab_size as usize;
        decoder.top_k = info.top_k.unwrap_or(0);
        decoder.input_size = info.input_size.unwrap_or(0);
        Ok(decoder)
    }

    pub fn info(&mut self) -> Result<Info> {
        let mut found = unsafe { std::mem::zeroed::<sys::t2r_info>() };
        check(unsafe { sys::t2r_get_info(self.handle, &mut found, size_of::<sys::t2r_info>()) })?;
        Ok(Info {
            vocab_size: found.vocab_size,
            batch: found.batch as usize,
            fixed_batch: (found.fixed_batch > 0).then_some(found.fixed_batch as usize),
            position: found.position,
            max_positions: (found.max_positions > 0).then_some(found.max_positions),
            bos_token: (found.bos_token >= 0).then_some(found.bos_token),
            eos_tokens: unsafe { list(found.eos_tokens, found.eos_count) }.to_vec(),
            top_k: (found.top_k > 0).then_some(found.top_k as usize),
            states: found.states,
            checkpoint: text(found.checkpoint),
            prefills: found.prefills != 0,
            translates: found.translates != 0,
            chats: found.chats != 0,
            input_size: (found.input_size > 0).then_some(found.input_size as usize),
        })
    }

    /// Reset to the start of a text, for `batch` sequences; 0 keeps the batch.
    pub fn reset(&mut self, batch: usize) -> Result<()> {
        check(unsafe { sys::t2r_reset(self.handle, batch) })
    }

    /// Whether [`Decoder::generate`], from now on, guesses tokens by what followed the latest ones before, and checks several in one run.
    /// The graph must have a draft-check graph beside it.
    pub fn draft(&mut self, lookup: bool) -> Result<()> {
        check(unsafe { sys::t2r_draft(self.handle, lookup.into()) })
    }

    /// Choose the low-rank adapters that the tokens from now on use, by names in the metadata `t2r.adapters`, `None` for none:
    /// one per sequence, or one for all. Rows keep theirs when they move; [`Decoder::reset`] chooses none.
    pub fn adapt(&mut self, names: &[Option<&str>]) -> Result<()> {
        let texts = Words::new(names.iter().flatten())?;
        let mut given = texts.pointers.iter();
        let given: Vec<_> = names.iter().map(|name| name.and_then(|_| given.next()).map_or(ptr::null(), |&text| text)).collect();
        check(unsafe { sys::t2r_adapt(self.handle, given.as_ptr(), given.len()) })
    }

    /// Read one token per sequence. Returns the logits of the next token, (batch, vocab_size).
    pub fn step(&mut self, tokens: &[i64]) -> Result<&[f32]> {
        let mut logits = ptr::null();
        check(unsafe { sys::t2r_step(self.handle, tokens.as_ptr(), tokens.len(), &mut logits) })?;
        Ok(unsafe { list(logits, tokens.len() * self.vocab_size) })
    }

    /// Read equally many tokens of each sequence, many per run if there is a prefill graph. Returns the logits of the
    /// next token, (batch, vocab_size).
    pub fn prefill<R: AsRef<[i64]>>(&mut self, rows: &[R]) -> Result<&[f32]> {
        let (tokens, length) = flat(rows)?;
        let mut logits = ptr::null();
        check(unsafe { sys::t2r_prefill(self.handle, tokens.as_ptr(), rows.len(), length, &mut logits) })?;
        Ok(unsafe { list(logits, rows.len() * self.vocab_size) })
    }

    /// As [`Decoder::prefill`], but returns only the largest logits, (batch, top_k), and their tokens.
    pub fn top_k<R: AsRef<[i64]>>(&mut self, rows: &[R]) -> Result<(&[f32], &[i64])> {
        let (tokens, length) = flat(rows)?;
        let (mut logits, mut chosen) = (ptr::null(), ptr::null());
        check(unsafe { sys::t2r_top_k(self.handle, tokens.as_ptr(), rows.len(), length, &mut logits, &mut chosen) })?;
        let size = rows.len() * self.top_k;
        Ok(unsafe { (list(logits, size), list(chosen, size)) })
    }

    /// For a graph that reads vectors, which the calls for tokens refuse: read equally many of each sequence, row-major,
    /// [`Info::input_size`] elements each. One is a step. Returns the next logits, (batch, vocab_size).
    pub fn read_vectors<R: AsRef<[f32]>>(&mut self, rows: &[R]) -> Result<&[f32]> {
        let size = self.input_size.max(1); // a graph of tokens refuses the call
        let elements = rows.first().map_or(0, |row| row.as_ref().len());
        let uneven = |row: &&R| row.as_ref().len() != elements || elements % size != 0;
        if let Some(row) = rows.iter().find(uneven) {
            let given = row.as_ref().len();
            let line = format!("expected equally many vectors of {size} elements of each sequence; received {given} elements; read them one by one");
            return Err(Error::new(Kind::Batch, &line));
        }
        let vectors: Vec<f32> = rows.iter().flat_map(|row| row.as_ref()).copied().collect();
        let (length, mut logits) = (elements / size, ptr::null());
        check(unsafe { sys::t2r_read_vectors(self.handle, vectors.as_ptr(), rows.len(), length, size, &mut logits) })?;
        Ok(unsafe { list(logits, rows.len() * self.vocab_size) })
    }

    /// Drop, repeat or reorder the sequences. The batch becomes the number of `rows`.
    pub fn reorder(&mut self, rows: &[i64]) -> Result<()> {
        check(unsafe { sys::t2r_reorder(self.handle, rows.as_ptr(), rows.len()) })
    }

    /// Replace the states with rows of decoders of the same graph ([`Decoder::fork`], [`Decoder::copy`]); `None` is this one.
    pub fn take(&mut self, rows: &[(Option<&Decoder>, i64)]) -> Result<()> {
        let from: Vec<_> = rows.iter().map(|(other, _)| other.map_or(self.handle, |other| other.handle)).collect();
        let rows: Vec<_> = rows.iter().map(|(_, row)| *row).collect();
        check(unsafe { sys::t2r_take(self.handle, from.as_ptr(), rows.as_ptr(), rows.len()) })
    }

    /// The token that [`Decoder::generate`] would choose from a row's logits, which the caller may modify. `draw`: how
    /// many tokens were chosen in its text before.
    pub fn choose(&mut self, logits: &[f32], row: usize, sampling: &Sampling, draw: i64) -> Result<i64> {
        if logits.len() != self.vocab_size {
            let (wanted, given) = (self.vocab_size, logits.len());
            let line = format!("expected {wanted} logits of one row; received {given}; cut them");
            return Err(Error::new(Kind::Argument, &line));
        }
        let (given, mut token) = (sampling.raw(self.handle)?, 0);
        check(unsafe { sys::t2r_choose(self.handle, logits.as_ptr(), row, &given, draw, &mut token) })?;
        Ok(token)
    }

    /// Read a prompt, and generate up to `max_tokens` tokens. The last is chosen but not read: begin the next
    /// call with it.
    pub fn generate(&mut self, prompt: &[i64], max_tokens: i64, sampling: &Sampling) -> Result<Vec<i64>> {
        self.write(prompt, max_tokens, sampling, None, ptr::null_mut())
    }

    /// As [`Decoder::generate`], passing each token to `callback` as it is chosen; false ends the text there.
    pub fn generate_with<F: FnMut(i64) -> bool>(
        &mut self,
        prompt: &[i64],
        max_tokens: i64,
        sampling: &Sampling,
        callback: F,
    ) -> Result<Vec<i64>> {
        let mut call = Call { callback, panic: None };
        let user = ptr::addr_of_mut!(call).cast();
        let written = self.write(prompt, max_tokens, sampling, Some(called::<F>), user);
        match call.panic {
            Some(panic) => resume_unwind(panic),
            None => written,
        }
    }

    fn write(
        &mut self,
        prompt: &[i64],
        max_tokens: i64,
        sampling: &Sampling,
        callback: sys::t2r_callback,
        user: *mut c_void,
    ) -> Result<Vec<i64>> {
        self.written.clear();
        let given = sampling.raw(self.handle)?;
        let (mut tokens, mut count) = (ptr::null(), 0);
        let done = check(unsafe {
            sys::t2r_generate(
                self.handle,
                prompt.as_ptr(),
                prompt.len(),
                max_tokens,
                &given,
                callback,
                user,
                &mut tokens,
                &mut count,
            )
        });
        self.written = unsafe { list(tokens, count) }.to_vec();
        done.map(|()| self.written.clone())
    }

    /// The tokens that the last [`Decoder::generate`] chose, even if it failed.
    pub fn written(&self) -> &[i64] {
        &self.written
    }

    /// Copies of all states.
    pub fn states(&mut self) -> Result<Vec<Tensor>> {
        (0..self.info()?.states).map(|index| self.state(index)).collect()
    }

    fn state(&mut self, index: usize) -> Result<Tensor> {
        let mut found = unsafe { std::mem::zeroed::<sys::t2r_tensor>() };
        check(unsafe { sys::t2r_state(self.handle, index, &mut found) })?;
        Ok(Tensor {
            name: text(found.name),
            dtype: text(found.dtype),
            shape: unsafe { list(found.shape, found.rank) }.to_vec(),
            data: unsafe { list(found.data.cast::<u8>(), found.bytes) }.to_vec(),
        })
    }

    /// Continue from a complete set of states; the batch becomes theirs. `position`: tokens read, if no state says it.
    pub fn set_states(&mut self, states: &[Tensor], position: i64) -> Result<()> {
        let words: Vec<[CString; 2]> =
            states.iter().map(|state| Ok([word(&state.name)?, word(&state.dtype)?])).collect::<Result<_>>()?;
        let given: Vec<sys::t2r_tensor> = states
            .iter()
            .zip(&words)
            .map(|(state, [name, dtype])| sys::t2r_tensor {
                name: name.as_ptr(),
                dtype: dtype.as_ptr(),
                rank: state.shape.len(),
                shape: state.shape.as_ptr(),
                data: state.data.as_ptr().cast(),
                bytes: state.data.len(),
            })
            .collect();
        check(unsafe { sys::t2r_set_states(self.handle, given.as_ptr(), given.len(), position) })
    }

    /// Write the states to a file, and a token that was chosen but not read.
    pub fn save(&mut self, path: impl AsRef<Path>, token: Option<i64>) -> Result<()> {
        check(unsafe { sys::t2r_save(self.handle, name(path.as_ref())?.as_ptr(), token.unwrap_or(-1)) })
    }

    /// Continue from such a file, of any language's runtime. Returns the saved token.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<Option<i64>> {
        let mut token = -1;
        check(unsafe { sys::t2r_load(self.handle, name(path.as_ref())?.as_ptr(), &mut token) })?;
        Ok((token >= 0).then_some(token))
    }

    /// The bytes that [`Decoder::save`] would write.
    pub fn save_memory(&mut self, token: Option<i64>) -> Result<Vec<u8>> {
        let (mut data, mut bytes) = (ptr::null(), 0);
        check(unsafe { sys::t2r_save_memory(self.handle, token.unwrap_or(-1), &mut data, &mut bytes) })?;
        Ok(unsafe { list(data.cast(), bytes) }.to_vec())
    }

    /// As [`Decoder::load`], from such bytes.
    pub fn load_memory(&mut self, snapshot: &[u8]) -> Result<Option<i64>> {
        let mut token = -1;
        check(unsafe { sys::t2r_load_memory(self.handle, snapshot.as_ptr().cast(), snapshot.len(), &mut token) })?;
        Ok((token >= 0).then_some(token))
    }
}

/// A callback passed through C. A panic must not unwind through C.
struct Call<F> {
    callback: F,
    panic: Option<Box<dyn Any + Send>>,
}

extern "C" fn called<F: FnMut(i64) -> bool>(token: i64, user: *mut c_void) -> c_int {
    let call = unsafe { &mut *user.cast::<Call<F>>() };
    match catch_unwind(AssertUnwindSafe(|| (call.callback)(token))) {
        Ok(go_on) => go_on.into(),
        Err(panic) => {
            call.panic = Some(panic);
            0
        }
    }
}

/// A view of the library's memory; the pointer may be NULL if `count` is 0.
pub(crate) unsafe fn list<'a, T>(pointer: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    slice::from_raw_parts(pointer, count)
}

/// Rows of one length, concatenated, and the length.
fn flat<R: AsRef<[i64]>>(rows: &[R]) -> Result<(Vec<i64>, usize)> {
    let length = rows.first().map_or(0, |row| row.as_ref().len());
    match rows.iter().map(|row| row.as_ref().len()).find(|other| *other != length) {
        None => Ok((rows.iter().flat_map(|row| row.as_ref()).copied().collect(), length)),
        Some(other) => Err(Error::new(
            Kind::Batch,
            &format!("expected rows of one length; received {length} and {other} tokens; read them one by one"),
        )),
    }
}

fn name(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| Error::new(Kind::File, "expected a path; received one with a zero byte in it; name a file"))
}

fn word(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| {
        Error::new(Kind::Snapshot, "expected a state's name and dtype; received a zero byte in it; see Decoder::states")
    })
}
