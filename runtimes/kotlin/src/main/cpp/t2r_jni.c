/* Implements t2r/Native.kt: t2r.h for a Java virtual machine. Handles are longs, texts are UTF-8 in byte arrays (JNI's own
   strings have another encoding), and every failure is thrown as t2r.T2rException. */
#include <float.h>
#include <jni.h>
#include <string.h>
#include <t2r.h>

#define NATIVE(type, name) JNIEXPORT type JNICALL Java_t2r_Native_##name
#define HANDLE(type, number) ((type *)(intptr_t)(number))

static jbyteArray bytes(JNIEnv *env, const char *text, size_t size) {
    jbyteArray made = (*env)->NewByteArray(env, (jsize)size);
    if (made) (*env)->SetByteArrayRegion(env, made, 0, (jsize)size, (const jbyte *)text);
    return made;
}

static jlongArray longs(JNIEnv *env, const int64_t *numbers, size_t count) {
    jlongArray made = (*env)->NewLongArray(env, (jsize)count);
    if (made) (*env)->SetLongArrayRegion(env, made, 0, (jsize)count, (const jlong *)numbers);
    return made;
}

static jfloatArray floats(JNIEnv *env, const float *numbers, size_t count) {
    jfloatArray made = (*env)->NewFloatArray(env, (jsize)count);
    if (made) (*env)->SetFloatArrayRegion(env, made, 0, (jsize)count, numbers);
    return made;
}

/* Whether a call has failed; throws its error. */
static int failed(JNIEnv *env, t2r_kind kind) {
    if (kind == T2R_OK) return 0;
    const char *line = t2r_error();
    jbyteArray text = bytes(env, line, strlen(line));
    jclass type = (*env)->FindClass(env, "t2r/T2rException");
    if (!text || !type) return 1; /* another exception is pending */
    jmethodID make = (*env)->GetMethodID(env, type, "<init>", "(I[B)V");
    jobject made = make ? (*env)->NewObject(env, type, make, (jint)kind, text) : NULL;
    if (made) (*env)->Throw(env, made);
    return 1;
}

/* An argument's numbers, borrowed for a call. */
typedef struct numbers {
    jlong *data;
    size_t count;
} numbers;

static numbers borrow(JNIEnv *env, jlongArray array) {
    numbers found = {(*env)->GetLongArrayElements(env, array, NULL), (size_t)(*env)->GetArrayLength(env, array)};
    return found;
}

static const int64_t *of(numbers found) { return (const int64_t *)found.data; }

static void give_back(JNIEnv *env, jlongArray array, numbers found) {
    (*env)->ReleaseLongArrayElements(env, array, found.data, JNI_ABORT);
}

/* ---- Decoders. `path` and `text` are byte arrays; a path ends with a 0. ---- */

NATIVE(jlong, open)(JNIEnv *env, jobject self, jbyteArray path, jint threads, jboolean companions, jlong most) {
    (void)self;
    t2r_options options;
    t2r_decoder *decoder = NULL;
    if (failed(env, t2r_defaults(&options, sizeof options))) return 0;
    jbyte *name = (*env)->GetByteArrayElements(env, path, NULL);
    if (!name) return 0;
    options.threads = threads;
    options.companions = companions;
    if (most > 0) options.max_state_bytes = most;
    failed(env, t2r_open((const char *)name, &options, &decoder));
    (*env)->ReleaseByteArrayElements(env, path, name, JNI_ABORT);
    return (jlong)(intptr_t)decoder;
}

NATIVE(jlong, fork)(JNIEnv *env, jobject self, jlong decoder) {
    (void)self;
    t2r_decoder *other = NULL;
    failed(env, t2r_fork(HANDLE(t2r_decoder, decoder), &other));
    return (jlong)(intptr_t)other;
}

NATIVE(void, close)(JNIEnv *env, jobject self, jlong decoder) {
    (void)self;
    failed(env, t2r_close(HANDLE(t2r_decoder, decoder)));
}

