/* Run the graphs of t2r-export: tokens in, logits out, states kept between them. See docs/embedding.md.

   Every function returns T2R_OK or the kind of what went wrong, and then t2r_error() is one line that says it: what was
   expected, what was received, what to do. None ends the process, and no exception comes out of any. What is wrong with the
   arguments leaves a handle as it was; a call that fails later has read what t2r_info.position says, and can be gone on from.

   A handle belongs to one thread at a time; another thread in it at once is an error there. What a function hands out
   (logits, tokens, text) belongs to its handle, and is good until the next call with that handle. A handle that was
   closed, or is NULL, is an error and nothing worse. Texts are UTF-8, and say how many bytes they have.

   Structures grow at their ends. Who passes one says its size, so a program and a library of other patch releases fit:
   what a shorter structure has not, has its default; what a longer one has beyond the library's must be 0, which is what
   the functions that fill structures in put there. t2r_tensor and t2r_file have no size, and stay as they are. */
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

/* The release that this header is of. Libraries of one major and minor version have one soname and fit each other. */
#define T2R_VERSION_MAJOR 0
#define T2R_VERSION_MINOR 1
#define T2R_VERSION_PATCH 0
#define T2R_VERSION_NUMBER (T2R_VERSION_MAJOR * 1000000 + T2R_VERSION_MINOR * 1000 + T2R_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* What can go wrong: the same kinds, by the same names, in every language. */
typedef enum t2r_kind {
    T2R_OK = 0,
    T2R_FILE,       /* no such file, or one that cannot be read or written */
    T2R_GRAPH,      /* not a graph that ONNX Runtime opens, or one of another role; logits that are not finite */
    T2R_VERSION,    /* another contract version, or a newer opset than ONNX Runtime reads */
    T2R_METADATA,   /* metadata that is missing, malformed or too large; states that are */
    T2R_INTERFACE,  /* other inputs or outputs than the metadata says */
    T2R_WEIGHTS,    /* weights beside the graph that are missing, too short, or outside of its folder */
    T2R_TOKENIZER,  /* none, one of parts that are not known here, or text that is no UTF-8 */
    T2R_TOKEN,      /* a token that the model has not */
    T2R_POSITION,   /* more tokens than the model has positions */
    T2R_BATCH,      /* another number of sequences */
    T2R_SNAPSHOT,   /* anything wrong with a snapshot, or with states that are given */
    T2R_SAMPLING,   /* an option out of range */
    T2R_PROVIDER,   /* an execution provider, its options, or threads */
    T2R_ARGUMENT,   /* NULL, an index or a structure's size where the function cannot take it */
    T2R_STATE,      /* a handle that is closed, or in use by another thread or by the call whose callback this is */
    T2R_MEMORY,     /* no more memory, or too many open handles */
    T2R_RUNTIME,    /* ONNX Runtime failed in a run */
    T2R_CANCELLED   /* t2r_cancel ended the call */
} t2r_kind;

/* The kind's name, as in "token". */
T2R_API const char *t2r_kind_name(t2r_kind kind);

/* What went wrong in this thread's last call that failed. */
T2R_API const char *t2r_error(void);

/* T2R_VERSION_NUMBER of the library that runs. */
T2R_API int32_t t2r_version(void);

typedef enum t2r_level { T2R_VERBOSE = 0, T2R_INFO, T2R_WARNING, T2R_ERROR, T2R_FATAL } t2r_level;

/* Called with what ONNX Runtime says: by any thread, one at a time. It must not call libt2r, nor throw. */
typedef void (*t2r_log)(int32_t level, const char *message, void *user);

/* Listen to all graphs that are opened from now on, to what is of this level or above. NULL: listen no more; log is not
   called after this returns. Without a log nothing is said: what goes wrong is t2r_error's. */
T2R_API t2r_kind t2r_set_log(t2r_log log, void *user, int32_t level);

typedef struct t2r_decoder t2r_decoder;
typedef struct t2r_tokenizer t2r_tokenizer;
typedef struct t2r_stream t2r_stream;

/* ---- Opening ---- */

