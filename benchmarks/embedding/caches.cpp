// caches PLUGIN THREADS LENGTH,… GRAPH…: steps through t2r.h with caches in place and with caches that are copied, after texts of
// these lengths, by turns in one process. PLUGIN is the path of onnxruntime-ep-t2r. Checks that the logits are equal, bit by bit. The
// milliseconds are processor time, which other programs change less; of more threads than one it counts those that wait, too.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <string>
#include <t2r.h>
#include <vector>

namespace {

constexpr int rounds = 9, steps = 16, discarded = 4;

void require(t2r_kind kind) {
    if (kind == T2R_OK) return;
    std::fprintf(stderr, "%s\n", t2r_error());
    std::exit(2);
}

struct Way {
    const char *graph;
    bool in_place;
    t2r_decoder *decoder = nullptr;
    std::vector<double> milliseconds;
    std::vector<float> logits;
};

void open(Way &way, const char *plugin, int threads) {
    // where the CPU may run nodes, libt2r copies caches
    static const char *const anywhere[] = {"session.disable_cpu_ep_fallback", "0"};
    t2r_options options;
    require(t2r_defaults(&options, sizeof options));
    options.threads = threads, options.provider = &plugin, options.provider_count = 1;
    if (!way.in_place) options.config = anywhere, options.config_count = 2;
    require(t2r_open(way.graph, &options, &way.decoder));
}

// The states after a text of this length.
std::vector<char> text(t2r_decoder *decoder, std::size_t length, std::int64_t vocabulary) {
    std::vector<std::int64_t> ids(length);
    for (std::size_t i = 0; i < length; i++) ids[i] = static_cast<std::int64_t>(3 + i * 7919 % static_cast<std::size_t>(vocabulary - 3));
    const float *logits;
    const void *states;
    std::size_t bytes;
    require(t2r_reset(decoder, 1));
    require(t2r_prefill(decoder, ids.data(), 1, length, &logits));
    require(t2r_save_memory(decoder, -1, &states, &bytes));
    return {static_cast<const char *>(states), static_cast<const char *>(states) + bytes};
}

// Goes on greedily.
void time_steps(Way &way, const std::vector<char> &start, std::int64_t vocabulary) {
    std::int64_t token = 5;
    const float *logits = nullptr;
    require(t2r_load_memory(way.decoder, start.data(), start.size(), nullptr));
    for (int i = 0; i < discarded + steps; i++) {
        const std::clock_t before = std::clock();
        require(t2r_step(way.decoder, &token, 1, &logits));
        token = std::max_element(logits, logits + vocabulary) - logits;
        if (i >= discarded) way.milliseconds.push_back(1e3 * static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC);
    }
    way.logits.assign(logits, logits + vocabulary);
}

double at(std::vector<double> sorted, double share) {
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 5) return std::fputs("usage: caches PLUGIN THREADS LENGTH,… GRAPH…\n", stderr), 2;
    std::vector<Way> ways;
    for (int i = 4; i < count; i++)
        for (const bool in_place : {true, false}) open(ways.emplace_back(Way{arguments[i], in_place, nullptr, {}, {}}), arguments[1], std::atoi(arguments[2]));
    t2r_info info;
    require(t2r_get_info(ways[0].decoder, &info, sizeof info));
    std::puts("| tokens read | graph | in place, ms | copied, ms | ratio |\n|---|---|---|---|---|");
    std::istringstream lengths(arguments[3]);
    for (std::string length; std::getline(lengths, length, ',');) {
        std::vector<std::vector<char>> starts;
        for (std::size_t i = 0; i < ways.size(); i += 2) starts.push_back(text(ways[i].decoder, std::stoul(length), info.vocab_size));
        for (std::size_t round = 0; round < rounds; round++)
            for (std::size_t i = 0; i < ways.size(); i++) {
                const std::size_t way = (i + round) % ways.size();
                time_steps(ways[way], starts[way / 2], info.vocab_size);
            }
        for (std::size_t i = 0; i < ways.size(); i += 2) {
            Way &ours = ways[i], &theirs = ways[i + 1];
            if (ours.logits != theirs.logits) return std::fputs("expected the logits of both ways to be equal; received others\n", stderr), 2;
            std::printf("| %s | %s |", length.c_str(), ours.graph);
            for (const Way *way : {&ours, &theirs})
                std::printf(" %.2f (%.2f-%.2f) |", at(way->milliseconds, 0.5), at(way->milliseconds, 0.1), at(way->milliseconds, 0.9));
            std::printf(" %.2f |\n", at(ours.milliseconds, 0.5) / at(theirs.milliseconds, 0.5));
            std::fflush(stdout);
            ours.milliseconds.clear(), theirs.milliseconds.clear();
        }
    }
    for (const Way &way : ways) require(t2r_close(way.decoder));
    return 0;
}