/* Seven numbers, in the order of t2r_info, and then the end tokens. */
NATIVE(jlongArray, info)(JNIEnv *env, jobject self, jlong decoder) {
    (void)self;
    t2r_info info;
    if (failed(env, t2r_get_info(HANDLE(t2r_decoder, decoder), &info, sizeof info))) return NULL;
    jlong first[] = {info.vocab_size, info.batch, info.fixed_batch, info.position, info.max_positions, info.bos_token, info.top_k};
    const jsize count = sizeof first / sizeof *first;
    jlongArray made = (*env)->NewLongArray(env, count + (jsize)info.eos_count);
    if (!made) return NULL;
    (*env)->SetLongArrayRegion(env, made, 0, count, first);
    (*env)->SetLongArrayRegion(env, made, count, (jsize)info.eos_count, (const jlong *)info.eos_tokens);
    return made;
}

NATIVE(void, reset)(JNIEnv *env, jobject self, jlong decoder, jlong batch) {
    (void)self;
    failed(env, t2r_reset(HANDLE(t2r_decoder, decoder), (size_t)batch));
}

NATIVE(jfloatArray, prefill)(JNIEnv *env, jobject self, jlong decoder, jlongArray tokens, jlong batch, jlong length, jlong vocab) {
    (void)self;
    const float *logits;
    numbers given = borrow(env, tokens);
    if (!given.data) return NULL;
    t2r_kind kind = t2r_prefill(HANDLE(t2r_decoder, decoder), of(given), (size_t)batch, (size_t)length, &logits);
    give_back(env, tokens, given);
    return failed(env, kind) ? NULL : floats(env, logits, (size_t)(batch * vocab));
}

NATIVE(void, reorder)(JNIEnv *env, jobject self, jlong decoder, jlongArray rows) {
    (void)self;
    numbers given = borrow(env, rows);
    if (!given.data) return;
    t2r_kind kind = t2r_reorder(HANDLE(t2r_decoder, decoder), of(given), given.count);
    give_back(env, rows, given);
    failed(env, kind);
}

typedef struct progress {
    JNIEnv *env;
    jobject callback;
    jmethodID next;
} progress;

static int next(int64_t token, void *user) {
    progress *to = user;
    const jboolean go_on = (*to->env)->CallBooleanMethod(to->env, to->callback, to->next, (jlong)token);
    return !(*to->env)->ExceptionCheck(to->env) && go_on; /* a pending exception propagates after the library returns */
}

/* DBL_MAX and INT64_MIN keep the graph's value. */
static void set_real(double *to, jdouble value) {
    if (value != DBL_MAX) *to = value;
}

static void set_whole(int64_t *to, jlong value) {
    if (value != INT64_MIN) *to = value;
}

/* reals: temperature, top_p, min_p, repetition_penalty; wholes: top_k, no_repeat_ngram, seed. stops and callback may be null. */
NATIVE(jlongArray, generate)(JNIEnv *env, jobject self, jlong decoder, jlongArray prompt, jlong most, jdoubleArray reals,
                             jlongArray wholes, jlongArray stops, jobject callback) {
    (void)self;
    const int64_t *tokens;
    size_t count;
    jdouble real[4];
    jlong whole[3];
    t2r_sampling sampling;
    if (failed(env, t2r_sampling_defaults(HANDLE(t2r_decoder, decoder), &sampling, sizeof sampling))) return NULL;
    numbers given = borrow(env, prompt), ends = stops ? borrow(env, stops) : (numbers){NULL, 0};
    progress to = {env, callback, NULL};
    (*env)->GetDoubleArrayRegion(env, reals, 0, 4, real);
    (*env)->GetLongArrayRegion(env, wholes, 0, 3, whole);
    if (callback) to.next = (*env)->GetMethodID(env, (*env)->GetObjectClass(env, callback), "next", "(J)Z");
    set_real(&sampling.temperature, real[0]), set_real(&sampling.top_p, real[1]), set_real(&sampling.min_p, real[2]);
    set_real(&sampling.repetition_penalty, real[3]);
    set_whole(&sampling.top_k, whole[0]), set_whole(&sampling.no_repeat_ngram, whole[1]), set_whole(&sampling.seed, whole[2]);
    sampling.stop_tokens = of(ends), sampling.stop_count = ends.count;
    t2r_kind kind = t2r_generate(HANDLE(t2r_decoder, decoder), of(given), given.count, most, &sampling, callback ? next : NULL,
                                 &to, &tokens, &count);
    give_back(env, prompt, given);
    if (stops) give_back(env, stops, ends);
    return (*env)->ExceptionCheck(env) || failed(env, kind) ? NULL : longs(env, tokens, count);
}

