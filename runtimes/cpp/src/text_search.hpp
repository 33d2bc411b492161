// Searches for many patterns at once (Aho and Corasick 1975), in time linear in the text, whatever the number and similarity
// of the patterns.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace t2r {

class TextSearch {
public:
    // Limit of all patterns together, in bytes.
    static constexpr std::size_t most = std::size_t{1} << 22;

    // Add a pattern, not empty, with a number. The first of equal patterns counts. Call `finish` after the last one.
    void add(std::string_view text, std::uint32_t number);
    void finish();
    bool empty() const { return nodes.size() == 1; }

    // The matches in one text, from front to back.
    class Scan {
    public:
        Scan(const TextSearch &search, std::string_view text) : search(search), text(text) {}

        struct Match {
            std::size_t begin;
            std::uint32_t number;  // `none` after the last match
        };
        // The longest match at the first position from `from` on that has one. `from` never decreases.
        Match next(std::size_t from);

    private:
        const TextSearch &search;
        std::string_view text;
        std::size_t end = 0;         // of the part that was read
        std::vector<Match> matches;  // in that part, the first one last
    };

    static constexpr std::uint32_t none = ~std::uint32_t{0};

private:
    // A trie of the reversed patterns: scanning the text backwards finds at each position the longest pattern that begins there.
    struct Node {
        std::uint32_t fail = 0;       // the node of the longest proper suffix of what was read
        std::uint32_t number = none;  // of the longest pattern that begins here
        std::uint32_t parent = 0, depth = 0;
        unsigned char byte = 0;
    };
    struct Edge {
        std::uint32_t key;  // node and byte; 0: free
        std::uint32_t to;
    };

    static std::uint32_t key_of(std::uint32_t node, unsigned char byte) { return (node + 1) << 8 | byte; }
    Edge &place_of(std::uint32_t key);
    std::uint32_t find(std::uint32_t node, unsigned char byte) const;  // 0: no edge
    std::uint32_t step(std::uint32_t node, unsigned char byte) const;
    void grow();

    std::vector<Node> nodes = std::vector<Node>(1);
    std::vector<Edge> edges = std::vector<Edge>(16);
    bool is_last[256] = {};  // whether a pattern ends with this byte
    std::size_t longest = 0;
};

}  // namespace t2r
