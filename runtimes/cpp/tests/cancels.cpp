// cancels GRAPH: one thread generates texts, another cancels them: each is complete or cancelled, and its tokens are correct.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "t2r.h"

namespace {

constexpr int texts = 60;
constexpr std::int64_t most = 300;

using Tokens = std::vector<std::int64_t>;

t2r_kind write(t2r_decoder *decoder, Tokens &text) {
    t2r_sampling sampling;
    t2r_sampling_defaults(decoder, &sampling, sizeof sampling);
    sampling.seed = 3;
    const std::int64_t prompt[] = {1, 3, 5}, none = 0, *tokens;
    sampling.stop_tokens = &none;
    std::size_t count;
    const t2r_kind kind = t2r_generate(decoder, prompt, 3, most, &sampling, nullptr, nullptr, &tokens, &count);
    text.assign(tokens, tokens + count);
    return kind;
}

}  // namespace

int main(int count, char **arguments) {
    t2r_decoder *decoder;
    Tokens whole, part;
    if (count != 2 || t2r_open(arguments[1], nullptr, &decoder) || write(decoder, whole)) return 2;
    std::atomic<bool> done{false};
    std::thread other([&] {
        while (!done) {
            t2r_cancel(decoder);
            std::this_thread::yield();
        }
    });
    int ended = 0, wrong = 0;
    for (int text = 0; text < texts; text++) {
        t2r_kind kind = t2r_reset(decoder, 0);
        if (kind == T2R_OK) kind = write(decoder, part);
        wrong += kind != T2R_OK && kind != T2R_CANCELLED;
        wrong += !std::equal(part.begin(), part.end(), whole.begin());
        ended += kind == T2R_CANCELLED;
    }
    done = true;
    other.join();
    if (t2r_reset(decoder, 0) || write(decoder, part) || part != whole) wrong++;
    if (wrong || !ended) return std::printf("%d of %d cancelled, %d wrong\n", ended, texts, wrong), 1;
    std::puts("good");
    return t2r_close(decoder);
}
