/* misuse FOLDER NAME: one misuse of the API with the golden files of FOLDER; prints its error. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <t2r.h>

static const char *folder;
static const int64_t tokens[] = {1, 2};

/* Prints one line, which begins with the kind, and returns the program's exit code. */
static int told(t2r_kind kind) {
    if (kind == T2R_OK) return 0;
    fprintf(stderr, "%s: %s\n", t2r_kind_name(kind), t2r_error());
    return 2;
}

static t2r_decoder *opened_with(const char *name, const t2r_options *options) {
    char path[4096];
    t2r_decoder *decoder;
    snprintf(path, sizeof path, "%s/%s.onnx", folder, name);
    if (told(t2r_open(path, options, &decoder))) exit(2);
    return decoder;
}

static t2r_decoder *opened(const char *name) { return opened_with(name, NULL); }

static t2r_tokenizer *opened_tokenizer(void) {
    t2r_tokenizer *tokenizer;
    if (told(t2r_open_tokenizer(opened("bytes"), &tokenizer))) exit(2);
    return tokenizer;
}

static t2r_kind encoded(t2r_tokenizer *tokenizer, const char *text) {
    const int64_t *found;
    size_t count;
    return t2r_encode(tokenizer, text, strlen(text), 1, &found, &count);
}

static t2r_kind generated(t2r_decoder *decoder, t2r_callback callback) {
    const int64_t *found;
    size_t count;
    return t2r_generate(decoder, tokens, 1, 2, NULL, callback, decoder, &found, &count);
}

static int no_file(void) { return opened("nowhere") == NULL; }

static int prefill_graph(void) { return opened("bad/role") == NULL; }

static int token(void) {
    const int64_t none = 17;
    return told(t2r_step(opened("tiny"), &none, 1, NULL));
}

static int position(void) {
    t2r_decoder *decoder = opened("ends");
    t2r_kind kind = t2r_reset(decoder, 2);
    for (int step = 0; step <= 40 && kind == T2R_OK; step++) kind = t2r_step(decoder, tokens, 2, NULL);
    return told(kind);
}

static int copied(void) {
    t2r_decoder *decoder = opened("ends"), *other;
    t2r_kind kind = t2r_reset(decoder, 2);
    for (int step = 0; step < 40 && kind == T2R_OK; step++) kind = t2r_step(decoder, tokens, 2, NULL);
    if (told(kind) || told(t2r_copy(decoder, &other))) return 1;
    return told(t2r_step(other, tokens, 2, NULL));
}

static int taken(void) {
    t2r_decoder *decoder = opened("tiny"), *other, *stranger = opened("tiny");
    const int64_t rows[] = {0, 0};
    const float *logits;
    int64_t token;
    if (told(t2r_step(decoder, tokens, 1, NULL)) || told(t2r_fork(decoder, &other))) return 1;
    t2r_decoder *const both[] = {decoder, other};
    if (told(t2r_take(decoder, both, rows, 2)) || told(t2r_step(decoder, tokens, 2, &logits))) return 1;
    if (told(t2r_choose(decoder, logits, 1, NULL, 0, &token))) return 1;
    return told(t2r_take(decoder, &stranger, rows, 1));
}

static int cancel(int64_t chosen, void *decoder) {
    (void)chosen;
    return t2r_cancel(decoder) == T2R_OK;
}

static int cancelled(void) { return told(generated(opened("tiny"), cancel)); }

static int provider(void) {
    static const char *const words[] = {"CPU", "a", "b"};
    t2r_options options;
    t2r_defaults(&options, sizeof options);
    options.provider = words;
    options.provider_count = 3;
    return opened_with("tiny", &options) ? 0 : 1;
}

static int long_source(void) {
    const int64_t source[] = {1, 2, 3}, length = 3;
    t2r_options options;
    t2r_defaults(&options, sizeof options);
    options.max_source = 2;
    return told(t2r_encode_sources(opened_with("translator", &options), source, &length, 1, 3));
}

