#include "text_search.hpp"

#include <algorithm>

namespace t2r {

namespace {

constexpr std::size_t block = 1 << 16;  // bytes read at a time

std::size_t hash(std::uint32_t key) {
    const std::uint64_t mixed = key * 0xBF58476D1CE4E5B9;
    return static_cast<std::size_t>(mixed ^ mixed >> 32);
}

}  // namespace

TextSearch::Edge &TextSearch::place_of(std::uint32_t key) {
    std::size_t place = hash(key) & (edges.size() - 1);
    while (edges[place].key && edges[place].key != key) place = (place + 1) & (edges.size() - 1);
    return edges[place];
}

std::uint32_t TextSearch::find(std::uint32_t node, unsigned char byte) const {
    const std::uint32_t key = key_of(node, byte);
    for (std::size_t place = hash(key) & (edges.size() - 1); edges[place].key; place = (place + 1) & (edges.size() - 1))
        if (edges[place].key == key) return edges[place].to;
    return 0;
}

std::uint32_t TextSearch::step(std::uint32_t node, unsigned char byte) const {
    while (true) {
        if (const std::uint32_t next = find(node, byte)) return next;
        if (node == 0) return 0;
        node = nodes[node].fail;
    }
}

void TextSearch::grow() {
    std::vector<Edge> before(2 * edges.size());
    before.swap(edges);
    for (const Edge &edge : before)
        if (edge.key) place_of(edge.key) = edge;
}

void TextSearch::add(std::string_view text, std::uint32_t number) {
    std::uint32_t node = 0;
    for (auto at = text.rbegin(); at != text.rend(); ++at) {
        const auto byte = static_cast<unsigned char>(*at);
        std::uint32_t next = find(node, byte);
        if (!next) {
            next = static_cast<std::uint32_t>(nodes.size());
            if (2 * nodes.size() > edges.size()) grow();
            place_of(key_of(node, byte)) = {key_of(node, byte), next};
            nodes.push_back({0, none, node, nodes[node].depth + 1, byte});
        }
        node = next;
    }
    if (nodes[node].number == none) nodes[node].number = number;
    is_last[static_cast<unsigned char>(text.back())] = true;
    longest = std::max(longest, text.size());
}

void TextSearch::finish() {
    std::vector<std::uint32_t> first(longest + 2), order(nodes.size());  // nodes by depth
    for (const Node &node : nodes) first[node.depth + 1]++;
    for (std::size_t depth = 1; depth < first.size(); depth++) first[depth] += first[depth - 1];
    for (std::uint32_t i = 0; i < nodes.size(); i++) order[first[nodes[i].depth]++] = i;
    for (const std::uint32_t i : order) {
        Node &node = nodes[i];
        if (node.depth > 1) node.fail = step(nodes[node.parent].fail, node.byte);
        if (node.number == none) node.number = nodes[node.fail].number;
    }
}

TextSearch::Scan::Match TextSearch::Scan::next(std::size_t from) {
    while (true) {
        while (!matches.empty() && matches.back().begin < from) matches.pop_back();
        if (!matches.empty()) return matches.back();
        const std::size_t begin = std::max(end, from);
        if (begin >= text.size() || search.empty()) return {text.size(), none};
        end = std::min(begin + std::max(block, search.longest), text.size());
        std::uint32_t node = 0;
        for (std::size_t at = std::min(end + search.longest - 1, text.size()); at-- > begin;) {
            const auto byte = static_cast<unsigned char>(text[at]);
            if (node == 0 && !search.is_last[byte]) continue;
            node = search.step(node, byte);
            if (at < end && search.nodes[node].number != none) matches.push_back({at, search.nodes[node].number});
        }
    }
}

}  // namespace t2r
