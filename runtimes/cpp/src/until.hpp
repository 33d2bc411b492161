// Stop texts: output that may be the beginning of one is held back.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace t2r {

// Cuts a text, fed in pieces, before the first stop text that is complete in it; before the longest if several are complete
// at the same byte. The result does not depend on the pieces. A piece takes time in proportion to its bytes and to the number
// of stop texts, whatever their lengths.
class Until {
public:
    Until() = default;
    explicit Until(const std::vector<std::string> &stops) : stops(stops.begin(), stops.end()) {}

    // Hold the text that was held back for former stop texts.
    void take_from(Until &former) { waiting = former.end(); }
    // The text that is certain now; empty after the end. Throws std::bad_alloc before any change.
    std::string feed(std::string_view piece);
    // The text that was held back, at the end of the input.
    std::string end();
    bool found() const { return ended; }

private:
    // Searches for one stop text (Knuth, Morris and Pratt 1977, Fast pattern matching in strings).
    struct Stop {
        Stop(std::string text) : text(std::move(text)) {}

        // How many bytes of a piece are read when the stop text is complete, or 0. Sets `next`.
        std::size_t end_in(std::string_view piece);
        // The number matched after one more byte.
        std::size_t after(std::size_t count, char letter);
        // The length of the longest proper end of the first `size` bytes that begins them too.
        std::size_t border(std::size_t size);

        std::string text;
        std::size_t matched = 0, next = 0;         // bytes at the end of the text that begin the stop text, now and after a piece
        std::vector<std::size_t> borders = {0, 0};  // only as far as the text has matched
    };

    std::vector<Stop> stops;
    std::string waiting;
    std::size_t searched = 0;  // bytes of `waiting`
    bool ended = false;
};

}  // namespace t2r