static int session_option(void) {
    static const char *const words[] = {"session.intra_op_thread_affinities", "everywhere"};
    t2r_options options;
    t2r_defaults(&options, sizeof options);
    options.threads = 2;
    options.config = words;
    options.config_count = 2;
    return opened_with("tiny", &options) ? 0 : 1;
}

static int late_threads(void) { return opened("tiny") ? told(t2r_share_threads(2)) : 1; }

static int no_graph_in_memory(void) {
    const t2r_file file = {"tiny.onnx", "no graph", 8};
    t2r_decoder *decoder;
    return told(t2r_open_memory(&file, 1, NULL, &decoder));
}

static int damaged_in_memory(void) {
    t2r_decoder *decoder = opened("tiny");
    const void *data;
    size_t bytes;
    if (told(t2r_save_memory(decoder, -1, &data, &bytes))) return 1;
    return told(t2r_load_memory(decoder, (const char *)data + 1, bytes - 1, NULL));
}

static int empty_stop(void) {
    const char *const stop = "";
    t2r_stream *stream;
    if (told(t2r_open_stream(opened_tokenizer(), NULL, 0, &stream))) return 1;
    return told(t2r_stop_at(stream, &stop, 1));
}

static int batch(void) { return told(t2r_step(opened("tiny"), tokens, 2, NULL)); }

static int other_model(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/packed.state", folder);
    return told(t2r_load(opened("tiny"), path, NULL));
}

static int no_utf8(void) { return told(encoded(opened_tokenizer(), "\xFF")); }

static int after_close(void) {
    t2r_decoder *decoder = opened("tiny");
    t2r_close(decoder);
    return told(t2r_step(decoder, tokens, 1, NULL));
}

static int after_close_tokenizer(void) {
    t2r_tokenizer *tokenizer = opened_tokenizer();
    t2r_close_tokenizer(tokenizer);
    return told(encoded(tokenizer, "a"));
}

static int status; /* of the call made in a callback */

static void *step(void *decoder) {
    status = told(t2r_step(decoder, tokens, 1, NULL));
    return NULL;
}

static int step_here(int64_t chosen, void *decoder) {
    (void)chosen;
    step(decoder);
    return 0;
}

static int step_in_another_thread(int64_t chosen, void *decoder) {
    pthread_t thread;
    (void)chosen;
    if (pthread_create(&thread, NULL, step, decoder) == 0) pthread_join(thread, NULL);
    return 0;
}

static int two_threads(void) { return told(generated(opened("tiny"), step_in_another_thread)) || status == 0 ? 1 : status; }

static int from_a_callback(void) { return told(generated(opened("tiny"), step_here)) || status == 0 ? 1 : status; }

static const struct {
    const char *name;
    int (*run)(void);
} misuses[] = {
    {"no-file", no_file},
    {"prefill-graph", prefill_graph},
    {"token", token},
    {"position", position},
    {"batch", batch},
    {"other-model", other_model},
    {"no-utf8", no_utf8},
    {"closed", after_close},
    {"closed-tokenizer", after_close_tokenizer},
    {"two-threads", two_threads},
    {"from-a-callback", from_a_callback},
    {"copied", copied},
    {"taken", taken},
    {"provider", provider},
    {"session-option", session_option},
    {"long-source", long_source},
    {"late-threads", late_threads},
    {"no-graph-in-memory", no_graph_in_memory},
    {"damaged-in-memory", damaged_in_memory},
    {"empty-stop", empty_stop},
    {"cancelled", cancelled},
};

int main(int count, char **arguments) {
    if (count == 3) folder = arguments[1];
    for (size_t i = 0; folder && i < sizeof misuses / sizeof *misuses; i++)
        if (strcmp(arguments[2], misuses[i].name) == 0) return misuses[i].run();
    return fputs("usage: misuse FOLDER NAME\n", stderr), 1;
}
