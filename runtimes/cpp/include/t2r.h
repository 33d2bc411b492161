/* Run the graphs of t2r-export: tokens in, logits out, states kept between them. See docs/embedding.md.

   Every function returns T2R_OK or the kind of the error. t2r_error() is then one line: what was expected, what was
   received, what to do. No function ends the process or throws an exception. An error in the arguments leaves the handle
   unchanged. If a call fails later, t2r_info.position is the number of tokens read, and the decoder can continue from there.

   One thread at a time may use a handle; a second thread gets an error. Returned data (logits, tokens, text) belongs to
   its handle, and is valid until the next call with that handle. Using a handle that is closed or NULL is an error, with
   no other effect. Texts are UTF-8, with their size in bytes.

   Structures grow at their ends. The caller passes the structure's size, so programs and libraries of different patch
   releases are compatible: fields that a shorter structure lacks get their defaults; bytes of a longer structure beyond
   the library's must be 0, and functions that fill in structures set them to 0. t2r_tensor and t2r_file have no size, and
   do not change. */
#ifndef T2R_H
#define T2R_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(T2R_SHARED)
#ifdef T2R_BUILDING
#define T2R_API __declspec(dllexport)
#else
#define T2R_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define T2R_API __attribute__((visibility("default")))
#else
#define T2R_API
#endif

/* The release of this header. Libraries of one major and minor version have one soname and are compatible. */
#define T2R_VERSION_MAJOR 0
#define T2R_VERSION_MINOR 1
#define T2R_VERSION_PATCH 0
#define T2R_VERSION_NUMBER (T2R_VERSION_MAJOR * 1000000 + T2R_VERSION_MINOR * 1000 + T2R_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* The kinds of errors, with the same names in every language. */
typedef enum t2r_kind {
    T2R_OK = 0,
    T2R_FILE,       /* no such file, or one that cannot be read or written */
    T2R_GRAPH,      /* not a graph that ONNX Runtime opens, or one of another role; logits that are not finite */
    T2R_VERSION,    /* another contract version, or a newer opset than ONNX Runtime reads */
    T2R_METADATA,   /* missing, malformed or too large metadata; too large states */
    T2R_INTERFACE,  /* inputs or outputs that differ from the metadata */
    T2R_WEIGHTS,    /* external weights that are missing, too short, or outside of the graph's folder */
    T2R_TOKENIZER,  /* no tokenizer, one with unsupported parts, or text that is not UTF-8 */
    T2R_TOKEN,      /* a token outside the vocabulary */
    T2R_POSITION,   /* more tokens than the model has positions */
    T2R_BATCH,      /* a wrong number of sequences, or states too large for the limit */
    T2R_SNAPSHOT,   /* an invalid snapshot, or invalid states passed by the caller */
    T2R_SAMPLING,   /* an option out of range */
    T2R_PROVIDER,   /* an execution provider, its options, or the number of threads */
    T2R_ARGUMENT,   /* NULL, an index or a structure's size that the function does not accept */
    T2R_STATE,      /* a handle that is closed, or in use by another thread or by the call whose callback is running */
    T2R_MEMORY,     /* out of memory, or too many open handles */
    T2R_RUNTIME,    /* ONNX Runtime failed in a run */
    T2R_CANCELLED   /* t2r_cancel ended the call */
} t2r_kind;

/* The kind's name, as in "token". */
T2R_API const char *t2r_kind_name(t2r_kind kind);

/* The error message of this thread's last failed call. */
T2R_API const char *t2r_error(void);

/* T2R_VERSION_NUMBER of the loaded library. */
T2R_API int32_t t2r_version(void);

typedef enum t2r_level { T2R_VERBOSE = 0, T2R_INFO, T2R_WARNING, T2R_ERROR, T2R_FATAL } t2r_level;

/* Receives ONNX Runtime's messages, from any thread, one at a time. It must not call libt2r or throw. */
typedef void (*t2r_log)(int32_t level, const char *message, void *user);

