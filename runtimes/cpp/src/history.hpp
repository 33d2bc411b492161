// The last 65,536 tokens that a sequence has read, for penalties. It grows by doubling.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace t2r {

class History {
public:
    static constexpr std::size_t recent = std::size_t{1} << 16;
    static constexpr std::size_t first = 256;  // initial capacity, in tokens

    History() : tokens(first) {}

    void clear() { count = 0; }
    // Make room for this many more tokens. Throws std::bad_alloc.
    void reserve(std::size_t more) {
        const std::size_t wanted = more > recent - size() ? recent : size() + more;
        if (wanted > tokens.size()) tokens.resize(std::min(std::max(wanted, 2 * tokens.size()), recent));
    }
    // Requires room, by `reserve`.
    void add(std::int64_t token) { tokens[count++ % recent] = static_cast<std::int32_t>(token); }
    std::size_t size() const { return count < recent ? count : recent; }
    // Oldest first.
    std::int64_t operator[](std::size_t i) const { return tokens[count < recent ? i : (count + i) % recent]; }

private:
    std::vector<std::int32_t> tokens;
    std::size_t count = 0;
};

}  // namespace t2r
