// A unigram model (Kudo 2018): the most probable segmentation of a text into pieces of the vocabulary (Viterbi).
#include <algorithm>
#include <limits>

#include "tokenizer_parts.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

constexpr double unknown_penalty = 10;  // below the least probable piece

class Unigram : public Model {
public:
    explicit Unigram(Json::Value part) {
        std::int64_t id = 0;
        looks = 1;
        part.at("vocab").each([&](Json::Value entry) {
            if (entry.size() != 2) refuse_tokenizer("pieces with their scores", "another");
            const std::string_view text = entry.first().string();
            require_at_most(256, static_cast<double>(text.size()), "bytes of a piece, which is looked for at every place");
            vocabulary.add(text, id++);
            scores.push_back(entry.first().next().real());
            least = std::min(least, scores.back());
        });
        if (scores.empty()) refuse_tokenizer("a vocabulary", "an empty one");
        for (std::int64_t i = 0; i < id; i++) {
            const std::string_view text = vocabulary.text(i);
            if (vocabulary.find(text) == i && !text.empty()) sorted.push_back({text, static_cast<std::size_t>(i)});
            looks = std::max(looks, text.size());
        }
        std::size_t places = 1;
        while (places <= std::max<std::size_t>(looks, 4)) places *= 2;  // 4: bytes of a character
        sums.resize(places);
        std::sort(sorted.begin(), sorted.end(), [](const Entry &a, const Entry &b) { return a.text < b.text; });
        if (const auto found = part.find("unk_id"); found && !found->is_null()) {
            unknown = found->integer();
            if (unknown < 0 || unknown >= id) refuse_tokenizer("an unk_id of the vocabulary", std::to_string(unknown));
        }
        if (flag(part, "byte_fallback", false)) bytes = byte_tokens(vocabulary);
    }

    void encode(std::string_view text, Ids &tokens) override {
        std::size_t begin = 0;  // of the text without tokens yet
        ways.assign(1, 0);
        sums[0] = 0;
        for (std::size_t at = 0; at < text.size();) {
            const bool is_edge = ways.size() == at - begin + 1;  // no piece crosses this position
            if (is_edge && at - begin > kept && !(ways.back() & is_unknown)) {
                write(text.substr(begin, at - begin), tokens);
                ways.assign(1, 0);
                begin = at;
            }
            at += extend(text.substr(at), at - begin, sums[at & (sums.size() - 1)], at);
        }
        write(text.substr(begin), tokens);
        if (ways.capacity() > 4 * kept) ways = {};
    }

private:
    // The best segmentation up to a position: the beginning of its last piece, and whether that is unknown.
    static constexpr std::uint32_t place = 0x7FFFFFFF, is_unknown = 0x80000000, none = place;
    static constexpr std::size_t kept = 1 << 14;
    struct Entry {
        std::string_view text;
        std::size_t id;
    };

    // Extend the segmentation by each piece that begins at `at`, which is `from` in the whole text. Returns the size of the
    // character there.
    std::size_t extend(std::string_view text, std::size_t at, double before, std::size_t from) {
        const auto reach = [&](std::size_t size, double score, std::int64_t id) {
            if (at + size >= ways.size()) ways.resize(at + size + 1, none);
            double &best = sums[(from + size) & (sums.size() - 1)];
            std::uint32_t &way = ways[at + size];
            if (way != none && score <= best) return;
            best = score;
            way = static_cast<std::uint32_t>(at) | (id == unknown ? is_unknown : 0);
        };
        const std::size_t character = decode_utf8(text, 0).size;
        bool single = false;
        each_prefix(text, [&](std::size_t id, std::size_t size) {
            reach(size, scores[id] + before, static_cast<std::int64_t>(id));
            single = single || size == character;
        });
        if (!single) {
            if (unknown < 0) refuse_tokenizer("text of the vocabulary's characters, as there is no unk_id", "another");
            reach(character, least - unknown_penalty + before, unknown);
        }
        return character;
    }

    // Append the tokens of the best segmentation of the text.
    void write(std::string_view text, Ids &tokens) {
        for (std::size_t end = text.size(), behind = none; end > 0;) {  // reverse the links: each position gets the next one
            const std::uint32_t way = ways[end];
            ways[end] = static_cast<std::uint32_t>(behind) | (way & is_unknown);
            behind = end;
            end = way & place;
            if (end == 0) ways[0] = static_cast<std::uint32_t>(behind);
        }
        for (std::size_t begin = 0; begin < text.size();) {
            std::size_t end = ways[begin] & place;
            if (ways[end] & is_unknown)  // fuse adjacent unknown pieces
                while (end < text.size() && (ways[ways[end] & place] & is_unknown)) end = ways[end] & place;
            add(text.substr(begin, end - begin), tokens);
            begin = end;
        }
    }

    // The pieces that are prefixes of the text, shortest first. Sorted pieces with the same first bytes are adjacent.
    template <class F> void each_prefix(std::string_view text, F call) const {
        auto low = sorted.begin(), high = sorted.end();
        for (std::size_t depth = 0; depth < text.size() && low != high; depth++) {
            const auto byte = static_cast<unsigned char>(text[depth]);
            const auto at = [&](const Entry &entry) { return static_cast<unsigned char>(entry.text[depth]); };
            low = std::partition_point(low, high, [&](const Entry &entry) { return at(entry) < byte; });
            high = std::partition_point(low, high, [&](const Entry &entry) { return at(entry) == byte; });
            if (low != high && low->text.size() == depth + 1) {
                call(low->id, depth + 1);
                ++low;
            }
        }
    }

    void add(std::string_view piece, Ids &tokens) const {
        const std::int64_t id = vocabulary.find(piece);
        if (id >= 0) return tokens.push_back(surface(piece, id));
        const auto known = [&](char c) { return bytes[static_cast<unsigned char>(c)] >= 0; };
        if (!bytes.empty() && std::all_of(piece.begin(), piece.end(), known)) {
            for (const char c : piece) tokens.push_back(bytes[static_cast<unsigned char>(c)]);
            return;
        }
        if (unknown < 0) refuse_tokenizer("text of the vocabulary's characters, as there is no unk_id", piece);
        tokens.push_back(surface(piece, unknown));
    }

    std::vector<double> scores;
    std::vector<Entry> sorted;
    std::vector<std::int64_t> bytes;
    std::int64_t unknown = -1;
    double least = std::numeric_limits<double>::infinity();
    std::vector<std::uint32_t> ways;
    std::vector<double> sums;  // of the best segmentations up to the last positions: a ring as long as a piece may be
};

}  // namespace

std::unique_ptr<Model> make_unigram(Json::Value part) { return std::make_unique<Unigram>(part); }

}  // namespace t2r