typedef struct t2r_options {
    size_t size;              /* sizeof(t2r_options); t2r_defaults fills it in */
    int32_t threads;          /* inside an operator; 0: those of t2r_share_threads, else one a core */
    int32_t companions;       /* 0 leaves alone the prefill and generation graphs that lie beside; 1 */
    int64_t max_state_bytes;  /* what a graph may ask for, at batch 1; 2 GiB */
    const char *const *config; /* ONNX Runtime's own options of a session, each a key and its value; NULL: none */
    size_t config_count;      /* of strings: two for each */
    const char *const *provider; /* an execution provider's name, as ONNX Runtime has it ("XNNPACK"), or the path of its
                                    library, with a separator in it, which ONNX Runtime 1.22 or later opens; then its
                                    options, each a key and its value; NULL: the CPU. A graph of which it leaves a node is
                                    refused, unless config has session.disable_cpu_ep_fallback "0", or it is a library and
                                    the graph a companion; and it runs no generation graph */
    size_t provider_count;    /* of strings */
} t2r_options;

/* One set of threads for all graphs of the process, but for those that are opened with a number of their own: as many; 0:
   one a core. Before the first graph is opened. */
T2R_API t2r_kind t2r_share_threads(int32_t threads);

/* Fill in the options with their defaults. size: sizeof(t2r_options). */
T2R_API t2r_kind t2r_defaults(t2r_options *options, size_t size);

/* Open a step graph, at the start of a text. options may be NULL: the defaults. */
T2R_API t2r_kind t2r_open(const char *path, const t2r_options *options, t2r_decoder **decoder);

/* A file that the program has in memory. */
typedef struct t2r_file {
    const char *name;   /* as it would have in a folder */
    const void *data;
    size_t bytes;
} t2r_file;

/* Open a step graph that is in memory, the first of the files. The others are weights and companions, each under its own
   name: all weights that a graph has beside it, those companions that are to be used, and a translator's encoder. The
   files may go when this returns. */
T2R_API t2r_kind t2r_open_memory(const t2r_file *files, size_t count, const t2r_options *options, t2r_decoder **decoder);

/* Another decoder of the same opened graph, at the start of a text, for another thread: the weights are shared. */
T2R_API t2r_kind t2r_fork(t2r_decoder *decoder, t2r_decoder **other);

/* The same, with the states of this one: it goes on where this one stands. */
T2R_API t2r_kind t2r_copy(t2r_decoder *decoder, t2r_decoder **other);

/* From another thread, or from a callback: end the call that is in the decoder, within a step too. It fails with
   T2R_CANCELLED, the decoder stands where its last whole step left it, and the tokens of t2r_generate are those chosen
   before. Where no call is in it, or it ends by itself at that moment, nothing happens. */
T2R_API t2r_kind t2r_cancel(t2r_decoder *decoder);

T2R_API t2r_kind t2r_close(t2r_decoder *decoder);

typedef struct t2r_info {
    int64_t vocab_size;
    int64_t batch;           /* sequences side by side, now */
    int64_t fixed_batch;     /* the only number that the graph takes; 0: any */
    int64_t position;        /* tokens read by the furthest sequence */
    int64_t max_positions;   /* after which a step is refused; 0: there is no end */
    int64_t bos_token;       /* -1: none */
    int64_t top_k;           /* of t2r_top_k; 0: the graph has no such outputs */
    size_t states;           /* how many t2r_state gives */
    size_t eos_count;
    const int64_t *eos_tokens;
    const char *checkpoint;  /* its SHA-256 */
    int32_t prefills;        /* whether a prefill graph lies beside */
    int32_t generates;       /* whether a generation graph does */
    int32_t translates;      /* whether it is a translator's: what stands under Translators is for it */
    int32_t chats;           /* whether t2r_metadata has t2r.chat_template */
    int64_t input_size;      /* elements of the vectors that t2r_read_vectors takes; 0: the graph reads tokens */
} t2r_info;

/* size: sizeof(t2r_info). */
T2R_API t2r_kind t2r_get_info(t2r_decoder *decoder, t2r_info *info, size_t size);

/* What the graph's file says under a key, as in "t2r.chat_template": JSON, as it stands there (runtimes/CONTRACT.md,
   "Metadata"). NULL where it says nothing, and for tokenizers, which t2r_open_tokenizer opens. Good while the decoder, or
   another of its graph, is open. size may be NULL. */
T2R_API t2r_kind t2r_metadata(t2r_decoder *decoder, const char *key, const char **value, size_t *size);

/* ---- Reading ---- */

/* Back to the start of a text, of so many sequences; 0 leaves their number as it is. */
T2R_API t2r_kind t2r_reset(t2r_decoder *decoder, size_t batch);

/* Read one token of each sequence: count is the batch. logits: (batch, vocab_size). It may be NULL. */
T2R_API t2r_kind t2r_step(t2r_decoder *decoder, const int64_t *tokens, size_t count, const float **logits);

