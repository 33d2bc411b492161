// Many texts searched for at once (Aho and Corasick 1975), in time that is linear in the text that is read, however many
// there are and however much one is like another.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace t2r {

class TextSearch {
public:
    // All texts together have at most so many bytes.
    static constexpr std::size_t most = std::size_t{1} << 22;

    // A text that is not empty, under a number. Of equal texts the first counts. `finish` comes after the last one.
    void add(std::string_view text, std::uint32_t number);
    void finish();
    bool empty() const { return nodes.size() == 1; }

    // The matches in one text, from its front on.
    class Scan {
    public:
        Scan(const TextSearch &search, std::string_view text) : search(search), text(text) {}

        struct Match {
            std::size_t begin;
            std::uint32_t number;  // `none` behind the last one
        };
        // The longest match at the first place at or behind `from` that has one. `from` never decreases.
        Match next(std::size_t from);

    private:
        const TextSearch &search;
        std::string_view text;
        std::size_t end = 0;         // of what has been read
        std::vector<Match> matches;  // in it, the first one last
    };

    static constexpr std::uint32_t none = ~std::uint32_t{0};

private:
    // The texts are read from their last byte to their first, so that a text which is read backwards shows at each place
    // the longest one that begins there.
    struct Node {
        std::uint32_t fail = 0;       // the longest end of what was read that is a node too
        std::uint32_t number = none;  // of the longest text that begins here
        std::uint32_t parent = 0, depth = 0;
        unsigned char byte = 0;
    };
    struct Edge {
        std::uint32_t key;  // a node and a byte; 0: a free place
        std::uint32_t to;
    };

    static std::uint32_t key_of(std::uint32_t node, unsigned char byte) { return (node + 1) << 8 | byte; }
    Edge &place_of(std::uint32_t key);
    std::uint32_t find(std::uint32_t node, unsigned char byte) const;  // 0: no edge
    std::uint32_t step(std::uint32_t node, unsigned char byte) const;
    void grow();

    std::vector<Node> nodes = std::vector<Node>(1);
    std::vector<Edge> edges = std::vector<Edge>(16);
    bool is_last[256] = {};  // the last byte of a text
    std::size_t longest = 0;
};

}  // namespace t2r