/* Log messages of this level or above, of graphs opened from now on. NULL removes the log, which is not called after this
   returns. Without a log, messages are dropped; errors are in t2r_error. */
T2R_API t2r_kind t2r_set_log(t2r_log log, void *user, int32_t level);

typedef struct t2r_decoder t2r_decoder;
typedef struct t2r_tokenizer t2r_tokenizer;
typedef struct t2r_stream t2r_stream;

/* ---- Opening ---- */

typedef struct t2r_options {
    size_t size;              /* sizeof(t2r_options); t2r_defaults fills it in */
    int32_t threads;          /* inside an operator; 0: those of t2r_share_threads, else one per core. Also of the plugin t2r */
    int32_t companions;       /* 1 (default); 0: do not use the prefill graph beside the graph */
    int64_t max_state_bytes;  /* limit of a graph's states at batch 1; default 2 GiB */
    const char *const *config; /* ONNX Runtime's session options, keys and values in turn; NULL: none */
    size_t config_count;      /* strings in config: two per option */
    const char *const *provider; /* the name of an execution provider in ONNX Runtime ("XNNPACK"), or the path of a plugin
                                    library, with a separator in it (ONNX Runtime 1.22 or later); then its options, keys
                                    and values in turn; NULL: the CPU. A graph with a node that the provider does not
                                    run is refused, unless config has session.disable_cpu_ep_fallback "0", or the
                                    provider is a library and the graph a companion */
    size_t provider_count;    /* strings in provider */
    int64_t max_source;       /* maximum tokens of a translator's source, besides the graph's own; default 4096, 1.1 GB of
                                 attention scores in an encoder of 8 heads. Sources given together are encoded in portions
                                 with no more scores than one of this length, where the graph has no fixed batch */
} t2r_options;

/* Share one set of threads among all graphs of the process, except those opened with a number of their own. threads: their
   number; 0: one per core. Call this before the first graph is opened. */
T2R_API t2r_kind t2r_share_threads(int32_t threads);

/* Fill in the options with their defaults. size: sizeof(t2r_options). */
T2R_API t2r_kind t2r_defaults(t2r_options *options, size_t size);

/* Open a step graph, at the start of a text. options may be NULL: the defaults. */
T2R_API t2r_kind t2r_open(const char *path, const t2r_options *options, t2r_decoder **decoder);

/* A file in memory. */
typedef struct t2r_file {
    const char *name;   /* its name in a folder */
    const void *data;
    size_t bytes;
} t2r_file;

/* Open a step graph in memory, the first of the files. The others are all external weights of the graphs, the companions to
   use, and a translator's encoder, each under its own name. The files may be freed when this returns. */
T2R_API t2r_kind t2r_open_memory(const t2r_file *files, size_t count, const t2r_options *options, t2r_decoder **decoder);

/* Create another decoder of the same session, at the start of a text, for another thread. The weights are shared. */
T2R_API t2r_kind t2r_fork(t2r_decoder *decoder, t2r_decoder **other);

/* The same with a copy of this decoder's states. */
T2R_API t2r_kind t2r_copy(t2r_decoder *decoder, t2r_decoder **other);

/* From another thread or a callback: end the call that is running in the decoder, also during a step. The call fails with
   T2R_CANCELLED, the decoder keeps the states of its last complete step, and the tokens of t2r_generate are those chosen
   before. If no call is running, or it is ending by itself, nothing happens. */
T2R_API t2r_kind t2r_cancel(t2r_decoder *decoder);

T2R_API t2r_kind t2r_close(t2r_decoder *decoder);

