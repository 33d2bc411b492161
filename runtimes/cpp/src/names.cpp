#include <algorithm>
#include <set>

#include "numbers.hpp"
#include "unicode.hpp"

namespace t2r {

namespace {

using Text = std::u32string;
using Words = std::set<Text>;

constexpr std::size_t least_letters = 3;

Words words_of(std::u32string_view text) {
    Words found;
    for (std::size_t at = 0, end; at <= text.size(); at = end + 1) {
        end = std::min(text.find(U' ', at), text.size());
        found.emplace(text.substr(at, end - at));
    }
    return found;
}

const Words &naming() {
    static const Words *const all = new Words(words_of(U"heißt heiße heißen hieß namens"));
    return *all;
}

const Words &titles() {
    static const Words *const all = new Words(words_of(U"frau herr herrn familie onkel tante oma opa doktor professor firma"));
    return *all;
}

const Words &before_nouns() {
    static const Words *const all = new Words(words_of(
        U"der die das den dem des ein eine einen einem einer eines kein keine keinen keinem keiner mein meine meinen meinem "
        U"meiner dein deine deinen deinem deiner sein seine seinen seinem seiner ihr ihre ihren ihrem ihrer unser unsere "
        U"unseren unserem unserer euer eure euren eurem eurer im am zum zur beim vom ins ans dieser diese dieses diesen "
        U"diesem jeder jede jedes jeden jedem alle aller allen viele vielen einige mehrere sie "
        U"montag dienstag mittwoch donnerstag freitag samstag sonntag"));
    return *all;
}

// Whether what follows is a unit: vier Wochen Gips.
bool counts(const Text &word) {
    return value_of(word) >= 0 || (!word.empty() && std::all_of(word.begin(), word.end(), is_ascii_digit));
}

}  // namespace

std::vector<Name> names(const Text &source, const std::function<bool(const Text &)> &is_known) {
    std::vector<Name> found;
    Text previous, earlier;  // the two words before, as far as only a blank is between
    bool follows = false;    // whether the previous word is not the first of its sentence
    std::size_t end = 0;     // where it ends
    for (std::size_t at = 0; at < source.size(); at++) {
        const auto in_word = [&](std::size_t place) { return place < source.size() && (is_letter(source[place]) || is_number(source[place])); };
        if (!in_word(at)) continue;
        std::size_t after = at;
        while (in_word(after)) after++;
        const Text word = source.substr(at, after - at), low = small(word), gap = source.substr(end, at - end);
        const bool first = end == 0 || gap.find_first_of(U".!?") != Text::npos;
        if (gap != U" ") previous = earlier = Text();
        const bool capitalized = word[0] != low[0] && word.compare(1, Text::npos, low, 1, Text::npos) == 0;
        const bool known = is_known(word) || (first && is_known(low));
        if (word.size() >= least_letters && capitalized && !known && !before_nouns().count(previous))
            found.push_back({word, naming().count(previous) || (follows && !previous.empty() && !counts(earlier))});
        follows = capitalized && (!first || titles().count(low));
        earlier = previous;
        previous = low;
        end = after;
        at = after - 1;
    }
    return found;
}

}  // namespace t2r
