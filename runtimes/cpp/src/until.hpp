// Texts that end a text: what is written is held back where it may be the beginning of one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace t2r {

// A text that comes in pieces, up to the first of `stops` that is complete in it; of those that are complete at the same
// byte, up to the longest. How the text is cut into pieces changes nothing.
class Until {
public:
    Until() = default;
    explicit Until(std::vector<std::string> stops) : stops(std::move(stops)) {}

    // What of the text is certain now; nothing when it has ended.
    std::string feed(std::string_view piece);
    // What was held back, when nothing more comes.
    std::string end() { return std::exchange(waiting, {}); }
    bool found() const { return ended; }

private:
    std::size_t begun(std::string_view stop) const;

    std::vector<std::string> stops;
    std::string waiting;
    bool ended = false;
};

}  // namespace t2r