typedef struct t2r_info {
    int64_t vocab_size;
    int64_t batch;           /* current number of sequences */
    int64_t fixed_batch;     /* the only batch that the graph accepts; 0: any */
    int64_t position;        /* tokens read by the longest sequence */
    int64_t max_positions;   /* after these, a step is refused; 0: no limit */
    int64_t bos_token;       /* -1: none */
    int64_t top_k;           /* of t2r_top_k; 0: the graph has no such outputs */
    size_t states;           /* number of states for t2r_state */
    size_t eos_count;
    const int64_t *eos_tokens;
    const char *checkpoint;  /* its SHA-256 */
    int32_t prefills;        /* whether there is a prefill graph */
    int32_t translates;      /* whether it is a translator, which the functions under Translators need */
    int32_t chats;           /* whether t2r_metadata has t2r.chat_template */
    int64_t input_size;      /* elements of the vectors that t2r_read_vectors takes; 0: the graph reads tokens */
} t2r_info;

/* size: sizeof(t2r_info). */
T2R_API t2r_kind t2r_get_info(t2r_decoder *decoder, t2r_info *info, size_t size);

/* The value of a metadata key of the graph's file, as in "t2r.chat_template": JSON, unchanged (runtimes/CONTRACT.md,
   "Metadata"). NULL if there is no such key, and for tokenizers, which t2r_open_tokenizer opens. Valid while any decoder of
   the graph is open. size may be NULL. */
T2R_API t2r_kind t2r_metadata(t2r_decoder *decoder, const char *key, const char **value, size_t *size);

/* ---- Reading ---- */

/* Go back to the start of a text, with batch sequences; 0 keeps their number. */
T2R_API t2r_kind t2r_reset(t2r_decoder *decoder, size_t batch);

/* Choose the low-rank adapters that the tokens from now on use, by names in t2r.adapters (t2r_metadata), NULL for none: one per
   sequence, or one for all if count is 1. They are a state: rows keep theirs when they move, and t2r_reset chooses none. */
T2R_API t2r_kind t2r_adapt(t2r_decoder *decoder, const char *const *names, size_t count);

/* Read one token of each sequence: count is the batch. logits: (batch, vocab_size); may be NULL. */
T2R_API t2r_kind t2r_step(t2r_decoder *decoder, const int64_t *tokens, size_t count, const float **logits);

/* Read many tokens of each sequence: (batch, length), row-major; many per run if there is a prefill graph. */
T2R_API t2r_kind t2r_prefill(t2r_decoder *decoder, const int64_t *tokens, size_t batch, size_t length,
                             const float **logits);

/* t2r_prefill that returns only the largest logits, (batch, top_k), and their tokens. */
T2R_API t2r_kind t2r_top_k(t2r_decoder *decoder, const int64_t *tokens, size_t batch, size_t length,
                           const float **logits, const int64_t **chosen);

/* For a graph that reads vectors, which the functions for tokens refuse: read many vectors of each sequence, finite,
   (batch, length, size), row-major. size is t2r_info.input_size. A length of 1 is a step. */
T2R_API t2r_kind t2r_read_vectors(t2r_decoder *decoder, const float *vectors, size_t batch, size_t length, size_t size,
                                  const float **logits);

/* Continue with these rows in this order: drop, repeat or exchange sequences. The batch becomes count. */
T2R_API t2r_kind t2r_reorder(t2r_decoder *decoder, const int64_t *rows, size_t count);

/* Replace the batch by rows of decoders of one session (t2r_fork, t2r_copy), also of this one: row i is rows[i] of from[i],
   and the batch becomes count. This adds texts to a batch, or continues a text from a copy. */
T2R_API t2r_kind t2r_take(t2r_decoder *decoder, t2r_decoder *const *from, const int64_t *rows, size_t count);

/* ---- Writing ---- */

typedef struct t2r_sampling {
    size_t size;                /* sizeof(t2r_sampling); t2r_sampling_defaults fills it in, with the defaults below */
    double temperature;         /* default 1; 0: the largest logit, the lowest token on ties */
    int64_t top_k;              /* 0: all */
    double top_p;               /* 1: all */
    double min_p;               /* 0: all */
    double repetition_penalty;  /* 1: none */
    int64_t no_repeat_ngram;    /* 0: no limit */
    int64_t seed;               /* the same seed gives the same text; -1: a new seed for each text */
    const int64_t *stop_tokens; /* the text ends with the first of them; NULL: the graph's EOS tokens */
    size_t stop_count;
} t2r_sampling;

