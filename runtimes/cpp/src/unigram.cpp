// A unigram model (Kudo 2018): of all ways to cut a text into pieces of the vocabulary, the most probable (Viterbi).
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
        part.at("vocab").each([&](Json::Value entry) {
            if (entry.size() != 2) refuse_tokenizer("pieces with their scores", "another");
            const std::string_view text = entry.first().string();
            vocabulary.add(text, id++);
            scores.push_back(entry.first().next().real());
            least = std::min(least, scores.back());
        });
        if (scores.empty()) refuse_tokenizer("a vocabulary", "an empty one");
        for (std::int64_t i = 0; i < id; i++) {
            const std::string_view text = vocabulary.text(i);
            if (vocabulary.find(text) == i && !text.empty()) sorted.push_back({text, static_cast<std::size_t>(i)});
        }
        std::sort(sorted.begin(), sorted.end(), [](const Entry &a, const Entry &b) { return a.text < b.text; });
        if (const auto found = part.find("unk_id"); found && !found->is_null()) {
            unknown = found->integer();
            if (unknown < 0 || unknown >= id) refuse_tokenizer("an unk_id of the vocabulary", std::to_string(unknown));
        }
        if (flag(part, "byte_fallback", false)) bytes = byte_tokens(vocabulary);
    }

    void encode(std::string_view text, Ids &tokens) override {
        search(text);
        pieces.clear();
        bool joins = false;  // what is unknown joins what is unknown behind it
        for (std::size_t end = text.size(); end > 0;) {
            const Node &node = best[end];
            const bool is_unknown = node.id == unknown;
            if (is_unknown && joins) pieces.back().begin = node.begin;
            else pieces.push_back({node.begin, end});
            joins = is_unknown;
            end = node.begin;
        }
        for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece)
            add(text.substr(piece->begin, piece->end - piece->begin), tokens);
    }

private:
    static constexpr std::size_t nowhere = ~std::size_t{0};
    struct Node {
        double score;
        std::size_t begin;  // of the last piece of the best way to here
        std::int64_t id;
    };
    struct Span {
        std::size_t begin, end;
    };
    struct Entry {
        std::string_view text;
        std::size_t id;
    };

    void reach(std::size_t begin, std::size_t end, double score, std::int64_t id) {
        Node &node = best[end];
        if (node.begin == nowhere || score > node.score) node = {score, begin, id};
    }

    void search(std::string_view text) {
        best.assign(text.size() + 1, {0, nowhere, 0});
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t character = decode_utf8(text, at).size;
            const double before = best[at].score;
            bool single = false;
            each_prefix(text.substr(at), [&](std::size_t id, std::size_t size) {
                reach(at, at + size, scores[id] + before, static_cast<std::int64_t>(id));
                single = single || size == character;
            });
            if (!single) {
                if (unknown < 0) refuse_tokenizer("text of the vocabulary's characters, as there is no unk_id", "another");
                reach(at, at + character, least - unknown_penalty + before, unknown);
            }
            at += character;
        }
    }

    // The pieces that the text begins with, shortest first: those with the same first bytes lie side by side.
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
        if (id >= 0) return tokens.push_back(id);
        const auto known = [&](char c) { return bytes[static_cast<unsigned char>(c)] >= 0; };
        if (!bytes.empty() && std::all_of(piece.begin(), piece.end(), known)) {
            for (const char c : piece) tokens.push_back(bytes[static_cast<unsigned char>(c)]);
            return;
        }
        if (unknown < 0) refuse_tokenizer("text of the vocabulary's characters, as there is no unk_id", piece);
        tokens.push_back(unknown);
    }

    std::vector<double> scores;
    std::vector<Entry> sorted;
    std::vector<std::int64_t> bytes;
    std::int64_t unknown = -1;
    double least = std::numeric_limits<double>::infinity();
    std::vector<Node> best;
    std::vector<Span> pieces;
};

}  // namespace

std::unique_ptr<Model> make_unigram(Json::Value part) { return std::make_unique<Unigram>(part); }

}  // namespace t2r
