// Byte-pair encoding (Sennrich et al. 2016): of all neighbours that merge, those with the first rule, the leftmost first.
#include <algorithm>
#include <queue>

#include "tokenizer_parts.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

// Two neighbours → the rank of their rule and what they become; open addressing in one array, since there may be a million.
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
        part.at("vocab").each_pair([&](std::string_view text, Json::Value id) { vocabulary.add(text, id.integer()); });
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
            if (const std::int64_t id = vocabulary.find(piece); id >= 0) return tokens.push_back(id);
        begin(piece);
        merge();
        for (const Symbol &symbol : symbols)
            if (symbol.id >= 0) tokens.push_back(symbol.id);
    }

private:
    static constexpr std::int64_t gone = -1;
    static constexpr std::size_t none = ~std::size_t{0};

    struct Symbol {
        std::int64_t id;
        std::size_t before, after;  // neighbours
    };
    struct Merge {
        std::uint32_t rank;
        std::size_t place;
        std::uint32_t made;
        bool operator<(const Merge &other) const { return rank != other.rank ? rank > other.rank : place > other.place; }
    };

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

    void add_symbol(std::int64_t id) {
        const std::size_t place = symbols.size();
        if (place > 0) symbols.back().after = place;
        symbols.push_back({id, place > 0 ? place - 1 : none, none});
    }

    // The characters of the piece as symbols; of those that the vocabulary has not, their bytes, or what is unknown.
    void begin(std::string_view piece) {
        symbols.clear();
        bool waiting = false;  // what is unknown, which may join what is unknown behind it
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

    void propose(std::size_t left) {
        if (left == none || symbols[left].after == none) return;
        if (const Rules::Rule *rule = rules.find(symbols[left].id, symbols[symbols[left].after].id))
            queue.push({rule->rank, left, rule->made});
    }

    void merge() {
        for (std::size_t place = 0; place + 1 < symbols.size(); place++) propose(place);
        while (!queue.empty()) {
            const Merge best = queue.top();
            queue.pop();
            Symbol &left = symbols[best.place];
            if (left.id == gone || left.after == none) continue;
            Symbol &right = symbols[left.after];
            const Rules::Rule *rule = rules.find(left.id, right.id);
            if (!rule || rule->made != best.made) continue;  // one of the two has changed since
            left.id = best.made;
            left.after = right.after;
            right.id = gone;
            if (left.after != none) symbols[left.after].before = best.place;
            propose(left.before);
            propose(best.place);
        }
    }

    Rules rules;
    std::vector<std::int64_t> bytes;
    std::int64_t unknown = -1;
    bool falls_back = false, fuses = false, whole_first = false;
    std::vector<Symbol> symbols;
    std::priority_queue<Merge> queue;
};

}  // namespace

std::unique_ptr<Model> make_bpe(Json::Value part) { return std::make_unique<Bpe>(part); }

}  // namespace t2r