NATIVE(void, save)(JNIEnv *env, jobject self, jlong decoder, jbyteArray path, jlong token) {
    (void)self;
    jbyte *name = (*env)->GetByteArrayElements(env, path, NULL);
    if (!name) return;
    failed(env, t2r_save(HANDLE(t2r_decoder, decoder), (const char *)name, token));
    (*env)->ReleaseByteArrayElements(env, path, name, JNI_ABORT);
}

NATIVE(jlong, load)(JNIEnv *env, jobject self, jlong decoder, jbyteArray path) {
    (void)self;
    int64_t token = -1;
    jbyte *name = (*env)->GetByteArrayElements(env, path, NULL);
    if (!name) return 0;
    failed(env, t2r_load(HANDLE(t2r_decoder, decoder), (const char *)name, &token));
    (*env)->ReleaseByteArrayElements(env, path, name, JNI_ABORT);
    return token;
}

/* ---- Text ---- */

NATIVE(jlong, openTokenizer)(JNIEnv *env, jobject self, jlong decoder) {
    (void)self;
    t2r_tokenizer *tokenizer = NULL;
    failed(env, t2r_open_tokenizer(HANDLE(t2r_decoder, decoder), &tokenizer));
    return (jlong)(intptr_t)tokenizer;
}

NATIVE(void, closeTokenizer)(JNIEnv *env, jobject self, jlong tokenizer) {
    (void)self;
    failed(env, t2r_close_tokenizer(HANDLE(t2r_tokenizer, tokenizer)));
}

NATIVE(jlongArray, encode)(JNIEnv *env, jobject self, jlong tokenizer, jbyteArray text, jboolean special) {
    (void)self;
    const int64_t *tokens;
    size_t count;
    const size_t size = (size_t)(*env)->GetArrayLength(env, text);
    jbyte *content = (*env)->GetByteArrayElements(env, text, NULL);
    if (!content) return NULL;
    t2r_kind kind = t2r_encode(HANDLE(t2r_tokenizer, tokenizer), (const char *)content, size, special, &tokens, &count);
    (*env)->ReleaseByteArrayElements(env, text, content, JNI_ABORT);
    return failed(env, kind) ? NULL : longs(env, tokens, count);
}

NATIVE(jbyteArray, decode)(JNIEnv *env, jobject self, jlong tokenizer, jlongArray tokens) {
    (void)self;
    const char *text;
    size_t size;
    numbers given = borrow(env, tokens);
    if (!given.data) return NULL;
    t2r_kind kind = t2r_decode(HANDLE(t2r_tokenizer, tokenizer), of(given), given.count, &text, &size);
    give_back(env, tokens, given);
    return failed(env, kind) ? NULL : bytes(env, text, size);
}

NATIVE(jlong, openStream)(JNIEnv *env, jobject self, jlong tokenizer, jlongArray prompt) {
    (void)self;
    t2r_stream *stream = NULL;
    numbers given = borrow(env, prompt);
    if (!given.data) return 0;
    t2r_kind kind = t2r_open_stream(HANDLE(t2r_tokenizer, tokenizer), of(given), given.count, &stream);
    give_back(env, prompt, given);
    failed(env, kind);
    return (jlong)(intptr_t)stream;
}

NATIVE(jbyteArray, feed)(JNIEnv *env, jobject self, jlong stream, jlong token) {
    (void)self;
    const char *text;
    size_t size;
    return failed(env, t2r_feed(HANDLE(t2r_stream, stream), token, &text, &size)) ? NULL : bytes(env, text, size);
}

NATIVE(jbyteArray, end)(JNIEnv *env, jobject self, jlong stream) {
    (void)self;
    const char *text;
    size_t size;
    return failed(env, t2r_end_stream(HANDLE(t2r_stream, stream), &text, &size)) ? NULL : bytes(env, text, size);
}

NATIVE(void, closeStream)(JNIEnv *env, jobject self, jlong stream) {
    (void)self;
    failed(env, t2r_close_stream(HANDLE(t2r_stream, stream)));
}
