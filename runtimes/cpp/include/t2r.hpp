// t2r.h for C++17: handles that close themselves, and errors as exceptions. It needs only this header and libt2r.
//
// A const method leaves a handle unchanged. One thread at a time may use a handle, except for Decoder::cancel.
#ifndef T2R_HPP
#define T2R_HPP

#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "t2r.h"

namespace t2r {
inline namespace cpp {  // libt2r.a has other classes of these names in t2r: this keeps their symbols apart

using Tokens = std::vector<std::int64_t>;

// The error of a failed call.
class Failed : public std::runtime_error {
public:
    explicit Failed(t2r_kind kind, const char *line = t2r_error()) : std::runtime_error(line), kind(kind) {}
    t2r_kind kind;
};

// Thrown by Decoder::generate when it was cancelled.
class Cancelled : public Failed {
public:
    explicit Cancelled(Tokens written) : Failed(T2R_CANCELLED), written(std::move(written)) {}
    Tokens written;  // the tokens chosen before; the last one has not been read
};

inline void check(t2r_kind kind) {
    if (kind != T2R_OK) throw Failed(kind);
}

// Log ONNX Runtime's messages of graphs opened from now on; an empty function removes the log. It must not call libt2r or
// throw.
inline void set_log(std::function<void(t2r_level, const char *)> log, t2r_level level = T2R_WARNING) {
    static std::function<void(t2r_level, const char *)> hook;
    check(t2r_set_log(nullptr, nullptr, level));
    hook = std::move(log);
    const auto call = [](std::int32_t said, const char *message, void *) { hook(static_cast<t2r_level>(said), message); };
    if (hook) check(t2r_set_log(call, nullptr, level));
}

// Share one set of threads among all graphs. Call it before the first graph is opened.
inline void share_threads(std::int32_t threads = 0) { check(t2r_share_threads(threads)); }

// A path for C. Refuses a zero byte, where C would cut the path.
inline const char *c_path(const std::string &path) {
    if (path.find('\0') != path.npos) throw Failed(T2R_FILE, "expected a path; received one with a zero byte in it; name a file");
    return path.c_str();
}

// Owns a handle of the C API. Using one that was closed or moved from is an error, with no other effect.
template <class T, t2r_kind (*close_handle)(T *)> class Handle {
public:
    Handle() = default;
    Handle(Handle &&other) noexcept : value(std::exchange(other.value, nullptr)), closed(other.closed) {}
    Handle &operator=(Handle &&other) noexcept {
        std::swap(value, other.value);
        std::swap(closed, other.closed);
        return *this;
    }
    ~Handle() {
        if (value && !closed) close_handle(value);
    }
    // Free its memory before its scope ends.
    void close() {
        check(close_handle(value));
        closed = true;
    }
    operator T *() const { return value; }  // for the functions of t2r.h
    T **place() { return &value; }

private:
    T *value = nullptr;
    bool closed = false;
};

// The default options of opening, for the caller to change.
inline t2r_options options() {
    t2r_options made;
    check(t2r_defaults(&made, sizeof made));
    return made;
}

// A file in memory.
struct File {
    std::string name;
    std::string_view bytes;
};

// The largest logits, (batch, top_k), and their tokens: valid until the decoder's next call.
struct Top {
    const float *logits;
    const std::int64_t *tokens;
};

struct Translation {
    Tokens tokens;
    double score;
};

class Decoder : public Handle<t2r_decoder, t2r_close> {
public:
    explicit Decoder(const std::string &path) { check(t2r_open(c_path(path), nullptr, place())); }
    Decoder(const std::string &path, const t2r_options &options) { check(t2r_open(c_path(path), &options, place())); }
    // Opens files in memory, the step graph first. They may be freed when this returns.
    explicit Decoder(const std::vector<File> &files, const std::optional<t2r_options> &options = {}) {
        std::vector<t2r_file> given;
        for (const File &file : files) given.push_back({c_path(file.name), file.bytes.data(), file.bytes.size()});
        check(t2r_open_memory(given.data(), given.size(), options ? &*options : nullptr, place()));
    }
    // Another decoder of the same session, at the start of a text, for another thread.
    Decoder fork() const {
        Decoder other;
        check(t2r_fork(*this, other.place()));
        return other;
    }
    // The same with a copy of the states.
    Decoder copy() const {
        Decoder other;
        check(t2r_copy(*this, other.place()));
        return other;
    }
    // From another thread or a callback: end the call that is running in this decoder.
    void cancel() { check(t2r_cancel(*this)); }

    t2r_info info() const {
        t2r_info found;
        check(t2r_get_info(*this, &found, sizeof found));
        return found;
    }
    // The value of a metadata key of the graph's file, as in "t2r.chat_template".
    std::optional<std::string> metadata(const std::string &key) const {
        const char *value;
        std::size_t size;
        check(t2r_metadata(*this, key.c_str(), &value, &size));
        return value ? std::optional<std::string>(std::in_place, value, size) : std::nullopt;
    }

    void reset(std::size_t batch = 0) { check(t2r_reset(*this, batch)); }
    // Choose low-rank adapters by name, nullptr for none: one per sequence, or one for all.
    void adapt(const std::vector<const char *> &names) { check(t2r_adapt(*this, names.data(), names.size())); }
    // The logits of the next token, (batch, vocab_size): valid until the next call.
    const float *step(const Tokens &tokens) {
        const float *logits;
        check(t2r_step(*this, tokens.data(), tokens.size(), &logits));
        return logits;
    }
    // Many tokens of each sequence: (batch, length), row-major.
    const float *prefill(const Tokens &tokens, std::size_t batch = 1) {
        const float *logits;
        check(t2r_prefill(*this, tokens.data(), batch, length(tokens, batch), &logits));
        return logits;
    }
    Top top_k(const Tokens &tokens, std::size_t batch = 1) {
        Top found;
        check(t2r_top_k(*this, tokens.data(), batch, length(tokens, batch), &found.logits, &found.tokens));
        return found;
    }
    // For a graph that reads vectors: many of each sequence, (batch, length, input_size), row-major.
    const float *read_vectors(const std::vector<float> &vectors, std::size_t batch = 1) {
        const float *logits;
        const std::size_t known = static_cast<std::size_t>(info().input_size), size = known ? known : 1;  // 0: it refuses them
        if (batch == 0 || vectors.size() % (batch * size) != 0)
            throw Failed(T2R_BATCH, "expected as many whole vectors of each sequence; received others; read them one by one");
        check(t2r_read_vectors(*this, vectors.data(), batch, vectors.size() / batch / size, size, &logits));
        return logits;
    }
    // Continue with these rows in this order: drop, repeat or exchange sequences.
    void reorder(const std::vector<std::int64_t> &rows) { check(t2r_reorder(*this, rows.data(), rows.size())); }

    // A row of a decoder.
    struct Row {
        const Decoder &decoder;
        std::int64_t row;
    };
    // Replace the batch by these rows of this decoder and of its forks and copies.
    void take(const std::vector<Row> &rows) {
        std::vector<t2r_decoder *> from;
        std::vector<std::int64_t> numbers;
        for (const Row &row : rows) {
            from.push_back(row.decoder);
            numbers.push_back(row.row);
        }
        check(t2r_take(*this, from.data(), numbers.data(), numbers.size()));
    }

    // The graph's options, for the caller to change.
    t2r_sampling sampling() const {
        t2r_sampling made;
        check(t2r_sampling_defaults(*this, &made, sizeof made));
        return made;
    }
    // Whether generate, from now on, guesses tokens by what followed the latest ones before, and checks several in one run.
    void draft(bool lookup) { check(t2r_draft(*this, lookup)); }
    // sampling: default is the graph's options. callback: called with each token; false ends the text. An exception of the
    // callback also ends the text, and is rethrown. Throws Cancelled after `cancel`.
    Tokens generate(const Tokens &prompt, std::int64_t max_tokens, const std::optional<t2r_sampling> &sampling = {},
                    std::function<bool(std::int64_t)> callback = nullptr) {
        Call call{std::move(callback), nullptr};
        const std::int64_t *tokens;
        std::size_t count;
        const t2r_kind kind = t2r_generate(*this, prompt.data(), prompt.size(), max_tokens, sampling ? &*sampling : nullptr,
                                           call.callback ? Call::go_on : nullptr, &call, &tokens, &count);
        if (call.thrown) std::rethrow_exception(call.thrown);
        if (kind == T2R_CANCELLED) throw Cancelled({tokens, tokens + count});
        check(kind);
        return {tokens, tokens + count};
    }

    // The token that generate would choose from a row's logits. draw: the number of tokens chosen in its text before.
    std::int64_t choose(const float *logits, std::size_t row, const std::optional<t2r_sampling> &sampling, std::int64_t draw) const {
        std::int64_t token;
        check(t2r_choose(*this, logits, row, sampling ? &*sampling : nullptr, draw, &token));
        return token;
    }

    // All states, valid until the next call.
    std::vector<t2r_tensor> states() const {
        std::vector<t2r_tensor> found(info().states);
        for (std::size_t i = 0; i < found.size(); i++) check(t2r_state(*this, i, &found[i]));
        return found;
    }
    // Continue from a copy of these states, all of the graph's. position: number of tokens read, if no state has it.
    void set_states(const std::vector<t2r_tensor> &states, std::int64_t position = 0) {
        check(t2r_set_states(*this, states.data(), states.size(), position));
    }
    // token: one that was chosen but not read, or -1; load returns it.
    void save(const std::string &path, std::int64_t token = -1) const { check(t2r_save(*this, c_path(path), token)); }
    std::int64_t load(const std::string &path) {
        std::int64_t token;
        check(t2r_load(*this, c_path(path), &token));
        return token;
    }
    std::string save_memory(std::int64_t token = -1) const {
        const void *data;
        std::size_t bytes;
        check(t2r_save_memory(*this, token, &data, &bytes));
        return {static_cast<const char *>(data), bytes};
    }
    std::int64_t load_memory(std::string_view bytes) {
        std::int64_t token;
        check(t2r_load_memory(*this, bytes.data(), bytes.size(), &token));
        return token;
    }

    // For a translator: encode sources. The decoder is then before the start tokens of their translations.
    void encode_sources(const std::vector<Tokens> &sources) {
        Tokens lengths, tokens;
        std::size_t longest = 0;
        for (const Tokens &source : sources) {
            lengths.push_back(static_cast<std::int64_t>(source.size()));
            longest = source.size() > longest ? source.size() : longest;
        }
        for (const Tokens &source : sources) {
            tokens.insert(tokens.end(), source.begin(), source.end());
            tokens.resize(tokens.size() + longest - source.size());
        }
        check(t2r_encode_sources(*this, tokens.data(), lengths.data(), sources.size(), longest));
    }
    // The graph's beam search options, for the caller to change.
    t2r_beam beam() const {
        t2r_beam made;
        check(t2r_beam_defaults(*this, &made, sizeof made));
        return made;
    }
    // Best first. beam: default is the graph's options.
    std::vector<Translation> translate(const Tokens &source, const std::optional<t2r_beam> &beam = {}) {
        std::size_t found;
        check(t2r_translate(*this, source.data(), source.size(), beam ? &*beam : nullptr, &found));
        std::vector<Translation> translations;
        for (std::size_t i = 0; i < found; i++) {
            const std::int64_t *tokens;
            std::size_t count;
            double score;
            check(t2r_translation(*this, i, &tokens, &count, &score));
            translations.push_back({{tokens, tokens + count}, score});
        }
        return translations;
    }

private:
    Decoder() = default;

    static std::size_t length(const Tokens &tokens, std::size_t batch) {
        if (batch == 0 || tokens.size() % batch != 0)
            throw Failed(T2R_BATCH, "expected as many tokens of each sequence; received rows of different lengths; read them one by one");
        return tokens.size() / batch;
    }

    // Adapts a callback to C. Its exception is stored, as none may pass through C.
    struct Call {
        std::function<bool(std::int64_t)> callback;
        std::exception_ptr thrown;

        static int go_on(std::int64_t token, void *user) {
            const auto call = static_cast<Call *>(user);
            try {
                return call->callback(token);
            } catch (...) {
                call->thrown = std::current_exception();
                return 0;
            }
        }
    };
};

class Tokenizer : public Handle<t2r_tokenizer, t2r_close_tokenizer> {
public:
    explicit Tokenizer(const Decoder &decoder) { check(t2r_open_tokenizer(decoder, place())); }
    // From the text of a tokenizer.json. bos_token: the token of an empty text, or -1.
    explicit Tokenizer(std::string_view json, std::int64_t bos_token = -1) {
        check(t2r_make_tokenizer(json.data(), json.size(), bos_token, place()));
    }
    // The tokenizer of a translator's sources.
    static Tokenizer of_source(const Decoder &decoder) {
        Tokenizer made;
        check(t2r_open_source_tokenizer(decoder, made.place()));
        return made;
    }
    Tokens encode(std::string_view text, bool special = true) const {
        const std::int64_t *tokens;
        std::size_t count;
        check(t2r_encode(*this, text.data(), text.size(), special, &tokens, &count));
        return {tokens, tokens + count};
    }
    std::string decode(const Tokens &tokens) const {
        const char *text;
        std::size_t size;
        check(t2r_decode(*this, tokens.data(), tokens.size(), &text, &size));
        return {text, size};
    }

private:
    Tokenizer() = default;
};

// Decodes the tokens that follow a prompt, as they come.
class Stream : public Handle<t2r_stream, t2r_close_stream> {
public:
    explicit Stream(const Tokenizer &tokenizer, const Tokens &prompt = {}) {
        check(t2r_open_stream(tokenizer, prompt.data(), prompt.size(), place()));
    }
    // End the text before the first of these that occurs in it.
    void stop_at(const std::vector<std::string> &texts) {
        std::vector<const char *> given;
        for (const std::string &text : texts) {
            if (text.find('\0') != text.npos)
                throw Failed(T2R_ARGUMENT, "expected a text; received one with a zero byte in it; leave that out");
            given.push_back(text.c_str());
        }
        check(t2r_stop_at(*this, given.data(), given.size()));
    }
    bool stopped() const {
        int found;
        check(t2r_stopped(*this, &found));
        return found != 0;
    }
    std::string feed(std::int64_t token) {
        const char *text;
        std::size_t size;
        check(t2r_feed(*this, token, &text, &size));
        return {text, size};
    }
    std::string end() {
        const char *text;
        std::size_t size;
        check(t2r_end_stream(*this, &text, &size));
        return {text, size};
    }
};

}  // namespace cpp
}  // namespace t2r

#endif
