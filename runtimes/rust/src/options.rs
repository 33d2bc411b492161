//! Options. In generation and search, None means the graph's value.

use std::iter::once;
use std::mem::size_of;

use crate::error::{check, Result, Words};
use crate::sys;

/// A struct that a C function fills, given its size.
fn filled<T>(fill: impl FnOnce(*mut T, usize) -> sys::t2r_kind) -> Result<T> {
    let mut made = unsafe { std::mem::zeroed::<T>() };
    check(fill(&mut made, size_of::<T>()))?;
    Ok(made)
}

fn set<T>(to: &mut T, value: Option<impl Into<T>>) {
    if let Some(value) = value {
        *to = value.into();
    }
}

fn flat(pairs: &[(String, String)]) -> impl Iterator<Item = &String> {
    pairs.iter().flat_map(|(key, value)| [key, value])
}

/// Share this number of threads among all graphs opened without their own; 0: one per core. Call before the first graph
/// is opened.
pub fn share_threads(threads: i32) -> Result<()> {
    check(unsafe { sys::t2r_share_threads(threads) })
}

fn opening() -> sys::t2r_options {
    filled(|made, size| unsafe { sys::t2r_defaults(made, size) }).expect("the library's own defaults")
}

/// How a graph is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads in an operator; 0: those of [`share_threads`], else one per core.
    pub threads: i32,
    /// Whether to use the prefill graph beside the graph.
    pub companions: bool,
    /// Limit of a graph's state bytes, at batch 1.
    pub max_state_bytes: i64,
    /// Maximum tokens of a translator's source, besides the graph's own limit.
    pub max_source: i64,
    /// ONNX Runtime's session options: keys and values.
    pub config: Vec<(String, String)>,
    /// An execution provider, by its name in ONNX Runtime or its library's path. It runs all nodes, unless
    /// `config` has `session.disable_cpu_ep_fallback` as `0`. None: the CPU.
    pub provider: Option<String>,
    /// The provider's options: keys and values.
    pub provider_options: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        let made = opening();
        Self {
            threads: made.threads,
            companions: made.companions != 0,
            max_state_bytes: made.max_state_bytes,
            max_source: made.max_source,
            config: Vec::new(),
            provider: None,
            provider_options: Vec::new(),
        }
    }
}

impl Options {
    /// Call `open` with these options for C.
    pub(crate) fn open(&self, open: impl FnOnce(&sys::t2r_options) -> sys::t2r_kind) -> Result<()> {
        let config = Words::new(flat(&self.config))?;
        let provider =
            Words::new(self.provider.iter().flat_map(|name| once(name).chain(flat(&self.provider_options))))?;
        check(open(&sys::t2r_options {
            threads: self.threads,
            companions: self.companions.into(),
            max_state_bytes: self.max_state_bytes,
            max_source: self.max_source,
            config: config.pointers.as_ptr(),
            config_count: config.pointers.len(),
            provider: provider.pointers.as_ptr(),
            provider_count: provider.pointers.len(),
            ..opening()
        }))
    }
}

/// How tokens are chosen. None means the graph's value.
#[derive(Clone, Debug, Default)]
pub struct Sampling {
    /// 0: the largest logit, the lowest token on ties.
    pub temperature: Option<f64>,
    /// 0: all.
    pub top_k: Option<i64>,
    /// 1: all.
    pub top_p: Option<f64>,
    /// 0: all.
    pub min_p: Option<f64>,
    /// 1: none.
    pub repetition_penalty: Option<f64>,
    /// 0: no limit.
    pub no_repeat_ngram: Option<i64>,
    /// 0 or more: the same seed gives the same text. None: a new seed for each.
    pub seed: Option<i64>,
    /// The text ends with the first of them. None: the graph's own.
    pub stop_tokens: Option<Vec<i64>>,
}

impl Sampling {
    /// The likeliest token each time.
    pub fn greedy() -> Self {
        Self { temperature: Some(0.0), ..Self::default() }
    }

    /// These over the graph's options, valid as long as `self`.
    pub(crate) fn raw(&self, decoder: *mut sys::t2r_decoder) -> Result<sys::t2r_sampling> {
        let mut made = filled(|made, size| unsafe { sys::t2r_sampling_defaults(decoder, made, size) })?;
        set(&mut made.temperature, self.temperature);
        set(&mut made.top_k, self.top_k);
        set(&mut made.top_p, self.top_p);
        set(&mut made.min_p, self.min_p);
        set(&mut made.repetition_penalty, self.repetition_penalty);
        set(&mut made.no_repeat_ngram, self.no_repeat_ngram);
        set(&mut made.seed, self.seed);
        set(&mut made.stop_tokens, self.stop_tokens.as_ref().map(|tokens| tokens.as_ptr()));
        set(&mut made.stop_count, self.stop_tokens.as_ref().map(Vec::len));
        Ok(made)
    }
}

/// When a search ends before `max_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyStopping {
    /// When `width` hypotheses are finished, and no unfinished one looks better.
    No,
    /// When `width` hypotheses are finished.
    Yes,
    /// When no unfinished hypothesis can become better.
    Never,
}

/// Options of beam search. None means the graph's value.
#[derive(Clone, Debug, Default)]
pub struct Beam {
    /// 1 is greedy.
    pub width: Option<i64>,
    /// None: the graph's, capped at the model's positions.
    pub max_tokens: Option<i64>,
    pub min_tokens: Option<i64>,
    pub early_stopping: Option<EarlyStopping>,
    /// Whether the last of `max_tokens` is forced to be an end token.
    pub forced_end: Option<bool>,
    pub n_best: Option<i64>,
    pub length_penalty: Option<f64>,
    /// 1: none.
    pub repetition_penalty: Option<f64>,
    /// 0: no limit.
    pub no_repeat_ngram: Option<i64>,
    /// Whether numbers and unknown names of the source are copied.
    pub copy: Option<bool>,
}

impl Beam {
    pub(crate) fn raw(&self, decoder: *mut sys::t2r_decoder) -> Result<sys::t2r_beam> {
        let mut made = filled(|made, size| unsafe { sys::t2r_beam_defaults(decoder, made, size) })?;
        set(&mut made.width, self.width);
        set(&mut made.max_tokens, self.max_tokens);
        set(&mut made.min_tokens, self.min_tokens);
        set(&mut made.early_stopping, self.early_stopping.map(|stops| stops as i32));
        set(&mut made.forced_end, self.forced_end);
        set(&mut made.n_best, self.n_best);
        set(&mut made.length_penalty, self.length_penalty);
        set(&mut made.repetition_penalty, self.repetition_penalty);
        set(&mut made.no_repeat_ngram, self.no_repeat_ngram);
        set(&mut made.copy, self.copy);
        Ok(made)
    }
}
