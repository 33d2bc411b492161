// stream GRAPH PROMPT: a story as it is written, piece by piece.
#include <iostream>
#include <t2r.hpp>

int main(int count, char **arguments) try {
    if (count != 3) {
        std::cerr << "usage: stream GRAPH PROMPT\n";
        return 2;
    }
    t2r::Decoder decoder(arguments[1]);
    const t2r::Tokenizer tokenizer(decoder);
    const t2r::Tokens prompt = tokenizer.encode(arguments[2]);
    t2r::Stream stream(tokenizer, prompt);
    t2r_sampling sampling = decoder.sampling();
    sampling.temperature = 0;
    std::cout << arguments[2];
    decoder.generate(prompt, 200, sampling, [&](std::int64_t token) {
        std::cout << stream.feed(token) << std::flush;
        return true;
    });
    std::cout << stream.end() << "\n";
} catch (const t2r::Failed &failed) {
    std::cerr << failed.what() << "\n";
    return 2;
}
