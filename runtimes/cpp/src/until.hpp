// Stop texts: output that may be the beginning of one is held back.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace t2r {

// Cuts a text, fed in pieces, before the first stop text that is complete in it; before the longest if several are complete
// at the same byte. The result does not depend on the pieces.
class Until {
public:
    Until() = default;
    // held: text that was held back for former stop texts.
    explicit Until(std::vector<std::string> stops, std::string held = "") : stops(std::move(stops)), waiting(std::move(held)) {}

    // The text that is certain now; empty after the end.
    std::string feed(std::string_view piece);
    // The text that was held back, at the end of the input.
    std::string end() { return std::exchange(waiting, {}); }
    bool found() const { return ended; }

private:
    std::size_t begun(std::string_view stop) const;

    std::vector<std::string> stops;
    std::string waiting;
    bool ended = false;
};

}  // namespace t2r
