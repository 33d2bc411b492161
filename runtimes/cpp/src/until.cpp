#include "until.hpp"

#include <algorithm>

namespace t2r {

std::string Until::feed(std::string_view piece) {
    if (ended) return "";
    waiting.append(piece);
    std::size_t end = waiting.npos, begin = 0;
    for (const std::string &stop : stops) {
        const std::size_t place = waiting.find(stop);
        if (place == waiting.npos || place + stop.size() > end) continue;
        begin = place + stop.size() < end ? place : std::min(begin, place);
        end = place + stop.size();
    }
    if (end != waiting.npos) {
        ended = true;
        return std::exchange(waiting, {}).substr(0, begin);
    }
    std::size_t held = 0;
    for (const std::string &stop : stops) held = std::max(held, begun(stop));
    std::string certain = waiting.substr(0, waiting.size() - held);
    waiting.erase(0, certain.size());
    return certain;
}

// The number of bytes at the end of `waiting` that begin this stop text.
std::size_t Until::begun(std::string_view stop) const {
    std::size_t count = std::min(stop.size() - 1, waiting.size());
    while (waiting.compare(waiting.size() - count, count, stop, 0, count) != 0) count--;
    return count;
}

}  // namespace t2r
