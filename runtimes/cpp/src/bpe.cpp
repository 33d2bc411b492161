// Byte-pair encoding (Sennrich et al. 2016): merges the adjacent pair with the lowest rank, the leftmost first.
#include <algorithm>
#include <functional>
#include <unordered_set>

#include "tokenizer_parts.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

// Maps an adjacent pair to its rule's rank and its merged id; open addressing in one array, since there may be a million.
class Rules {
public:
    struct Rule {
        std::uint64_t pair;
        std::uint32_t rank, made;
    };

    explicit Rules(std::size_t count) {
        std::size_t size = 16;
        while (size < 2 * count) size *= 2;
        table.assign(size, {nothing, 0, 0});
    }
    void add(std::int64_t left, std::int64_t right, std::uint32_t rank, std::int64_t made) {
        const std::uint64_t pair = key(left, right);
        Rule &place = table[find_place(pair)];
        place = {pair, rank, static_cast<std::uint32_t>(made)};
    }
    const Rule *find(std::int64_t left, std::int64_t right) const {
        const Rule &found = table[find_place(key(left, right))];
        return found.pair == nothing ? nullptr : &found;
    }

    template <class F> void each(F call) const {
        for (const Rule &rule : table)
            if (rule.pair != nothing) call(static_cast<std::int64_t>(rule.pair >> 32), static_cast<std::int64_t>(rule.pair & 0xFFFFFFFF));
    }

private:
    static constexpr std::uint64_t nothing = ~std::uint64_t{0};
    static std::uint64_t key(std::int64_t left, std::int64_t right) {
        return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
    }
    std::size_t find_place(std::uint64_t pair) const {
        std::uint64_t hash = (pair ^ pair >> 29) * 0xBF58476D1CE4E5B9;
        for (std::size_t place = (hash ^ hash >> 32) & (table.size() - 1);; place = (place + 1) & (table.size() - 1))
            if (table[place].pair == pair || table[place].pair == nothing) return place;
    }

    std::vector<Rule> table;
};

class Bpe : public Model {
public:
    explicit Bpe(Json::Value part) : rules(part.at("merges").size()) {
        for (const char *name : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (const auto found = part.find(name); found && !found->is_null() && !found->string().empty())
                refuse_part("model BPE with", name);
        if (const auto dropout = part.find("dropout"); dropout && !dropout->is_null() && dropout->real() != 0)
            refuse_part("model BPE with", "dropout");
        part.at("vocab").each_pair([&](std::string_view text, Json::Value id) {
            require_at_most(4096, static_cast<double>(text.size()), "bytes of a piece");
            vocabulary.add(text, id.integer());
        });
        falls_back = flag(part, "byte_fallback", false);
        if (falls_back) bytes = byte_tokens(vocabulary);
        fuses = flag(part, "fuse_unk", false);
        whole_first = flag(part, "ignore_merges", false);
        if (const auto name = part.find("unk_token"); name && !name->is_null()) {
            unknown = vocabulary.find(name->string());
            if (unknown < 0) refuse_tokenizer("an unk_token of the vocabulary", name->string());
        }
        std::uint32_t rank = 0;
        part.at("merges").each([&](Json::Value merge) { add_rule(merge, rank++); });
    }

    void encode(std::string_view piece, Ids &tokens) override {
        if (whole_first)
            if (const std::int64_t id = vocabulary.find(piece); id >= 0) return tokens.push_back(surface(piece, id));
        while (piece.size() > longest) {
            const std::size_t end = seam(piece);
            encode_part(piece.substr(0, end), tokens);
            piece.remove_prefix(end);
        }
        encode_part(piece, tokens);
        if (symbols.capacity() <= 4 * longest) return;
        symbols = {};  // free the memory of a long piece
        queue = {};
    }

private:
    static constexpr std::size_t longest = 1 << 12;  // bytes; longer pieces are encoded in parts if possible

    // A symbol is stored at the index of its first part. Its first and its last part have its length.
    struct Symbol {
        std::uint32_t id, length;
    };
    static constexpr std::uint32_t gone = ~std::uint32_t{0};
    // A rank and the index of the left symbol: the leftmost of equal ranks comes first.
    using Merge = std::uint64_t;

    void encode_part(std::string_view part, Ids &tokens) {
        begin(part);
        merge();
        for (std::size_t place = 0; place < symbols.size(); place += symbols[place].length) {
            const std::int64_t id = symbols[place].id;
            tokens.push_back(surfaces.empty() ? id : surface(vocabulary.text(id), id));
        }
    }

    // A position, if possible little more than `longest`, across which no rule merges; else the piece's end. Rules can merge
    // across two characters of the vocabulary only if some rule's left side ends with the first, and its right side begins
    // with the second.
    std::size_t seam(std::string_view piece) {
        if (joined.empty()) {
            joined.insert(0);  // so that it is not empty, and is filled once
            rules.each([&](std::int64_t first, std::int64_t second) {
                const std::string_view left = vocabulary.text(first), right = vocabulary.text(second);
                if (!left.empty() && !right.empty()) joined.insert(pair(last_character(left), decode_utf8(right, 0).code));
            });
        }
        std::size_t at = longest;
        while (at < piece.size() && (static_cast<unsigned char>(piece[at]) & 0xC0) == 0x80) at++;
        char32_t before = 0;  // 0: not in the vocabulary
        for (; at < piece.size(); at += decode_utf8(piece, at).size) {
            const Decoded character = decode_utf8(piece, at);
            const bool known = vocabulary.find(piece.substr(at, character.size)) >= 0;
            if (known && before && !joined.count(pair(before, character.code))) return at;
            before = known ? character.code : 0;
        }
        return piece.size();
    }

    static std::uint64_t pair(char32_t left, char32_t right) { return std::uint64_t{left} << 32 | right; }
    static char32_t last_character(std::string_view text) {
        std::size_t at = text.size() - 1;
        while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) at--;
        return decode_utf8(text, at).code;
    }

