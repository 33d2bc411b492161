#include "until.hpp"

#include <algorithm>

namespace t2r {

std::string Until::feed(std::string_view piece) {
    if (ended) return "";
    std::string all = waiting;
    all.append(piece);
    std::size_t end = all.npos, begin = 0, held = 0;
    for (Stop &stop : stops) {
        const std::size_t read = stop.end_in(std::string_view(all).substr(searched)), after = searched + read;
        held = std::max(held, stop.next);
        if (read == 0 || after > end) continue;
        const std::size_t place = after - stop.text.size();
        begin = after < end ? place : std::min(begin, place);
        end = after;
    }
    const bool found = end != all.npos;
    std::string certain = all.substr(0, found ? begin : all.size() - held);
    // from here on nothing can fail
    all.erase(0, found ? all.npos : certain.size());
    waiting.swap(all);
    for (Stop &stop : stops) stop.matched = stop.next;
    searched = waiting.size();
    ended = found;
    return certain;
}

std::string Until::end() {
    for (Stop &stop : stops) stop.matched = 0;
    searched = 0;
    return std::exchange(waiting, {});
}

std::size_t Until::Stop::end_in(std::string_view piece) {
    next = matched;
    for (std::size_t read = 0; read < piece.size();) {
        next = after(next, piece[read++]);
        if (next == text.size()) return read;
    }
    return 0;
}

std::size_t Until::Stop::after(std::size_t count, char letter) {
    while (count && text[count] != letter) count = border(count);
    return count + (text[count] == letter);
}

std::size_t Until::Stop::border(std::size_t size) {
    while (borders.size() <= size) borders.push_back(after(borders.back(), text[borders.size() - 1]));
    return borders[size];
}

}  // namespace t2r