/* Read many tokens of each sequence: (batch, length), row by row; many in one run where there is a prefill graph. */
T2R_API t2r_kind t2r_prefill(t2r_decoder *decoder, const int64_t *tokens, size_t batch, size_t length,
                             const float **logits);

/* t2r_prefill, of whose logits only the largest come out, (batch, top_k), and their tokens. */
T2R_API t2r_kind t2r_top_k(t2r_decoder *decoder, const int64_t *tokens, size_t batch, size_t length,
                           const float **logits, const int64_t **chosen);

/* Of a graph that reads vectors, which none of the functions for tokens does: read many of each sequence, finite numbers
   (batch, length, size), row by row. size is t2r_info.input_size. A length of 1 is a step. */
T2R_API t2r_kind t2r_read_vectors(t2r_decoder *decoder, const float *vectors, size_t batch, size_t length, size_t size,
                                  const float **logits);

/* Go on with these sequences in this order: drop, repeat or exchange them. The batch becomes count. */
T2R_API t2r_kind t2r_reorder(t2r_decoder *decoder, const int64_t *rows, size_t count);

/* Become rows of decoders of one opened graph (t2r_fork, t2r_copy), of this one too: row i of the batch, which becomes
   count, is rows[i] of from[i]. So texts join a batch, and a text goes on from where a copy was left. */
T2R_API t2r_kind t2r_take(t2r_decoder *decoder, t2r_decoder *const *from, const int64_t *rows, size_t count);

/* ---- Writing ---- */

typedef struct t2r_sampling {
    size_t size;                /* sizeof(t2r_sampling); t2r_sampling_defaults fills it in, with what stands here */
    double temperature;         /* 1; 0: the largest logit, of equals the lowest token */
    int64_t top_k;              /* 0: all */
    double top_p;               /* 1: all */
    double min_p;               /* 0: all */
    double repetition_penalty;  /* 1: none */
    int64_t no_repeat_ngram;    /* 0: no limit */
    int64_t seed;               /* the same seed gives the same text; -1: a new one for each */
    const int64_t *stop_tokens; /* the text ends with the first of them; NULL: the graph's own */
    size_t stop_count;
} t2r_sampling;

/* Fill in the options with those of the decoder's graph (t2r.generation); what the graph does not say, and all if decoder
   is NULL, is as above. size: sizeof(t2r_sampling). */
T2R_API t2r_kind t2r_sampling_defaults(t2r_decoder *decoder, t2r_sampling *sampling, size_t size);

/* Called with each token as it is chosen; 0 ends the text there. It must not call the decoder. */
typedef int (*t2r_callback)(int64_t token, void *user);

/* Read a prompt, and write up to max_tokens tokens. The last has been chosen and not read: the next call begins with it.
   sampling may be NULL: the graph's options. callback may be NULL: then a generation graph does all in one run, where there
   is one. If it fails, the tokens are those that were chosen before it did. */
T2R_API t2r_kind t2r_generate(t2r_decoder *decoder, const int64_t *prompt, size_t length, int64_t max_tokens,
                              const t2r_sampling *sampling, t2r_callback callback, void *user, const int64_t **tokens,
                              size_t *count);

/* The token that t2r_generate would choose: of logits (vocab_size) that a step gave, or what the program has made of them, of
   the sequence in a row, upon what that has read. draw: how many tokens were chosen in its text before. sampling may be NULL;
   its stop tokens are the caller's to look for. */
T2R_API t2r_kind t2r_choose(t2r_decoder *decoder, const float *logits, size_t row, const t2r_sampling *sampling,
                            int64_t draw, int64_t *token);

/* ---- States ---- */

typedef struct t2r_tensor {
    const char *name;
    const char *dtype;  /* float32, float16, int32 or int64 */
    size_t rank;
    const int64_t *shape;
    const void *data;   /* row by row */
    size_t bytes;
} t2r_tensor;

T2R_API t2r_kind t2r_state(t2r_decoder *decoder, size_t index, t2r_tensor *state);

/* Go on from these states, all of them, which are copied; the batch becomes theirs. position: tokens that were read,
   where no state says it. */
T2R_API t2r_kind t2r_set_states(t2r_decoder *decoder, const t2r_tensor *states, size_t count, int64_t position);

/* Write the states to a file, and a token that was chosen and has not been read, or -1. */
T2R_API t2r_kind t2r_save(t2r_decoder *decoder, const char *path, int64_t token);

/* Go on from such a file, of any language's runtime. token: the one that was saved, or -1; it may be NULL. */
T2R_API t2r_kind t2r_load(t2r_decoder *decoder, const char *path, int64_t *token);

