//! Options, whose defaults are the library's.

use std::ptr;

use crate::sys;

/// How a graph is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Inside an operator; 0: one a core.
    pub threads: i32,
    /// Whether the prefill, generation and beam graphs that lie beside are used.
    pub companions: bool,
    /// What a graph may ask for, at batch 1.
    pub max_state_bytes: i64,
}

impl Default for Options {
    fn default() -> Self {
        let made = unsafe { sys::t2r_defaults() };
        Self { threads: made.threads, companions: made.companions != 0, max_state_bytes: made.max_state_bytes }
    }
}

impl Options {
    pub(crate) fn raw(&self) -> sys::t2r_options {
        sys::t2r_options {
            threads: self.threads,
            companions: self.companions.into(),
            max_state_bytes: self.max_state_bytes,
            ..unsafe { sys::t2r_defaults() }
        }
    }
}

/// How tokens are chosen.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// 0: the largest logit, of equals the lowest token.
    pub temperature: f64,
    /// 0: all.
    pub top_k: i64,
    /// 1: all.
    pub top_p: f64,
    /// 0: all.
    pub min_p: f64,
    /// 1: none.
    pub repetition_penalty: f64,
    /// 0: no limit.
    pub no_repeat_ngram: i64,
    /// 0 or more: the same seed gives the same text. None: a new one for each.
    pub seed: Option<i64>,
    /// The text ends with the first of them. None: the graph's own.
    pub stop_tokens: Option<Vec<i64>>,
}

impl Default for Sampling {
    fn default() -> Self {
        let made = unsafe { sys::t2r_sampling_defaults() };
        Self {
            temperature: made.temperature,
            top_k: made.top_k,
            top_p: made.top_p,
            min_p: made.min_p,
            repetition_penalty: made.repetition_penalty,
            no_repeat_ngram: made.no_repeat_ngram,
            seed: None,
            stop_tokens: None,
        }
    }
}

impl Sampling {
    /// The likeliest token each time.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Good for as long as `self` is.
    pub(crate) fn raw(&self) -> sys::t2r_sampling {
        sys::t2r_sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            no_repeat_ngram: self.no_repeat_ngram,
            seed: self.seed.unwrap_or(-1),
            stop_tokens: self.stop_tokens.as_ref().map_or(ptr::null(), |tokens| tokens.as_ptr()),
            stop_count: self.stop_tokens.as_ref().map_or(0, Vec::len),
            ..unsafe { sys::t2r_sampling_defaults() }
        }
    }
}

/// When a search ends before `max_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyStopping {
    /// When as many hypotheses as the width are finished, and none that goes on looks better.
    No,
    /// When as many hypotheses as the width are finished.
    Yes,
    /// Not before none can become better.
    Never,
}

/// How translations are searched for.
#[derive(Clone, Debug)]
pub struct Beam {
    /// 1 is greedy.
    pub width: i64,
    /// 0: 256, or fewer where positions end before.
    pub max_tokens: i64,
    pub min_tokens: i64,
    pub early_stopping: EarlyStopping,
    /// Whether the last of `max_tokens` is an end.
    pub forced_end: bool,
    pub n_best: i64,
    pub length_penalty: f64,
    /// 1: none.
    pub repetition_penalty: f64,
    /// 0: no limit.
    pub no_repeat_ngram: i64,
}

impl Default for Beam {
    fn default() -> Self {
        let made = unsafe { sys::t2r_beam_defaults() };
        Self {
            width: made.width,
            max_tokens: made.max_tokens,
            min_tokens: made.min_tokens,
            early_stopping: EarlyStopping::No,
            forced_end: made.forced_end != 0,
            n_best: made.n_best,
            length_penalty: made.length_penalty,
            repetition_penalty: made.repetition_penalty,
            no_repeat_ngram: made.no_repeat_ngram,
        }
    }
}

impl Beam {
    pub(crate) fn raw(&self) -> sys::t2r_beam {
        sys::t2r_beam {
            width: self.width,
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            early_stopping: self.early_stopping as i32,
            forced_end: self.forced_end.into(),
            n_best: self.n_best,
            length_penalty: self.length_penalty,
            repetition_penalty: self.repetition_penalty,
            no_repeat_ngram: self.no_repeat_ngram,
            ..unsafe { sys::t2r_beam_defaults() }
        }
    }
}
