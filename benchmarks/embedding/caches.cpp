// caches GRAPH PLUGIN THREADS LENGTH…: steps through t2r.h with caches in place and with caches that are copied, after texts of
// these lengths, by turns in one process. PLUGIN is the path of onnxruntime-ep-t2r. Checks that the logits are equal, bit by bit. The
// milliseconds are processor time, which other programs change less; of more threads than one it counts those that wait, too.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
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
    t2r_decoder *decoder = nullptr;
    std::vector<double> milliseconds;
    std::vector<float> logits;
};

t2r_decoder *open(const char *graph, const char *plugin, int threads, bool in_place) {
    // where the CPU may run nodes, libt2r copies caches
    static const char *const anywhere[] = {"session.disable_cpu_ep_fallback", "0"};
    t2r_options options;
    require(t2r_defaults(&options, sizeof options));
    options.threads = threads, options.provider = &plugin, options.provider_count = 1;
    if (!in_place) options.config = anywhere, options.config_count = 2;
    t2r_decoder *decoder;
    require(t2r_open(graph, &options, &decoder));
    return decoder;
}

// Goes on from the text in `start`, greedily.
void time_steps(Way &way, const void *start, std::size_t bytes, std::int64_t vocabulary) {
    std::int64_t token = 5;
    const float *logits = nullptr;
    require(t2r_load_memory(way.decoder, start, bytes, nullptr));
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
    if (count < 5) return std::fputs("usage: caches GRAPH PLUGIN THREADS LENGTH…\n", stderr), 2;
    Way ways[2];
    for (const int way : {0, 1}) ways[way].decoder = open(arguments[1], arguments[2], std::atoi(arguments[3]), way == 0);
    t2r_info info;
    require(t2r_get_info(ways[0].decoder, &info, sizeof info));
    std::puts("| tokens read | in place, ms | copied, ms | ratio |\n|---|---|---|---|");
    for (int i = 4; i < count; i++) {
        std::vector<std::int64_t> text(static_cast<std::size_t>(std::atol(arguments[i])));
        for (std::size_t t = 0; t < text.size(); t++) text[t] = static_cast<std::int64_t>(3 + t * 7919 % static_cast<std::size_t>(info.vocab_size - 3));
        const float *logits;
        const void *start;
        std::size_t bytes;
        require(t2r_reset(ways[0].decoder, 1));
        require(t2r_prefill(ways[0].decoder, text.data(), 1, text.size(), &logits));
        require(t2r_save_memory(ways[0].decoder, -1, &start, &bytes));
        const std::vector<char> snapshot(static_cast<const char *>(start), static_cast<const char *>(start) + bytes);
        for (int round = 0; round < rounds; round++)
            for (const int turn : {0, 1}) time_steps(ways[(round + turn) % 2], snapshot.data(), bytes, info.vocab_size);
        if (ways[0].logits != ways[1].logits) return std::fputs("expected the logits of both ways to be equal; received others\n", stderr), 2;
        std::printf("| %s |", arguments[i]);
        for (const Way &way : ways)
            std::printf(" %.2f (%.2f-%.2f) |", at(way.milliseconds, 0.5), at(way.milliseconds, 0.1), at(way.milliseconds, 0.9));
        std::printf(" %.2f |\n", at(ways[0].milliseconds, 0.5) / at(ways[1].milliseconds, 0.5));
        std::fflush(stdout);
        for (Way &way : ways) way.milliseconds.clear();
    }
    for (const Way &way : ways) require(t2r_close(way.decoder));
    return 0;
}
