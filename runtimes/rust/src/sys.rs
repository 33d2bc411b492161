//! The declarations of t2r.h, which runtimes/bindings/declarations.py writes. The rest of the crate is safe.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};

pub type t2r_kind = c_uint;
pub const T2R_OK: t2r_kind = 0;
pub const T2R_FILE: t2r_kind = 1;
pub const T2R_GRAPH: t2r_kind = 2;
pub const T2R_VERSION: t2r_kind = 3;
pub const T2R_METADATA: t2r_kind = 4;
pub const T2R_INTERFACE: t2r_kind = 5;
pub const T2R_WEIGHTS: t2r_kind = 6;
pub const T2R_TOKENIZER: t2r_kind = 7;
pub const T2R_TOKEN: t2r_kind = 8;
pub const T2R_POSITION: t2r_kind = 9;
pub const T2R_BATCH: t2r_kind = 10;
pub const T2R_SNAPSHOT: t2r_kind = 11;
pub const T2R_SAMPLING: t2r_kind = 12;
pub const T2R_PROVIDER: t2r_kind = 13;
pub const T2R_ARGUMENT: t2r_kind = 14;
pub const T2R_STATE: t2r_kind = 15;
pub const T2R_MEMORY: t2r_kind = 16;
pub const T2R_RUNTIME: t2r_kind = 17;
pub const T2R_CANCELLED: t2r_kind = 18;

pub type t2r_level = c_uint;
pub const T2R_VERBOSE: t2r_level = 0;
pub const T2R_INFO: t2r_level = 1;
pub const T2R_WARNING: t2r_level = 2;
pub const T2R_ERROR: t2r_level = 3;
pub const T2R_FATAL: t2r_level = 4;

pub enum t2r_decoder {}
pub enum t2r_tokenizer {}
pub enum t2r_stream {}

#[repr(C)]
pub struct t2r_options {
    pub size: usize,
    pub threads: i32,
    pub companions: i32,
    pub max_state_bytes: i64,
    pub config: *const *const c_char,
    pub config_count: usize,
    pub provider: *const *const c_char,
    pub provider_count: usize,
    pub max_source: i64,
}

#[repr(C)]
pub struct t2r_file {
    pub name: *const c_char,
    pub data: *const c_void,
    pub bytes: usize,
}

#[repr(C)]
pub struct t2r_info {
    pub vocab_size: i64,
    pub batch: i64,
    pub fixed_batch: i64,
    pub position: i64,
    pub max_positions: i64,
    pub bos_token: i64,
    pub top_k: i64,
    pub states: usize,
    pub eos_count: usize,
    pub eos_tokens: *const i64,
    pub checkpoint: *const c_char,
    pub prefills: i32,
    pub translates: i32,
    pub chats: i32,
    pub input_size: i64,
}

#[repr(C)]
pub struct t2r_sampling {
    pub size: usize,
    pub temperature: f64,
    pub top_k: i64,
    pub top_p: f64,
    pub min_p: f64,
    pub repetition_penalty: f64,
    pub no_repeat_ngram: i64,
    pub seed: i64,
    pub stop_tokens: *const i64,
    pub stop_count: usize,
}

#[repr(C)]
pub struct t2r_tensor {
    pub name: *const c_char,
    pub dtype: *const c_char,
    pub rank: usize,
    pub shape: *const i64,
    pub data: *const c_void,
    pub bytes: usize,
}

#[repr(C)]
pub struct t2r_beam {
    pub size: usize,
    pub width: i64,
    pub max_tokens: i64,
    pub min_tokens: i64,
    pub early_stopping: i32,
    pub forced_end: i32,
    pub n_best: i64,
    pub length_penalty: f64,
    pub repetition_penalty: f64,
    pub no_repeat_ngram: i64,
    pub copy: i64,
}

pub type t2r_log = Option<extern "C" fn(level: i32, message: *const c_char, user: *mut c_void)>;

