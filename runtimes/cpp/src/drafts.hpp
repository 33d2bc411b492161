// Draft tokens by prompt lookup, and how many of them to check in a run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace t2r {

// Prompt lookup (Saxena 2023): what followed the latest earlier occurrence of the longest suffix of 6 to 2 tokens.
class Lookup {
public:
    static constexpr std::size_t longest = 6, shortest = 2;

    void read(const std::vector<std::int64_t> &tokens);
    // The length of the suffix that occurred before; 0: none.
    std::size_t matched() const { return size; }
    // The tokens after that occurrence, repeated periodically past the end of the text.
    std::vector<std::int64_t> propose(std::size_t most) const;

private:
    std::vector<std::int64_t> text;
    std::size_t place = 0, size = 0;  // the end of the earlier occurrence, and its length
};

// Seconds of runs by their number of tokens, kept for a decoder's texts. The first run of a size, which sets it up, does not count.
// Time lost by wrong drafts is paid from an allowance: a small share of the time of single steps plus the time gained by right drafts,
// up to a limit. A run costs what it took, and what the steps after it took longer, where two graphs do not fit into a cache; but a
// pause of the process must not end all drafts, so both are bounded.
class RunTimes {
public:
    void ran(std::size_t tokens, double seconds);
    // Tokens were chosen.
    void chose(std::size_t tokens);
    double allowance() const { return left; }  // in steps
    // Whether a single step has been timed, which must be before `of`.
    bool known() const { return seconds.count(1) > 0; }
    bool several() const { return known() && seconds.rbegin()->first > 1; }
    // Interpolated between measured numbers of tokens; a small slope beyond them, so that larger ones are tried.
    double of(double tokens) const;

private:
    std::map<std::size_t, double> seconds;
    std::set<std::size_t> prepared;
    double left = 2;
    std::size_t singles = 3;  // since the last run of several tokens
};

// The number of draft tokens of each run, from run times and the share of right drafts.
class Pace {
public:
    explicit Pace(RunTimes &times) : times(times) {}

    // Draft tokens of this kind to check after `waiting` chosen ones.
    std::size_t depth(std::size_t kind, std::size_t waiting);
    // Whether the states should include the draft tokens: right ones are then not read again, else the waiting ones are.
    bool trusts(std::size_t kind, std::size_t guesses, std::size_t waiting) const;
    // The first `right` of `guesses` draft tokens were right, and `written` tokens were chosen.
    void judged(std::size_t kind, std::size_t guesses, std::size_t right, std::size_t written);

    RunTimes &times;

private:
    struct Judged {
        double share;                 // moving average of the share of right drafts
        double right = 0, tried = 0;  // tokens
        std::size_t at = 0, paused = 0;  // length of the text at the last draft, and from which to decide again
    };

    double steps(double tokens) const { return times.of(tokens) / times.of(1); }
    double rate(std::size_t depth, std::size_t kind, std::size_t waiting) const;
    double read_again(std::size_t guesses, std::size_t kind, std::size_t waiting, bool trusting) const;

    std::array<Judged, Lookup::longest + 1> kinds = hopeful();
    static std::array<Judged, Lookup::longest + 1> hopeful();
    std::size_t written = 0;
};

}  // namespace t2r