/* The bytes that t2r_save would write, and the same of bytes for t2r_load. */
T2R_API t2r_kind t2r_save_memory(t2r_decoder *decoder, int64_t token, const void **data, size_t *bytes);
T2R_API t2r_kind t2r_load_memory(t2r_decoder *decoder, const void *data, size_t bytes, int64_t *token);

/* ---- Translators ---- */

/* Read sources (count, longest), each from the front of its row, and stand before the start tokens of their translations:
   the batch becomes count. */
T2R_API t2r_kind t2r_encode_sources(t2r_decoder *decoder, const int64_t *tokens, const int64_t *lengths, size_t count,
                                    size_t longest);

typedef struct t2r_beam {
    size_t size;                /* sizeof(t2r_beam); t2r_beam_defaults fills it in, with what stands here */
    int64_t width;              /* 4; 1 is greedy */
    int64_t max_tokens;         /* 0: the graph's, else 256; or fewer where positions end before */
    int64_t min_tokens;         /* 0 */
    int32_t early_stopping;     /* 0; 1: when width hypotheses are finished; 2: never before none can be better */
    int32_t forced_end;         /* 1: the last of max_tokens is an end */
    int64_t n_best;             /* 1 */
    double length_penalty;      /* 1 */
    double repetition_penalty;  /* 1: none */
    int64_t no_repeat_ngram;    /* 0: no limit */
} t2r_beam;

/* As t2r_sampling_defaults. size: sizeof(t2r_beam). */
T2R_API t2r_kind t2r_beam_defaults(t2r_decoder *decoder, t2r_beam *beam, size_t size);

/* Translate a source by beam search. beam may be NULL: the graph's options. found: how many translations t2r_translation gives. */
T2R_API t2r_kind t2r_translate(t2r_decoder *decoder, const int64_t *source, size_t length, const t2r_beam *beam,
                               size_t *found);

/* One of the last t2r_translate, best first. */
T2R_API t2r_kind t2r_translation(t2r_decoder *decoder, size_t index, const int64_t **tokens, size_t *count, double *score);

/* ---- Text ---- */

/* The tokenizer in the graph's metadata. It outlives the decoder. */
T2R_API t2r_kind t2r_open_tokenizer(t2r_decoder *decoder, t2r_tokenizer **tokenizer);

/* That of a translator's sources; the graph's own where they have none. */
T2R_API t2r_kind t2r_open_source_tokenizer(t2r_decoder *decoder, t2r_tokenizer **tokenizer);

/* One of the text of a tokenizer.json. bos_token: what an empty text becomes, or -1. */
T2R_API t2r_kind t2r_make_tokenizer(const char *json, size_t size, int64_t bos_token, t2r_tokenizer **tokenizer);

T2R_API t2r_kind t2r_close_tokenizer(t2r_tokenizer *tokenizer);

/* The tokens of a text; special: with those around it that the tokenizer itself puts there, or 0. */
T2R_API t2r_kind t2r_encode(t2r_tokenizer *tokenizer, const char *text, size_t size, int special, const int64_t **tokens,
                            size_t *count);

/* The text of tokens, without special ones. A 0 stands behind it, which its size does not count. */
T2R_API t2r_kind t2r_decode(t2r_tokenizer *tokenizer, const int64_t *tokens, size_t count, const char **text, size_t *size);

/* Text as tokens come, never with half a character in it. prompt: what came before, which is not handed out again. The
   stream has the tokenizer for itself too, which may be closed. */
T2R_API t2r_kind t2r_open_stream(t2r_tokenizer *tokenizer, const int64_t *prompt, size_t count, t2r_stream **stream);

/* The stream's text ends before the first of these texts that comes to be in it, from here on; before the longest, where
   several are whole at once. What may be the beginning of one is held back. At most 256 of 1,024 bytes, each with a 0
   behind it; none where count is 0. */
T2R_API t2r_kind t2r_stop_at(t2r_stream *stream, const char *const *texts, size_t count);

/* Whether one of them has come: what is fed then gives no text, and a callback may end its text. */
T2R_API t2r_kind t2r_stopped(t2r_stream *stream, int *stopped);

/* What this token completes; perhaps nothing. */
T2R_API t2r_kind t2r_feed(t2r_stream *stream, int64_t token, const char **text, size_t *size);

/* What was still waiting for the rest of a character. */
T2R_API t2r_kind t2r_end_stream(t2r_stream *stream, const char **text, size_t *size);

T2R_API t2r_kind t2r_close_stream(t2r_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
