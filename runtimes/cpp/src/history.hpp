// What a sequence has read, the last 65,536 tokens of it: what penalties look back on. Its memory is there from the
// beginning, so that a step allocates nothing; the system gives it when it is first written.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace t2r {

class History {
public:
    static constexpr std::size_t recent = std::size_t{1} << 16;

    History() : tokens(new std::int32_t[recent]) {}
    History(const History &other) : History() { *this = other; }
    History &operator=(const History &other) {
        for (std::size_t i = 0; i < other.size(); i++) tokens[i] = other.tokens[i];
        count = other.count;
        return *this;
    }

    void clear() { count = 0; }
    void add(std::int64_t token) { tokens[count++ % recent] = static_cast<std::int32_t>(token); }
    std::size_t size() const { return count < recent ? count : recent; }
    // Oldest first.
    std::int64_t operator[](std::size_t i) const { return tokens[count < recent ? i : (count + i) % recent]; }

private:
    std::unique_ptr<std::int32_t[]> tokens;
    std::size_t count = 0;
};

}  // namespace t2r
