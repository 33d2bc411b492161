// drafts GRAPH PROMPTS TIMES TOKENS THREADS [TEMPERATURE [NGRAM]]: texts of TOKENS tokens through t2r.h, plain and with drafts by
// turns in one process. They continue each line of the file PROMPTS, written TIMES times, so that what follows repeats itself too; with
// NGRAM, no run of so many tokens occurs twice, and all guesses of what followed one shorter are wrong. Checks that the texts are
// equal. The ratio of a line is that of the medians of processor time, which other programs change less.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <t2r.h>
#include <vector>

namespace {

constexpr int turns = 8;  // of each way, after one that is not timed

void require(t2r_kind kind) {
    if (kind == T2R_OK) return;
    std::fprintf(stderr, "%s\n", t2r_error());
    std::exit(2);
}

struct Way {
    t2r_decoder *decoder = nullptr;
    std::vector<double> seconds;
    std::vector<std::int64_t> text;
};

void write(Way &way, const std::vector<std::int64_t> &prompt, std::int64_t tokens, const t2r_sampling &sampling) {
    const std::int64_t *text;
    std::size_t count;
    require(t2r_reset(way.decoder, 1));
    require(t2r_prefill(way.decoder, prompt.data(), 1, prompt.size() - 1, nullptr));
    const std::clock_t before = std::clock();
    require(t2r_generate(way.decoder, &prompt.back(), 1, tokens, &sampling, nullptr, nullptr, &text, &count));
    way.seconds.push_back(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC);
    way.text.assign(text, text + count);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 6) return std::fputs("usage: drafts GRAPH PROMPTS TIMES TOKENS THREADS [TEMPERATURE [NGRAM]]\n", stderr), 2;
    t2r_options options;
    require(t2r_defaults(&options, sizeof options));
    options.threads = std::atoi(arguments[5]);
    Way plain, drafts;
    require(t2r_open(arguments[1], &options, &plain.decoder));
    require(t2r_fork(plain.decoder, &drafts.decoder));
    require(t2r_draft(drafts.decoder, 1));
    t2r_tokenizer *tokenizer;
    require(t2r_open_tokenizer(plain.decoder, &tokenizer));
    t2r_sampling sampling;
    require(t2r_sampling_defaults(nullptr, &sampling, sizeof sampling));
    const std::int64_t none = 0;
    sampling.stop_tokens = &none;  // of none
    sampling.temperature = count > 6 ? std::atof(arguments[6]) : 0;
    if (sampling.temperature > 0) sampling.top_p = 0.95, sampling.seed = 1;
    if (count > 7) sampling.no_repeat_ngram = std::atoi(arguments[7]);
    std::ifstream prompts(arguments[2]);
    std::vector<double> ratios;
    int differ = 0;
    for (std::string line; std::getline(prompts, line);) {
        std::string given = line;
        for (int i = 1; i < std::atoi(arguments[3]); i++) given += " " + line;
        const std::int64_t *tokens;
        std::size_t length;
        require(t2r_encode(tokenizer, given.data(), given.size(), 1, &tokens, &length));
        const std::vector<std::int64_t> prompt(tokens, tokens + length);
        for (Way *way : {&plain, &drafts}) way->seconds.clear();
        for (int turn = 0; turn <= turns; turn++)
            for (const bool first : {true, false}) write((turn % 2 == 0) == first ? plain : drafts, prompt, std::atoi(arguments[4]), sampling);
        for (Way *way : {&plain, &drafts}) way->seconds.erase(way->seconds.begin());
        differ += plain.text != drafts.text;
        ratios.push_back(median(plain.seconds) / median(drafts.seconds));
        std::printf("%.3f %s\n", ratios.back(), line.c_str());
        std::fflush(stdout);
    }
    if (ratios.empty()) return std::fputs("expected a file of lines; received none\n", stderr), 2;
    std::printf("times as fast: median %.3f, least %.3f; %d of %zu texts differ\n", median(ratios), *std::min_element(ratios.begin(), ratios.end()), differ,
                ratios.size());
    require(t2r_close_tokenizer(tokenizer));
    require(t2r_close(drafts.decoder));
    require(t2r_close(plain.decoder));
    return 0;
}
