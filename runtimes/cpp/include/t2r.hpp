// t2r.h for C++17: handles that close themselves, and errors as exceptions. Nothing but this header and libt2r.
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

using Tokens = std::vector<std::int64_t>;

// What a call says that failed.
class Failed : public std::runtime_error {
public:
    explicit Failed(t2r_kind kind, const char *line = t2r_error()) : std::runtime_error(line), kind(kind) {}
    t2r_kind kind;
};

inline void check(t2r_kind kind) {
    if (kind != T2R_OK) throw Failed(kind);
}

// A path for C, which would end at a zero byte.
inline const char *c_path(const std::string &path) {
    if (path.find('\0') != path.npos) throw Failed(T2R_FILE, "expected a path; received one with a zero byte in it; name a file");
    return path.c_str();
}

// A handle of the C API and what closes it. One that was closed or moved from is an error to use, and nothing worse.
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
    // Give its memory back before its scope ends.
    void close() {
        check(close_handle(value));
        closed = true;
    }
    operator T *() const { return value; }  // for all that t2r.h has
    T **place() { return &value; }

private:
    T *value = nullptr;
    bool closed = false;
};

// The defaults of opening, for a caller to change.
inline t2r_options options() {
    t2r_options made;
    check(t2r_defaults(&made, sizeof made));
    return made;
}

class Decoder : public Handle<t2r_decoder, t2r_close> {
public:
    explicit Decoder(const std::string &path) { check(t2r_open(c_path(path), nullptr, place())); }
    Decoder(const std::string &path, const t2r_options &options) { check(t2r_open(c_path(path), &options, place())); }
    // Another of the same opened graph, for another thread.
    Decoder fork() const {
        Decoder other;
        check(t2r_fork(*this, other.place()));
        return other;
    }
    t2r_info info() const {
        t2r_info found;
        check(t2r_get_info(*this, &found, sizeof found));
        return found;
    }
    void reset(std::size_t batch = 0) const { check(t2r_reset(*this, batch)); }
    // The logits of what comes next, (batch, vocab_size): good until the next call.
    const float *step(const Tokens &tokens) const {
        const float *logits;
        check(t2r_step(*this, tokens.data(), tokens.size(), &logits));
        return logits;
    }
    // The graph's options, for a caller to change.
    t2r_sampling sampling() const {
        t2r_sampling made;
        check(t2r_sampling_defaults(*this, &made, sizeof made));
        return made;
    }
    // sampling: none is the graph's options. callback: called with each token; false ends the text. What it throws ends it
    // too, and comes out.
    Tokens generate(const Tokens &prompt, std::int64_t max_tokens, const std::optional<t2r_sampling> &sampling = {},
                    std::function<bool(std::int64_t)> callback = nullptr) const {
        Call call{std::move(callback), nullptr};
        const std::int64_t *tokens;
        std::size_t count;
        check(t2r_generate(*this, prompt.data(), prompt.size(), max_tokens, sampling ? &*sampling : nullptr,
                           call.callback ? Call::go_on : nullptr, &call, &tokens, &count));
        if (call.thrown) std::rethrow_exception(call.thrown);
        return {tokens, tokens + count};
    }
    void save(const std::string &path, std::int64_t token = -1) const { check(t2r_save(*this, c_path(path), token)); }
    std::int64_t load(const std::string &path) const {
        std::int64_t token;
        check(t2r_load(*this, c_path(path), &token));
        return token;
    }

private:
    Decoder() = default;

    // A callback on its way through C, through which no exception may go.
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
};

// The text of the tokens that follow a prompt, as they come.
class Stream : public Handle<t2r_stream, t2r_close_stream> {
public:
    explicit Stream(const Tokenizer &tokenizer, const Tokens &prompt = {}) {
        check(t2r_open_stream(tokenizer, prompt.data(), prompt.size(), place()));
    }
    std::string feed(std::int64_t token) const {
        const char *text;
        std::size_t size;
        check(t2r_feed(*this, token, &text, &size));
        return {text, size};
    }
    std::string end() const {
        const char *text;
        std::size_t size;
        check(t2r_end_stream(*this, &text, &size));
        return {text, size};
    }
};

}  // namespace t2r

#endif
