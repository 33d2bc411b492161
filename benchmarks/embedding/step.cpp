// step GRAPH THREADS TOKEN: a greedy text through t2r.h.
#include <cstdlib>
#include <t2r.h>

#include "protocol.hpp"

static void require(t2r_kind kind) {
    if (kind == T2R_OK) return;
    std::cerr << t2r_error() << "\n";
    std::exit(2);
}

int main(int count, char **arguments) {
    if (count != 4) return std::cerr << "usage: step GRAPH THREADS TOKEN\n", 2;
    t2r_options options;
    require(t2r_defaults(&options, sizeof options));
    options.threads = std::atoi(arguments[2]);
    t2r_decoder *decoder;
    require(t2r_open(arguments[1], &options, &decoder));
    t2r_info info;
    require(t2r_get_info(decoder, &info, sizeof info));
    const int status = serve_greedy(
        std::atoll(arguments[3]), info.vocab_size, [&] { require(t2r_reset(decoder, 1)); },
        [&](std::int64_t token) {
            const float *logits;
            require(t2r_step(decoder, &token, 1, &logits));
            return logits;
        });
    require(t2r_close(decoder));
    return status;
}
