// t2r.h for C++17: handles that close themselves, and errors as exceptions. Nothing but this header and libt2r.
#ifndef T2R_HPP
#define T2R_HPP

#include <functional>
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
    explicit Failed(t2r_kind kind) : std::runtime_error(t2r_error()), kind(kind) {}
    t2r_kind kind;
};

inline void check(t2r_kind kind) {
    if (kind != T2R_OK) throw Failed(kind);
}

// A handle of the C API and what closes it.
template <class T, t2r_kind (*close)(T *)> class Handle {
public:
    Handle() = default;
    Handle(Handle &&other) noexcept : value(std::exchange(other.value, nullptr)) {}
    Handle &operator=(Handle &&other) noexcept {
        std::swap(value, other.value);
        return *this;
    }
    ~Handle() {
        if (value) close(value);
    }
    operator T *() const { return value; }  // for all that t2r.h has
    T **place() { return &value; }

private:
    T *value = nullptr;
};

class Decoder : public Handle<t2r_decoder, t2r_close> {
public:
    explicit Decoder(const std::string &path, const t2r_options &options = t2r_defaults()) {
        check(t2r_open(path.c_str(), &options, place()));
    }
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
    // callback: called with each token; false ends the text. It must not throw.
    Tokens generate(const Tokens &prompt, std::int64_t max_tokens, const t2r_sampling &sampling = t2r_sampling_defaults(),
                    std::function<bool(std::int64_t)> callback = nullptr) const {
        const auto call = [](std::int64_t token, void *user) -> int {
            return (*static_cast<std::function<bool(std::int64_t)> *>(user))(token);
        };
        const std::int64_t *tokens;
        std::size_t count;
        check(t2r_generate(*this, prompt.data(), prompt.size(), max_tokens, &sampling, callback ? +call : nullptr, &callback, &tokens, &count));
        return {tokens, tokens + count};
    }
    void save(const std::string &path, std::int64_t token = -1) const { check(t2r_save(*this, path.c_str(), token)); }
    std::int64_t load(const std::string &path) const {
        std::int64_t token;
        check(t2r_load(*this, path.c_str(), &token));
        return token;
    }

private:
    Decoder() = default;
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
