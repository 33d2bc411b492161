// Two decoders of one session in two threads: each generates the same texts as alone.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "t2r.h"

namespace {

using Texts = std::vector<std::vector<std::int64_t>>;

int go_on(std::int64_t, void *) { return 1; }

// Generates texts with one decoder, each with another seed; by steps, or with the companions of the graph.
Texts write(t2r_decoder *decoder, bool by_steps) {
    Texts texts;
    t2r_sampling sampling;
    t2r_sampling_defaults(decoder, &sampling, sizeof sampling);
    const std::int64_t prompt[] = {1, 3, 5}, *tokens;
    std::size_t count;
    for (sampling.seed = 0; sampling.seed < 20; sampling.seed++) {
        if (t2r_reset(decoder, 0) || t2r_generate(decoder, prompt, 3, 40, &sampling, by_steps ? go_on : nullptr, nullptr, &tokens, &count)) {
            std::fprintf(stderr, "%s\n", t2r_error());
            std::exit(2);
        }
        texts.emplace_back(tokens, tokens + count);
    }
    return texts;
}

}  // namespace

int main(int count, char **arguments) {
    t2r_decoder *first, *second;
    if (count != 2 || t2r_open(arguments[1], nullptr, &first) || t2r_fork(first, &second)) return 2;
    for (const bool by_steps : {true, false}) {
        const Texts wanted = write(first, by_steps);
        Texts found[2];
        std::thread one([&] { found[0] = write(first, by_steps); }), other([&] { found[1] = write(second, by_steps); });
        one.join();
        other.join();
        if (found[0] != wanted || found[1] != wanted) return std::puts("other texts"), 1;
    }
    // two threads in one decoder: every call either succeeds as alone, or is refused since another is running
    long done = 0, refused = 0;
    const auto use = [&](long *good, long *bad) {
        const std::int64_t token = 1;
        for (int i = 0; i < 200; i++) (t2r_step(first, &token, 1, nullptr) == T2R_OK ? *good : *bad)++;
    };
    long done_too = 0, refused_too = 0;
    t2r_reset(first, 0);
    std::thread one(use, &done, &refused), other(use, &done_too, &refused_too);
    one.join();
    other.join();
    t2r_info info;
    if (t2r_get_info(first, &info, sizeof info) || info.position != done + done_too || done + done_too + refused + refused_too != 400)
        return std::puts("steps are lost"), 1;
    std::puts("good");
    return t2r_close(first) || t2r_close(second);
}
