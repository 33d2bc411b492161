#include "drafts.hpp"

#include <algorithm>
#include <cmath>

namespace t2r {

namespace {

constexpr std::size_t depths[] = {1, 2, 3, 5, 7, 11, 15};  // draft tokens of a run
constexpr std::size_t untimed = 1, rest = 64, pause = 8, after = 3;  // after: steps that a run of several tokens slows
constexpr double hoped = 0.9, latest = 0.3, worth = 1.05, slope = 0.15, share_of_steps = 0.01, most_allowance = 4;
constexpr double dear = 2, slow = 4;  // the most that a run costs, of what is expected, and a step after it, in steps

}  // namespace

void Lookup::read(const std::vector<std::int64_t> &tokens) {
    text.insert(text.end(), tokens.begin(), tokens.end());
    place = size = 0;
    for (std::size_t end = text.size() - 1; end > 0 && size < longest; end--) {
        std::size_t same = 0;
        while (same < std::min(longest, end) && text[end - 1 - same] == text[text.size() - 1 - same]) same++;
        if (same >= shortest && same > size) size = same, place = end;
    }
}

std::vector<std::int64_t> Lookup::propose(std::size_t most) const {
    std::vector<std::int64_t> found;
    for (std::size_t n = 0; size && n < most; n++) found.push_back(text[place + n % (text.size() - place)]);
    return found;
}

void RunTimes::ran(std::size_t tokens, double took) {
    const double step = known() ? seconds.at(1) : took;
    singles = tokens == 1 ? singles + 1 : 0;
    if (tokens > 1) left -= std::min(took, dear * (known() ? of(static_cast<double>(tokens)) : took)) / step;
    else left -= singles > after ? 1 : std::min(std::max(took / step, 1.0), slow);
    if (prepared.insert(tokens).second || (tokens == 1 && singles <= after)) return;
    const double before = seconds.emplace(tokens, took).first->second;
    seconds[tokens] = std::min(took, before + latest * (took - before));
}

void RunTimes::chose(std::size_t tokens) { left = std::min(left + (1 + share_of_steps) * static_cast<double>(tokens), most_allowance); }

double RunTimes::of(double tokens) const {
    auto more = seconds.lower_bound(static_cast<std::size_t>(std::ceil(tokens)));
    if (more != seconds.end() && static_cast<double>(more->first) == tokens) return more->second;
    const auto less = std::prev(more);
    const double beyond = tokens - static_cast<double>(less->first);
    if (more == seconds.end()) return less->second + slope * beyond * seconds.at(1);
    return less->second + (more->second - less->second) * beyond / static_cast<double>(more->first - less->first);
}

std::array<Pace::Judged, Lookup::longest + 1> Pace::hopeful() {
    std::array<Judged, Lookup::longest + 1> made;
    made.fill(Judged{hoped});
    return made;
}

std::size_t Pace::depth(std::size_t kind, std::size_t waiting) {
    if (!times.known()) return 0;  // the first run is a single step, for comparison
    Judged &judged = kinds[kind];
    if (written < judged.paused) return 0;
    if (written - judged.at > rest) judged.share = hoped, judged.at = written;
    const double rejected = 1 - judged.right / (judged.tried + 1), now = steps(static_cast<double>(waiting));
    std::size_t best = 0;
    for (const std::size_t n : depths) {
        if (n > untimed && !times.several()) break;
        const bool affordable = rejected * (steps(static_cast<double>(waiting + n)) - now) <= times.allowance();
        if (affordable && (!best || rate(n, kind, waiting) > rate(best, kind, waiting))) best = n;
    }
    if (best && rate(best, kind, waiting) > worth * rate(0, kind, waiting)) return best;
    judged.paused = written + pause;
    return 0;
}

bool Pace::trusts(std::size_t kind, std::size_t guesses, std::size_t waiting) const {
    return read_again(guesses, kind, waiting, true) < read_again(guesses, kind, waiting, false);
}

void Pace::judged(std::size_t kind, std::size_t guesses, std::size_t right, std::size_t chosen) {
    written += chosen;
    times.chose(chosen);
    if (!guesses) return;
    Judged &judged = kinds[kind];
    judged.at = written;
    for (std::size_t n = 0; n < std::min({right + 1, guesses, chosen}); n++) {
        const double is_right = n < right;
        judged.share += latest * (is_right - judged.share);
        judged.right += is_right, judged.tried++;
    }
}

double Pace::rate(std::size_t depth, std::size_t kind, std::size_t waiting) const {
    double chosen = 0;
    for (std::size_t n = 0; n <= depth; n++) chosen += std::pow(kinds[kind].share, n);
    const double again = std::min(read_again(depth, kind, waiting, true), read_again(depth, kind, waiting, false));
    return chosen / times.of(static_cast<double>(waiting + depth) + again);
}

double Pace::read_again(std::size_t guesses, std::size_t kind, std::size_t waiting, bool trusting) const {
    double right = 0;
    for (std::size_t n = 1; n <= guesses; n++) right += std::pow(kinds[kind].share, n);
    const double all_right = std::pow(kinds[kind].share, guesses), count = static_cast<double>(waiting);
    return trusting ? right + count - all_right * (static_cast<double>(guesses) + count) : right;
}

}  // namespace t2r
