// fuzz TARGET RUNS SEED FILE...: read damaged copies of files, as strangers make them. Nothing may crash, hang, or ask for
// much memory; that an error has a kind and a line is checked too. With clang, LLVMFuzzerTestOneInput is libFuzzer's.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include "decoder.hpp"
#include "error.hpp"
#include "json.hpp"
#include "npy.hpp"
#include "onnx_file.hpp"
#include "signature.hpp"
#include "tokenizer.hpp"
#include "utf8.hpp"
#include "zip.hpp"

namespace {

using namespace t2r;

const std::string &scratch() {
    // memory where there is some: a disk is a hundred times slower
    static const std::string path = (access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + ("/t2r-fuzz-" + std::to_string(getpid()));
    return path;
}

std::string in_file(const std::string &bytes) {
    std::ofstream(scratch(), std::ios::binary | std::ios::trunc) << bytes;
    return scratch();
}

// Metadata, from the bytes of a graph's file.
void metadata(const std::string &bytes) { signature_of(read_onnx_file(in_file(bytes)).metadata, default_state_bytes); }

// A tokenizer.json, and what it makes of a text.
void tokenizer(const std::string &bytes) {
    Tokenizer made(bytes, 0);
    made.decode(made.encode("Once upon a time, 12 été 日本 <s> 😀\n  it's", true));
    made.decode({0, 1, 2, 300, 5, 77});
}

// Text, with a tokenizer that is good; and tokens, which come one by one.
Tokenizer *good_tokenizer = nullptr;
void text(const std::string &bytes) {
    const Ids ids = good_tokenizer->encode(bytes, true);
    Ids wild;
    for (const char c : bytes) wild.push_back(static_cast<signed char>(c) * 3);
    TextStream stream(std::shared_ptr<Tokenizer>(good_tokenizer, [](Tokenizer *) {}), {});
    std::string joined;
    for (std::size_t i = 0; i < std::min<std::size_t>(wild.size(), 40); i++) joined += stream.feed(wild[i]);
    joined += stream.end();
    if (!is_utf8(good_tokenizer->decode(ids)) || !is_utf8(joined)) std::abort();
}

// A snapshot's archive, arrays and head.
void snapshot(const std::string &bytes) {
    FileBytes file(in_file(bytes), "a snapshot");
    for (const ZipMember &member : read_zip(file, 64)) {
        const std::string content = read_member(file, member);
        if (const auto form = read_npy(content); form && form->header + form->bytes != content.size()) std::abort();
        if (member.name == "t2r.json") Json(content, {65536, 1000, 8});
    }
}

void (*target)(const std::string &) = nullptr;

void run(const std::string &bytes) {
    try {
        target(bytes);
    } catch (const Error &error) {
        if (error.kind == T2R_OK || error.line.rfind("expected ", 0) != 0 || error.line.find('\n') != error.line.npos) std::abort();
    } catch (const JsonError &) {
    } catch (const ZipError &) {
    }
}

std::string read(const char *path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// A few changes at random: bytes, lengths, pieces that are dropped, repeated, or come out of another file.
void mutate(std::string &bytes, const std::vector<std::string> &seeds, std::mt19937_64 &random) {
    static const std::string words[] = {"[", "{", "\"", "null", "-1", "1e999", "\\ud83d", "\xff\xff\xff\xff", std::string(4, '\0'), "\x80\x80\x80\x80\x10", "PK\1\2", "\xED\xA0\x80"};
    const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % std::max<std::size_t>(limit, 1)); };
    for (std::size_t change = below(4) + 1; change > 0; change--) {
        const std::size_t at = below(bytes.size()), length = std::min(bytes.size() - at, below(below(2) ? 8 : 400));
        switch (below(7)) {
        case 0: if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8)); break;
        case 1: if (!bytes.empty()) bytes[at] = static_cast<char>(random()); break;
        case 2: bytes.erase(at, length); break;
        case 3: bytes.insert(at, bytes.substr(below(bytes.size()), length)); break;
        case 4: bytes.insert(at, words[below(std::size(words))]); break;
        case 5: bytes.resize(at); break;
        default: {
            const std::string &other = seeds[below(seeds.size())];
            const std::size_t from = below(other.size());
            bytes.replace(at, length, other.substr(from, below(200)));
        }
        }
    }
}

bool choose(const std::string &name) {
    const std::pair<const char *, void (*)(const std::string &)> targets[] = {
        {"metadata", metadata}, {"tokenizer", tokenizer}, {"text", text}, {"snapshot", snapshot}};
    for (const auto &[known, function] : targets)
        if (name == known) target = function;
    return target != nullptr;
}

}  // namespace

#ifdef T2R_LIBFUZZER  // -DT2R_LIBFUZZER='"metadata"' -fsanitize=fuzzer, and for "text" T2R_FUZZ_TOKENIZER, a file
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    static const bool ready = choose(T2R_LIBFUZZER);
    if (!good_tokenizer && std::getenv("T2R_FUZZ_TOKENIZER")) good_tokenizer = new Tokenizer(read(std::getenv("T2R_FUZZ_TOKENIZER")), 0);
    if (ready) run({reinterpret_cast<const char *>(data), size});
    return 0;
}
#else
int main(int count, char **arguments) {
    if (count < 5 || !choose(arguments[1])) return std::puts("fuzz metadata|tokenizer|text|snapshot RUNS SEED FILE..."), 2;
    std::vector<std::string> seeds;
    for (int i = 4; i < count; i++) seeds.push_back(read(arguments[i]));
    if (target == text) {  // the first file is the tokenizer
        good_tokenizer = new Tokenizer(seeds.front(), 0);
        seeds.erase(seeds.begin());
    }
    std::mt19937_64 random(std::strtoull(arguments[3], nullptr, 10));
    for (const std::string &seed : seeds) run(seed);
    for (long left = std::atol(arguments[2]); left > 0; left--) {
        std::string bytes = seeds[random() % seeds.size()];
        mutate(bytes, seeds, random);
        run(bytes);
    }
    std::remove(scratch().c_str());
    delete good_tokenizer;
    std::puts("good");
    return 0;
}
#endif
