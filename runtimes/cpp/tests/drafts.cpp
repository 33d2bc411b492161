// drafts GRAPH: texts with drafts are those by steps, and so are the states after them. Under a clock on which every run takes as
// long, prints the fewest runs of a greedy text of 107 tokens, or of those that have positions.
// drafts drafts.json --given: the runs of texts that are known before are those of Python.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "../conformance/case.hpp"
#include "generate.hpp"

namespace {

double calls;
double ticks() { return ++calls; }

[[noreturn]] void wrong(const char *what) {
    std::printf("%s\n", what);
    std::exit(1);
}

// Two texts in turn: `count` tokens after the prompt, and some more after the last of them.
std::vector<std::int64_t> text_of(t2r::Decoder &decoder, const t2r::Request &request) {
    std::vector<std::int64_t> all, written;
    t2r::generate(decoder, request, written);
    t2r::Request more = request;
    more.prompt = {written.back()};
    more.max_tokens = 17;
    more.callback = nullptr;
    all = written;
    t2r::generate(decoder, more, written);
    all.insert(all.end(), written.begin(), written.end());
    return all;
}

void compare(t2r::Decoder &plain, t2r::Decoder &drafted) {
    if (plain.position() != drafted.position()) wrong("another position");
    const t2r::History &one = plain.history(), &other = drafted.history();
    if (one.size() != other.size()) wrong("another length of the history");
    for (std::size_t i = 0; i < one.size(); i++)
        if (one[i] != other[i]) wrong("another history");
    auto &ours = const_cast<t2r::States &>(plain.all_states()), &theirs = const_cast<t2r::States &>(drafted.all_states());
    for (std::size_t i = 0; i < ours.count(); i++) {
        const t2r::StateView a = ours.state(i), b = theirs.state(i);
        if (a.bytes != b.bytes) wrong("another shape of a state");
        if (a.spec->dtype != t2r::Dtype::float32) continue;
        for (std::size_t at = 0; at < a.bytes / 4; at++) {
            const float x = reinterpret_cast<const float *>(a.data)[at], y = reinterpret_cast<const float *>(b.data)[at];
            if (!(std::abs(x - y) <= 2e-4f + 1e-3f * std::abs(x))) wrong("another state");
        }
    }
}

using Tokens = std::vector<std::int64_t>;

// Writes a text as Ahead does, with the times of runs given by their number of tokens.
void replay(t2r::Json::Value given) {
    const Tokens text = conformance::integers(given.at("tokens"));
    std::vector<double> times;
    given.at("times").each([&](t2r::Json::Value time) { times.push_back(time.real()); });
    t2r::RunTimes run_times;
    t2r::Pace pace(run_times);
    t2r::Lookup lookup;
    std::size_t written = 0, waiting = 1;
    lookup.read(conformance::integers(given.at("prompt")));
    given.at("runs").each([&](t2r::Json::Value run) {
        std::vector<t2r::Json::Value> wanted;
        run.each([&](t2r::Json::Value part) { wanted.push_back(part); });
        const std::size_t kind = lookup.matched(), depth = kind ? pace.depth(kind, waiting) : 0;
        const Tokens guesses = lookup.propose(std::min({depth, 32 - waiting, text.size() - written - 1}));
        const bool trusted = !guesses.empty() && pace.trusts(kind, guesses.size(), waiting);
        std::size_t right = 0;
        while (right < guesses.size() && guesses[right] == text[written + right]) right++;
        if (static_cast<std::size_t>(wanted.at(0).integer()) != waiting || conformance::integers(wanted.at(1)) != guesses ||
            static_cast<std::size_t>(wanted.at(2).integer()) != waiting + (trusted ? guesses.size() : 0) ||
            static_cast<std::size_t>(wanted.at(3).integer()) != right)
            wrong("another run");
        run_times.ran(waiting + guesses.size(), times[waiting + guesses.size() - 1]);
        const auto from = text.begin() + static_cast<std::ptrdiff_t>(written);
        const Tokens fresh(from, from + static_cast<std::ptrdiff_t>(right) + 1);
        pace.judged(kind, guesses.size(), right, fresh.size());
        lookup.read(fresh);
        written += fresh.size();
        if (!trusted) waiting = fresh.size();
        else waiting = right == guesses.size() ? 1 : waiting + fresh.size();
    });
    if (written != text.size()) wrong("another length of a text");
}

}  // namespace

int main(int count, char **arguments) try {
    if (count == 3) {
        int texts = 0;
        conformance::read_json(arguments[1])->root().each([&](t2r::Json::Value given) { replay(given), texts++; });
        std::printf("%d texts\n", texts);
        return 0;
    }
    if (count != 2) return 2;
    t2r::Options options;
    options.threads = 1;
    const auto graph = std::make_shared<t2r::Graph>(arguments[1], options);
    t2r::Decoder plain(graph), drafted(graph);
    drafted.draft(true);
    const std::int64_t reach = graph->signature.reach(), whole = reach ? std::min<std::int64_t>(90, reach - 20) : 90;
    double least = 1e9;
    for (const double temperature : {0.0, 1.0})
        for (const std::int64_t top_k : {0, 3})
            for (const double penalty : {1.0, 1.3})
                for (const std::int64_t ends_at : {whole, whole / 2, std::int64_t{7}, std::int64_t{1}}) {
                    t2r::Request request{{5, 1, 2}, whole, {}, std::vector<std::int64_t>{}, nullptr};
                    request.clock = ticks;
                    request.sampling.temperature = temperature;
                    request.sampling.top_k = top_k;
                    request.sampling.repetition_penalty = penalty;
                    request.sampling.seed = 3;
                    std::int64_t left;
                    request.callback = [&](std::int64_t) { return --left > 0; };
                    plain.reset(1);
                    drafted.reset(1);
                    left = ends_at;
                    const std::vector<std::int64_t> expected = text_of(plain, request);
                    calls = 0;
                    left = ends_at;
                    if (text_of(drafted, request) != expected) wrong("another text");
                    compare(plain, drafted);
                    if (temperature == 0 && ends_at == whole && penalty == 1) least = std::min(least, calls / 2);
                }
    std::printf("%.0f runs\n", least);
} catch (const std::exception &error) {
    std::printf("%s\n", error.what());
    return 1;
}
