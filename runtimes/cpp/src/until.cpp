#include "until.hpp"

#include <algorithm>

namespace t2r {

std::string Until::feed(std::string_view piece) {
    if (ended) return "";
    waiting.append(piece);
    std::size_t end = waiting.npos, begin = 0, held = 0;
    for (Stop &stop : stops) {
        const std::size_t read = stop.end_in(std::string_view(waiting).substr(searched)), after = searched + read;
        held = std::max(held, stop.matched);
        if (read == 0 || after > end) continue;
        const std::size_t place = after - stop.text.size();
        begin = after < end ? place : std::min(begin, place);
        end = after;
    }
    ended = end != waiting.npos;
    std::string certain = waiting.substr(0, ended ? begin : waiting.size() - held);
    waiting.erase(0, ended ? waiting.npos : certain.size());
    searched = waiting.size();
    return certain;
}

std::string Until::end() {
    for (Stop &stop : stops) stop.matched = 0;
    searched = 0;
    return std::exchange(waiting, {});
}

std::size_t Until::Stop::end_in(std::string_view piece) {
    for (std::size_t read = 0; read < piece.size();) {
        matched = after(matched, piece[read++]);
        if (matched == text.size()) return read;
    }
    return 0;
}

std::size_t Until::Stop::after(std::size_t count, char next) {
    while (count && text[count] != next) count = border(count);
    return count + (text[count] == next);
}

std::size_t Until::Stop::border(std::size_t size) {
    while (borders.size() <= size) borders.push_back(after(borders.back(), text[borders.size() - 1]));
    return borders[size];
}

}  // namespace t2r