/* Fill in the options of the decoder's graph (t2r.generation); those that the graph does not set, and all if decoder is
   NULL, get the defaults above. size: sizeof(t2r_sampling). */
T2R_API t2r_kind t2r_sampling_defaults(t2r_decoder *decoder, t2r_sampling *sampling, size_t size);

/* Called with each token as it is chosen; returning 0 ends the text. It must not call the decoder. */
typedef int (*t2r_callback)(int64_t token, void *user);

/* Read a prompt and generate up to max_tokens tokens. The last one is not read: it begins the prompt of the next call.
   sampling may be NULL: the graph's options. callback may be NULL. If the call fails, the tokens are those chosen before. */
T2R_API t2r_kind t2r_generate(t2r_decoder *decoder, const int64_t *prompt, size_t length, int64_t max_tokens,
                              const t2r_sampling *sampling, t2r_callback callback, void *user, const int64_t **tokens,
                              size_t *count);

/* Whether t2r_generate, from now on, guesses the next tokens by what followed the latest ones before, and checks several guesses in
   one run (1), or not (0, as at first). The text is the same except for rounding; a text has few guesses if they do not pay off.
   If a call fails, several of its tokens may be unread: t2r_info.position counts those that were read. An error of the kind graph
   if the graph names no draft-check graph, or was opened in memory; of the kind file if that is not beside it. */
T2R_API t2r_kind t2r_draft(t2r_decoder *decoder, int32_t lookup);

/* Choose a token as t2r_generate would, from logits (vocab_size) of a step, which the program may have changed. row: the
   sequence whose history the penalties use. draw: the number of tokens chosen in its text before. sampling may be NULL;
   the caller checks for stop tokens. */
T2R_API t2r_kind t2r_choose(t2r_decoder *decoder, const float *logits, size_t row, const t2r_sampling *sampling,
                            int64_t draw, int64_t *token);

/* ---- States ---- */

typedef struct t2r_tensor {
    const char *name;
    const char *dtype;  /* float32, float16, int8, int32 or int64 */
    size_t rank;
    const int64_t *shape;
    const void *data;   /* row-major */
    size_t bytes;
} t2r_tensor;

T2R_API t2r_kind t2r_state(t2r_decoder *decoder, size_t index, t2r_tensor *state);

/* Continue from a copy of these states, all of the graph's; the batch becomes theirs. position: number of tokens read, if
   no state has it. */
T2R_API t2r_kind t2r_set_states(t2r_decoder *decoder, const t2r_tensor *states, size_t count, int64_t position);

/* Write the states to a file. token: one that was chosen but not read, or -1. */
T2R_API t2r_kind t2r_save(t2r_decoder *decoder, const char *path, int64_t token);

/* Continue from such a file of any language's runtime. token: the saved token, or -1; may be NULL. */
T2R_API t2r_kind t2r_load(t2r_decoder *decoder, const char *path, int64_t *token);

/* t2r_save and t2r_load with the bytes of the file in memory. */
T2R_API t2r_kind t2r_save_memory(t2r_decoder *decoder, int64_t token, const void **data, size_t *bytes);
T2R_API t2r_kind t2r_load_memory(t2r_decoder *decoder, const void *data, size_t bytes, int64_t *token);

/* ---- Translators ---- */

/* Encode sources (count, longest), each at the front of its row. The decoder is then before the start tokens of their
   translations, and the batch becomes count. */
T2R_API t2r_kind t2r_encode_sources(t2r_decoder *decoder, const int64_t *tokens, const int64_t *lengths, size_t count,
                                    size_t longest);