pub type t2r_callback = Option<extern "C" fn(token: i64, user: *mut c_void) -> c_int>;

#[link(name = "t2r")]
extern "C" {
    pub fn t2r_kind_name(kind: t2r_kind) -> *const c_char;
    pub fn t2r_error() -> *const c_char;
    pub fn t2r_version() -> i32;
    pub fn t2r_set_log(log: t2r_log, user: *mut c_void, level: i32) -> t2r_kind;
    pub fn t2r_share_threads(threads: i32) -> t2r_kind;
    pub fn t2r_defaults(options: *mut t2r_options, size: usize) -> t2r_kind;
    pub fn t2r_open(path: *const c_char, options: *const t2r_options, decoder: *mut *mut t2r_decoder) -> t2r_kind;
    pub fn t2r_open_memory(
        files: *const t2r_file,
        count: usize,
        options: *const t2r_options,
        decoder: *mut *mut t2r_decoder,
    ) -> t2r_kind;
    pub fn t2r_fork(decoder: *mut t2r_decoder, other: *mut *mut t2r_decoder) -> t2r_kind;
    pub fn t2r_copy(decoder: *mut t2r_decoder, other: *mut *mut t2r_decoder) -> t2r_kind;
    pub fn t2r_cancel(decoder: *mut t2r_decoder) -> t2r_kind;
    pub fn t2r_close(decoder: *mut t2r_decoder) -> t2r_kind;
    pub fn t2r_get_info(decoder: *mut t2r_decoder, info: *mut t2r_info, size: usize) -> t2r_kind;
    pub fn t2r_metadata(
        decoder: *mut t2r_decoder,
        key: *const c_char,
        value: *mut *const c_char,
        size: *mut usize,
    ) -> t2r_kind;
    pub fn t2r_reset(decoder: *mut t2r_decoder, batch: usize) -> t2r_kind;
    pub fn t2r_adapt(decoder: *mut t2r_decoder, names: *const *const c_char, count: usize) -> t2r_kind;
    pub fn t2r_step(decoder: *mut t2r_decoder, tokens: *const i64, count: usize, logits: *mut *const f32) -> t2r_kind;
    pub fn t2r_prefill(
        decoder: *mut t2r_decoder,
        tokens: *const i64,
        batch: usize,
        length: usize,
        logits: *mut *const f32,
    ) -> t2r_kind;
    pub fn t2r_top_k(
        decoder: *mut t2r_decoder,
        tokens: *const i64,
        batch: usize,
        length: usize,
        logits: *mut *const f32,
        chosen: *mut *const i64,
    ) -> t2r_kind;
    pub fn t2r_read_vectors(
        decoder: *mut t2r_decoder,
        vectors: *const f32,
        batch: usize,
        length: usize,
        size: usize,
        logits: *mut *const f32,
    ) -> t2r_kind;
    pub fn t2r_reorder(decoder: *mut t2r_decoder, rows: *const i64, count: usize) -> t2r_kind;
    pub fn t2r_take(
        decoder: *mut t2r_decoder,
        from: *const *mut t2r_decoder,
        rows: *const i64,
        count: usize,
    ) -> t2r_kind;
    pub fn t2r_sampling_defaults(decoder: *mut t2r_decoder, sampling: *mut t2r_sampling, size: usize) -> t2r_kind;
    pub fn t2r_generate(
        decoder: *mut t2r_decoder,
        prompt: *const i64,
        length: usize,
        max_tokens: i64,
        sampling: *const t2r_sampling,
        callback: t2r_callback,
        user: *mut c_void,
        tokens: *mut *const i64,
        count: *mut usize,
    ) -> t2r_kind;
    pub fn t2r_draft(decoder: *mut t2r_decoder, lookup: i32) -> t2r_kind;
    pub fn t2r_choose(
        decoder: *mut t2r_decoder,
        logits: *const f32,
        row: usize,
        sampling: *const t2r_sampling,
        draw: i64,
        token: *mut i64,
    ) -> t2r_kind;
    pub fn t2r_state(decoder: *mut t2r_decoder, index: usize, state: *mut t2r_tensor) -> t2r_kind;
    pub fn t2r_set_states(
        decoder: *mut t2r_decoder,
        states: *const t2r_tensor,
        count: usize,
        position: i64,
    ) -> t2r_kind;
    pub fn t2r_save(decoder: *mut t2r_decoder, path: *const c_char, token: i64) -> t2r_kind;
    pub fn t2r_load(decoder: *mut t2r_decoder, path: *const c_char, token: *mut i64) -> t2r_kind;
    pub fn t2r_save_memory(
        decoder: *mut t2r_decoder,
        token: i64,
        data: *mut *const c_void,
        bytes: *mut usize,
    ) -> t2r_kind;
    pub fn t2r_load_memory(decoder: *mut t2r_decoder, data: *const c_void, bytes: usize, token: *mut i64) -> t2r_kind;
    pub fn t2r_encode_sources(
        decoder: *mut t2r_decoder,
        tokens: *const i64,
        lengths: *const i64,
        count: usize,
        longest: usize,
    ) -> t2r_kind;
    pub fn t2r_beam_defaults(decoder: *mut t2r_decoder, beam: *mut t2r_beam, size: usize) -> t2r_kind;
    pub fn t2r_translate(
        decoder: *mut t2r_decoder,
        source: *const i64,
        length: usize,
        beam: *const t2r_beam,
        found: *mut usize,
    ) -> t2r_kind;
    pub fn t2r_translation(
        decoder: *mut t2r_decoder,
        index: usize,
        tokens: *mut *const i64,
        count: *mut usize,
        score: *mut f64,
    ) -> t2r_kind;
    pub fn t2r_open_tokenizer(decoder: *mut t2r_decoder, tokenizer: *mut *mut t2r_tokenizer) -> t2r_kind;
    pub fn t2r_open_source_tokenizer(decoder: *mut t2r_decoder, tokenizer: *mut *mut t2r_tokenizer) -> t2r_kind;
    pub fn t2r_make_tokenizer(
        json: *const c_char,
        size: usize,
        bos_token: i64,
        tokenizer: *mut *mut t2r_tokenizer,
    ) -> t2r_kind;
    pub fn t2r_close_tokenizer(tokenizer: *mut t2r_tokenizer) -> t2r_kind;
    pub fn t2r_encode(
        tokenizer: *mut t2r_tokenizer,
        text: *const c_char,
        size: usize,
        special: c_int,
        tokens: *mut *const i64,
        count: *mut usize,
    ) -> t2r_kind;
    pub fn t2r_decode(
        tokenizer: *mut t2r_tokenizer,
        tokens: *const i64,
        count: usize,
        text: *mut *const c_char,
        size: *mut usize,
    ) -> t2r_kind;
    pub fn t2r_open_stream(
        tokenizer: *mut t2r_tokenizer,
        prompt: *const i64,
        count: usize,
        stream: *mut *mut t2r_stream,
    ) -> t2r_kind;
    pub fn t2r_stop_at(stream: *mut t2r_stream, texts: *const *const c_char, count: usize) -> t2r_kind;
    pub fn t2r_stopped(stream: *mut t2r_stream, stopped: *mut c_int) -> t2r_kind;
    pub fn t2r_feed(stream: *mut t2r_stream, token: i64, text: *mut *const c_char, size: *mut usize) -> t2r_kind;
    pub fn t2r_end_stream(stream: *mut t2r_stream, text: *mut *const c_char, size: *mut usize) -> t2r_kind;
    pub fn t2r_close_stream(stream: *mut t2r_stream) -> t2r_kind;
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<t2r_options>() == 64);
    assert!(offset_of!(t2r_options, size) == 0);
    assert!(offset_of!(t2r_options, threads) == 8);
    assert!(offset_of!(t2r_options, companions) == 12);
    assert!(offset_of!(t2r_options, max_state_bytes) == 16);
    assert!(offset_of!(t2r_options, config) == 24);
    assert!(offset_of!(t2r_options, config_count) == 32);
    assert!(offset_of!(t2r_options, provider) == 40);
    assert!(offset_of!(t2r_options, provider_count) == 48);
    assert!(offset_of!(t2r_options, max_source) == 56);
    assert!(size_of::<t2r_file>() == 24);
    assert!(offset_of!(t2r_file, name) == 0);
    assert!(offset_of!(t2r_file, data) == 8);
    assert!(offset_of!(t2r_file, bytes) == 16);
    assert!(size_of::<t2r_info>() == 112);
    assert!(offset_of!(t2r_info, vocab_size) == 0);
    assert!(offset_of!(t2r_info, batch) == 8);
    assert!(offset_of!(t2r_info, fixed_batch) == 16);
    assert!(offset_of!(t2r_info, position) == 24);
    assert!(offset_of!(t2r_info, max_positions) == 32);
    assert!(offset_of!(t2r_info, bos_token) == 40);
    assert!(offset_of!(t2r_info, top_k) == 48);
    assert!(offset_of!(t2r_info, states) == 56);
    assert!(offset_of!(t2r_info, eos_count) == 64);
    assert!(offset_of!(t2r_info, eos_tokens) == 72);
    assert!(offset_of!(t2r_info, checkpoint) == 80);
    assert!(offset_of!(t2r_info, prefills) == 88);
    assert!(offset_of!(t2r_info, translates) == 92);
    assert!(offset_of!(t2r_info, chats) == 96);
    assert!(offset_of!(t2r_info, input_size) == 104);
    assert!(size_of::<t2r_sampling>() == 80);
    assert!(offset_of!(t2r_sampling, size) == 0);
    assert!(offset_of!(t2r_sampling, temperature) == 8);
    assert!(offset_of!(t2r_sampling, top_k) == 16);
    assert!(offset_of!(t2r_sampling, top_p) == 24);
    assert!(offset_of!(t2r_sampling, min_p) == 32);
    assert!(offset_of!(t2r_sampling, repetition_penalty) == 40);
    assert!(offset_of!(t2r_sampling, no_repeat_ngram) == 48);
    assert!(offset_of!(t2r_sampling, seed) == 56);
    assert!(offset_of!(t2r_sampling, stop_tokens) == 64);
    assert!(offset_of!(t2r_sampling, stop_count) == 72);
    assert!(size_of::<t2r_tensor>() == 48);
    assert!(offset_of!(t2r_tensor, name) == 0);
    assert!(offset_of!(t2r_tensor, dtype) == 8);
    assert!(offset_of!(t2r_tensor, rank) == 16);
    assert!(offset_of!(t2r_tensor, shape) == 24);
    assert!(offset_of!(t2r_tensor, data) == 32);
    assert!(offset_of!(t2r_tensor, bytes) == 40);
    assert!(size_of::<t2r_beam>() == 80);
    assert!(offset_of!(t2r_beam, size) == 0);
    assert!(offset_of!(t2r_beam, width) == 8);
    assert!(offset_of!(t2r_beam, max_tokens) == 16);
    assert!(offset_of!(t2r_beam, min_tokens) == 24);
    assert!(offset_of!(t2r_beam, early_stopping) == 32);
    assert!(offset_of!(t2r_beam, forced_end) == 36);
    assert!(offset_of!(t2r_beam, n_best) == 40);
    assert!(offset_of!(t2r_beam, length_penalty) == 48);
    assert!(offset_of!(t2r_beam, repetition_penalty) == 56);
    assert!(offset_of!(t2r_beam, no_repeat_ngram) == 64);
    assert!(offset_of!(t2r_beam, copy) == 72);
};
