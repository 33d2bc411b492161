// Many texts with t2r.hpp: Batch adds and removes texts between steps, PrefixCache keeps states of known prefixes.
#ifndef T2R_TEXTS_HPP
#define T2R_TEXTS_HPP

#include <algorithm>
#include <chrono>
#include <list>
#include <map>

#include "t2r.hpp"

namespace t2r {
inline namespace cpp {

// Several texts at once, each a row of every state: a step reads the weights once for all. Each text equals that of generate
// alone, up to rounding. For one thread at a time. add refuses, with the kind batch, a graph of a fixed batch, and a second text
// of a graph with growing caches, which need one length.
class Batch {
public:
    // Uses the decoder's session, not its states.
    explicit Batch(const Decoder &decoder) : decoder(decoder.fork()) {}

    // Handles of the unfinished texts, oldest first.
    std::vector<std::size_t> sequences() const {
        std::vector<std::size_t> found;
        for (const Text &text : texts) found.push_back(text.handle);
        return found;
    }

    // Add a text and return its handle. Reads the prompt except its last token, which the next step reads. If this throws, the
    // batch is unchanged.
    std::size_t add(const Tokens &prompt, std::int64_t max_tokens, const std::optional<t2r_sampling> &sampling = {}) {
        require_done();
        Decoder reader = decoder.fork();
        Text text{count, 0, max_tokens, 0, sampling ? *sampling : reader.sampling(), {}};
        require(prompt, text, reader);
        text.token = prompt.back();
        if (prompt.size() > 1) reader.prefill({prompt.begin(), prompt.end() - 1});
        std::vector<Decoder::Row> rows = rows_where([](const Text &) { return true; });
        rows.push_back({reader, 0});
        texts.reserve(texts.size() + 1);
        decoder.take(rows);
        texts.push_back(std::move(text));
        return count++;
    }

    // Choose one token of every text: handles and tokens, oldest first. A text leaves the batch after a stop token or max_tokens,
    // or with the token -1 if its logits are not finite. If this throws, call it again, before add or remove.
    std::vector<std::pair<std::size_t, std::int64_t>> step() {
        std::vector<std::pair<std::size_t, std::int64_t>> chosen;
        if (texts.empty()) return chosen;
        const auto size = static_cast<std::size_t>(decoder.info().vocab_size);
        Tokens newest;
        for (const Text &text : texts) newest.push_back(text.token);
        if (!logits) logits = decoder.step(newest);
        for (std::size_t row = 0; row < texts.size(); row++) {
            newest[row] = choose(logits + row * size, row);
            chosen.emplace_back(texts[row].handle, newest[row]);
        }
        std::vector<Decoder::Row> rows;
        for (std::size_t row = 0; row < texts.size(); row++)
            if (texts[row].goes_on(newest[row])) rows.push_back({decoder, static_cast<std::int64_t>(row)});
        if (!rows.empty() && rows.size() < texts.size()) decoder.take(rows);
        logits = nullptr;  // from here on nothing can fail
        std::size_t kept = 0;
        for (std::size_t row = 0; row < texts.size(); row++) {
            const bool stays = texts[row].goes_on(newest[row]);
            texts[row].token = newest[row];
            texts[row].draws++;
            if (stays && kept++ != row) texts[kept - 1] = std::move(texts[row]);
        }
        texts.erase(texts.begin() + static_cast<std::ptrdiff_t>(kept), texts.end());
        return chosen;
    }

    // Remove a text and return a decoder that has read it, except its newest token.
    Decoder remove(std::size_t handle) {
        require_done();
        Decoder other = decoder.fork();
        const auto found = std::find_if(texts.begin(), texts.end(), [&](const Text &text) { return text.handle == handle; });
        if (found == texts.end()) throw Failed(T2R_BATCH, "expected the handle of a text that has not ended; received another; take one of add");
        other.take({{decoder, found - texts.begin()}});
        const std::vector<Decoder::Row> rows = rows_where([&](const Text &text) { return text.handle != handle; });
        if (!rows.empty()) decoder.take(rows);
        texts.erase(found);
        return other;
    }

private:
    struct Text {
        std::size_t handle;
        std::int64_t token, max_tokens, draws;  // token: the newest, not yet read
        t2r_sampling sampling;
        Tokens stops;

        // Whether it goes on after one more token.
        bool goes_on(std::int64_t next) const {
            return next >= 0 && draws + 1 < max_tokens && std::find(stops.begin(), stops.end(), next) == stops.end();
        }
    };

    // The checks of generate before it reads.
    static void require(const Tokens &prompt, Text &text, const Decoder &reader) {
        const t2r_info info = reader.info();
        const auto refuse = [](bool wrong, t2r_kind kind, const char *line) {
            if (wrong) throw Failed(kind, line);
        };
        const auto strange = [&](std::int64_t token) { return token < 0 || token >= info.vocab_size; };
        const auto any_strange = [&](const Tokens &tokens) { return std::any_of(tokens.begin(), tokens.end(), strange); };
        const bool given = text.sampling.stop_tokens != nullptr;
        const std::int64_t *stops = given ? text.sampling.stop_tokens : info.eos_tokens;
        text.stops.assign(stops, stops + (given ? text.sampling.stop_count : info.eos_count));
        text.sampling.stop_tokens = nullptr;  // the caller may free them
        const std::vector<float> even(static_cast<std::size_t>(info.vocab_size));
        reader.choose(even.data(), 0, text.sampling, 0);  // refuses options that are out of range
        refuse(info.input_size > 0, T2R_GRAPH, "expected a graph that reads tokens; received one that reads vectors; use read_vectors");
        refuse(text.max_tokens < 1, T2R_SAMPLING, "expected max_tokens of at least 1; received less; choose another");
        refuse(prompt.empty() || any_strange(prompt) || any_strange(text.stops), T2R_TOKEN,
               "expected tokens of the model, at least one; received another, or none; use the model's tokenizer");
        refuse(info.max_positions && static_cast<std::int64_t>(prompt.size()) + text.max_tokens - 1 > info.max_positions, T2R_POSITION,
               "expected a text within the model's positions; received a longer one; request fewer tokens");
    }

    void require_done() const {
        if (logits) throw Failed(T2R_STATE, "expected a batch whose last step is done; received one whose step failed; call step again");
    }

    std::int64_t choose(const float *values, std::size_t row) const {
        const Text &text = texts[row];
        std::int64_t token;
        const t2r_kind kind = t2r_choose(decoder, values, row, &text.sampling, text.draws, &token);
        if (kind == T2R_GRAPH) return -1;
        check(kind);
        return token;
    }

    template <class F> std::vector<Decoder::Row> rows_where(F stays) const {
        std::vector<Decoder::Row> rows;
        for (std::size_t row = 0; row < texts.size(); row++)
            if (stays(texts[row])) rows.push_back({decoder, static_cast<std::int64_t>(row)});
        return rows;
    }

    Decoder decoder;
    std::vector<Text> texts;  // one per row
    const float *logits = nullptr;  // of a step that failed after it had read
    std::size_t count = 0;
};

// Keeps the states after texts, after answers, and in texts after every block of tokens, for texts that begin with the same tokens.
// Recurrent states have a fixed size and cannot be truncated, so they fit only texts with all of those tokens. For one thread at a
// time.
class PrefixCache {
public:
    // max_bytes: limit of the kept states. The least valuable are evicted first: the value is the number of tokens that would have to
    // be read again, from the longest kept prefix of the same text, per byte and per second since the last use (LNC-R, Scheuermann et
    // al. 1996). clock: in seconds.
    explicit PrefixCache(const Decoder &decoder, std::size_t max_bytes = std::size_t{1} << 28, std::size_t block = 256,
                         std::function<double()> clock = seconds)
        : decoder(decoder.fork()), max_bytes(max_bytes), block(block), clock(std::move(clock)) {
        if (block < 1) throw Failed(T2R_SNAPSHOT, "expected a block of at least 1 token; received 0; choose another");
        if (decoder.info().translates)  // a text's states depend on its source, too
            throw Failed(T2R_GRAPH, "expected a decoder without a source; received a translator's; use the decoder of a language model");
    }

    // Choose the low-rank adapter of the texts from now on, by its name in t2r.adapters, or none (null). States of one are never used
    // with another.
    void adapt(const char *name) {
        decoder.adapt({name});  // refuses unknown ones
        start = &*starts.try_emplace(name ? name : "").first;
    }

    // Read a text from its start and return the logits after it, valid until the next call.
    const float *read(const Tokens &text) {
        begin();
        require(text);
        return read_after(text, text.size() - 1);  // the logits need a token
    }

    // Decoder::generate with a text from its start.
    Tokens generate(const Tokens &text, std::int64_t max_tokens, const std::optional<t2r_sampling> &sampling = {},
                    std::function<bool(std::int64_t)> callback = nullptr) {
        begin();
        if (text.size() > 1) {
            require(text);
            read_after({text.begin(), text.end() - 1}, text.size() - 1);
        }
        const Tokens written = decoder.generate({text.end() - (text.empty() ? 0 : 1), text.end()}, max_tokens, sampling, std::move(callback));
        Tokens whole = text;
        whole.insert(whole.end(), written.begin(), written.end());
        keep(whole, static_cast<std::size_t>(decoder.info().position));  // the last token has not been read
        return written;
    }

    std::size_t kept_bytes() const {
        std::size_t bytes = 0;
        for (const Kept &one : kept) bytes += one.bytes;
        return bytes;
    }

    std::size_t reused = 0;  // tokens of the last text that were found in the cache

private:
    // The states after a text, below those after the longest other text that begins it, or the start of texts.
    struct Kept {
        const Kept *prefix = nullptr;
        Tokens tokens;  // after those of prefix
        std::size_t length = 0, bytes = 0;  // of the text, of the states
        double used = 0;
        std::optional<Decoder> decoder;  // none at the start
    };
    static constexpr std::size_t most = 1024;  // decoders; libt2r allows 4,096 open ones per process

    static double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

    void begin() {
        reused = 0;
        decoder.reset(1);
        if (!start->first.empty()) decoder.adapt({start->first.c_str()});
    }

    // The checks of prefill, before any of a text is read.
    void require(const Tokens &text) const {
        const t2r_info info = decoder.info();
        const auto strange = [&](std::int64_t token) { return token < 0 || token >= info.vocab_size; };
        if (text.empty() || std::any_of(text.begin(), text.end(), strange))
            throw Failed(T2R_TOKEN, "expected tokens of the model, at least one; received another, or none; use the model's tokenizer");
        if (info.max_positions && static_cast<std::int64_t>(text.size()) > info.max_positions)
            throw Failed(T2R_POSITION, "expected a text within the model's positions; received a longer one; read fewer tokens");
    }

    // Read a text after its longest known prefix of at most `length` tokens.
    const float *read_after(const Tokens &text, std::size_t length) {
        Kept &known = find(text, length);
        if (known.decoder) decoder.take({{*known.decoder, 0}});
        known.used = clock();
        reused = known.length;
        const float *logits = nullptr;
        for (std::size_t at = reused; at < text.size();) {
            const auto from = text.begin() + static_cast<std::ptrdiff_t>(at);
            at = std::min(at + block - at % block, text.size());
            logits = decoder.prefill({from, text.begin() + static_cast<std::ptrdiff_t>(at)});
            keep(text, at);
        }
        return logits;
    }

    // The states after the longest known prefix of at most `length` tokens.
    Kept &find(const Tokens &text, std::size_t length) {
        Kept *found = &start->second;
        const auto goes_on = [&](const Kept &one) {
            return one.prefix == found && one.length <= length &&
                   std::equal(one.tokens.begin(), one.tokens.end(), text.begin() + static_cast<std::ptrdiff_t>(found->length));
        };
        for (auto next = kept.begin(); (next = std::find_if(kept.begin(), kept.end(), goes_on)) != kept.end();) found = &*next;
        return *found;
    }

    // Keep the states after the first tokens of a text, unless those of others are worth more.
    void keep(const Tokens &text, std::size_t length) {
        const double now = clock();
        const std::size_t bytes = bytes_of(decoder);
        Kept *prefix = &find(text, length);
        if (prefix->length == length) prefix->used = now;
        if (prefix->length == length || bytes > max_bytes) return;
        for (std::size_t left = kept_bytes(); left > max_bytes - bytes || kept.size() >= most; prefix = &find(text, length)) {
            const auto least = std::min_element(kept.begin(), kept.end(), [&](const Kept &one, const Kept &other) {
                return value(one.tokens.size(), one.bytes, now - one.used) < value(other.tokens.size(), other.bytes, now - other.used);
            });
            if (value(length - prefix->length, bytes, 0) < value(least->tokens.size(), least->bytes, now - least->used)) return;
            left -= least->bytes;
            evict(least);
        }
        const auto at = [&](std::size_t place) { return text.begin() + static_cast<std::ptrdiff_t>(place); };
        kept.push_back({prefix, Tokens(at(prefix->length), at(length)), length, bytes, now, decoder.copy()});
        const Kept &added = kept.back();
        const Tokens &tokens = added.tokens;
        for (Kept &one : kept) {  // longer texts that begin with this one
            if (&one == &added || one.prefix != prefix || one.length <= length) continue;
            if (!std::equal(tokens.begin(), tokens.end(), one.tokens.begin())) continue;
            one.prefix = &added;
            one.tokens.erase(one.tokens.begin(), one.tokens.begin() + static_cast<std::ptrdiff_t>(tokens.size()));
        }
    }

    // Those below it are then below its prefix. If this throws, nothing has changed.
    void evict(std::list<Kept>::const_iterator gone) {
        std::vector<Tokens> joined;
        const auto below = [&](const Kept &one) { return one.prefix == &*gone; };
        for (const Kept &one : kept) {
            if (!below(one)) continue;
            joined.push_back(gone->tokens);
            joined.back().insert(joined.back().end(), one.tokens.begin(), one.tokens.end());
        }
        auto next = joined.begin();
        for (Kept &one : kept) {
            if (!below(one)) continue;
            one.tokens.swap(*next++);
            one.prefix = gone->prefix;
        }
        kept.erase(gone);
    }

    static double value(std::size_t tokens, std::size_t bytes, double age) {
        return static_cast<double>(tokens) / static_cast<double>(bytes) / std::max(age, 1e-3);
    }

    // Twice its states, as a decoder has two buffers for each.
    static std::size_t bytes_of(const Decoder &decoder) {
        std::size_t bytes = 0;
        for (const t2r_tensor &state : decoder.states()) bytes += 2 * state.bytes;
        return bytes;
    }

    Decoder decoder;
    std::size_t max_bytes, block;
    std::function<double()> clock;
    std::map<std::string, Kept> starts;  // by adapter, "" for none
    std::pair<const std::string, Kept> *start = &*starts.try_emplace("").first;
    std::list<Kept> kept;  // oldest first
};

}  // namespace cpp
}  // namespace t2r

#endif