typedef struct t2r_beam {
    size_t size;                /* sizeof(t2r_beam); t2r_beam_defaults fills it in, with the defaults below */
    int64_t width;              /* default 4; 1: greedy */
    int64_t max_tokens;         /* default 0: the graph's, else 256; fewer if the positions end before */
    int64_t min_tokens;         /* 0 */
    int32_t early_stopping;     /* default 0; 1: stop at width finished hypotheses; 2: only when none can become better */
    int32_t forced_end;         /* 1: the last of max_tokens is forced to be EOS */
    int64_t n_best;             /* 1 */
    double length_penalty;      /* 1 */
    double repetition_penalty;  /* 1: none */
    int64_t no_repeat_ngram;    /* 0: no limit */
    int64_t copy;               /* 1: numbers and unknown names of the source are copied, if the graph has tokenizers */
} t2r_beam;

/* As t2r_sampling_defaults. size: sizeof(t2r_beam). */
T2R_API t2r_kind t2r_beam_defaults(t2r_decoder *decoder, t2r_beam *beam, size_t size);

/* Translate a source by beam search. beam may be NULL: the graph's options. found: number of translations. */
T2R_API t2r_kind t2r_translate(t2r_decoder *decoder, const int64_t *source, size_t length, const t2r_beam *beam,
                               size_t *found);

/* A translation of the last t2r_translate, best first. */
T2R_API t2r_kind t2r_translation(t2r_decoder *decoder, size_t index, const int64_t **tokens, size_t *count, double *score);

/* ---- Text ---- */

/* Open the tokenizer in the graph's metadata. The decoder may be closed before it. */
T2R_API t2r_kind t2r_open_tokenizer(t2r_decoder *decoder, t2r_tokenizer **tokenizer);

/* Open the tokenizer of a translator's sources; the graph's own if they have none. */
T2R_API t2r_kind t2r_open_source_tokenizer(t2r_decoder *decoder, t2r_tokenizer **tokenizer);

/* Create a tokenizer from the text of a tokenizer.json. bos_token: the token of an empty text, or -1. */
T2R_API t2r_kind t2r_make_tokenizer(const char *json, size_t size, int64_t bos_token, t2r_tokenizer **tokenizer);

T2R_API t2r_kind t2r_close_tokenizer(t2r_tokenizer *tokenizer);

/* The tokens of a text. special: whether to add the tokenizer's special tokens around it. */
T2R_API t2r_kind t2r_encode(t2r_tokenizer *tokenizer, const char *text, size_t size, int special, const int64_t **tokens,
                            size_t *count);

/* The text of tokens, without special tokens. It is 0-terminated; size does not count the 0. */
T2R_API t2r_kind t2r_decode(t2r_tokenizer *tokenizer, const int64_t *tokens, size_t count, const char **text, size_t *size);

/* Decode tokens as they come, without partial characters. prompt: the tokens before, whose text is not returned. The
   tokenizer may be closed before the stream. */
T2R_API t2r_kind t2r_open_stream(t2r_tokenizer *tokenizer, const int64_t *prompt, size_t count, t2r_stream **stream);

/* End the stream's text before the first of these stop texts that occurs from now on; before the longest if several are
   complete at once. Text that may begin a stop text is held back. They replace those of a former call, whose held text
   follows with the next token. At most 256 stop texts of 1,024 bytes, 0-terminated; none if count is 0. */
T2R_API t2r_kind t2r_stop_at(t2r_stream *stream, const char *const *texts, size_t count);

/* Whether a stop text has occurred. t2r_feed then returns no text, and a callback may end the generation. */
T2R_API t2r_kind t2r_stopped(t2r_stream *stream, int *stopped);

/* The text that this token completes; may be empty. If it fails, the stream is unchanged. */
T2R_API t2r_kind t2r_feed(t2r_stream *stream, int64_t token, const char **text, size_t *size);

/* The text that was still held back. */
T2R_API t2r_kind t2r_end_stream(t2r_stream *stream, const char **text, size_t *size);

T2R_API t2r_kind t2r_close_stream(t2r_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
