// encode GRAPH TEXT: the tokens of a text's lines, by the tokenizer in a graph.
#include <cstdlib>
#include <fstream>
#include <t2r.h>
#include <vector>

#include "protocol.hpp"

static void require(t2r_kind kind) {
    if (kind == T2R_OK) return;
    std::cerr << t2r_error() << "\n";
    std::exit(2);
}

int main(int count, char **arguments) {
    if (count != 3) return std::cerr << "usage: encode GRAPH TEXT\n", 2;
    std::vector<std::string> lines;
    std::ifstream file(arguments[2], std::ios::binary);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    t2r_decoder *decoder;
    t2r_tokenizer *tokenizer;
    require(t2r_open(arguments[1], nullptr, &decoder));
    require(t2r_open_tokenizer(decoder, &tokenizer));
    const std::int64_t *tokens;
    std::size_t found = 0;
    const auto turn = [&] {
        for (const std::string &line : lines) require(t2r_encode(tokenizer, line.data(), line.size(), 0, &tokens, &found));
    };
    const auto check = [&](long most) {
        for (const std::string &line : lines) {
            require(t2r_encode(tokenizer, line.data(), line.size(), 0, &tokens, &found));
            for (std::size_t i = 0; i < found && most > 0; i++, most--) std::cout << tokens[i] << " ";
        }
    };
    const int status = serve(check, [] {}, turn);
    require(t2r_close_tokenizer(tokenizer));
    require(t2r_close(decoder));
    return status;
}