    void add_rule(Json::Value merge, std::uint32_t rank) {
        std::string_view left, right;
        if (merge.is(Json::Type::array)) {
            if (merge.size() != 2) refuse_tokenizer("merges of two texts", "another");
            left = merge.first().string();
            right = merge.first().next().string();
        } else {
            const std::string_view both = merge.string();
            const std::size_t space = both.find(' ');
            if (space == both.npos || both.find(' ', space + 1) != both.npos) refuse_tokenizer("merges of two texts", both);
            left = both.substr(0, space);
            right = both.substr(space + 1);
        }
        const std::int64_t made = vocabulary.find(std::string(left) + std::string(right));
        const std::int64_t first = vocabulary.find(left), second = vocabulary.find(right);
        if (made < 0 || first < 0 || second < 0)
            refuse_tokenizer("merges of texts in the vocabulary", std::string(left) + " " + std::string(right));
        rules.add(first, second, rank, made);
    }

    void add_symbol(std::int64_t id) { symbols.push_back({static_cast<std::uint32_t>(id), 1}); }

    // The characters of the piece as symbols; for those outside the vocabulary, their bytes or the unknown token.
    void begin(std::string_view piece) {
        symbols.clear();
        bool waiting = false;  // an unknown token is pending, which may be fused with the next one
        for (std::size_t at = 0; at < piece.size();) {
            const std::string_view character = piece.substr(at, decode_utf8(piece, at).size);
            at += character.size();
            const std::int64_t id = vocabulary.find(character);
            if (id < 0 && falls_back && std::all_of(character.begin(), character.end(), [&](char c) { return byte(c) >= 0; })) {
                for (const char c : character) add_symbol(byte(c));
                continue;
            }
            if (id < 0 && unknown < 0) continue;
            if (waiting && (id >= 0 || !fuses)) add_symbol(unknown);
            waiting = id < 0;
            if (id >= 0) add_symbol(id);
        }
        if (waiting) add_symbol(unknown);
    }

    std::int64_t byte(char c) const { return bytes[static_cast<unsigned char>(c)]; }

    const Rules::Rule *rule_at(std::size_t left) const {
        const std::size_t right = left + symbols[left].length;
        return right < symbols.size() ? rules.find(symbols[left].id, symbols[right].id) : nullptr;
    }

    bool propose(std::size_t left) {
        const Rules::Rule *rule = rule_at(left);
        if (rule) queue.push_back(Merge{rule->rank} << 32 | left);
        return rule;
    }

    void merge() {
        const auto later = std::greater<Merge>();
        queue.clear();
        queue.reserve(symbols.size());
        for (std::size_t place = 0; place < symbols.size(); place++) propose(place);
        std::make_heap(queue.begin(), queue.end(), later);
        while (!queue.empty()) {
            const auto rank = static_cast<std::uint32_t>(queue.front() >> 32);
            const auto place = static_cast<std::uint32_t>(queue.front());
            std::pop_heap(queue.begin(), queue.end(), later);
            queue.pop_back();
            Symbol &left = symbols[place];
            const Rules::Rule *rule = left.id == gone ? nullptr : rule_at(place);
            if (!rule || rule->rank != rank) continue;  // stale: one of the two has changed
            Symbol &right = symbols[place + left.length];
            const std::uint32_t length = left.length + right.length;
            right.id = gone;
            symbols[place + length - 1].length = length;
            left = {rule->made, length};
            if (place > 0 && propose(place - symbols[place - 1].length)) std::push_heap(queue.begin(), queue.end(), later);
            if (propose(place)) std::push_heap(queue.begin(), queue.end(), later);
        }
    }

    Rules rules;
    std::vector<std::int64_t> bytes;
    std::int64_t unknown = -1;
    bool falls_back = false, fuses = false, whole_first = false;
    std::vector<Symbol> symbols;
    std::vector<Merge> queue;  // a heap
    std::unordered_set<std::uint64_t> joined;  // pairs of characters that rules may merge across
};

}  // namespace

std::unique_ptr<Model> make_bpe(Json::Value part) { return std::make_unique<Bpe>(part); }

}  // namespace t2r
