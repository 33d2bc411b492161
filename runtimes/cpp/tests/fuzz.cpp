// T2R_FUZZ=TARGET fuzz OPTION... FOLDER...: libFuzzer, which mutates the files in the folders. No file may cause a crash, a
// hang, or more memory than four times the file plus 256 MiB; every error must have a kind and a line. T2R_FUZZ_MEMORY
// replaces the 256 MiB by another number of bytes.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <sanitizer/allocator_interface.h>
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

std::size_t memory_bytes = std::size_t{256} << 20;  // in addition to four times the file

const std::string &scratch() {
    // in memory if possible: a disk is a hundred times slower
    static const std::string path = (access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + ("/t2r-fuzz-" + std::to_string(getpid()));
    return path;
}

std::string in_file(const std::string &bytes) {
    std::ofstream(scratch(), std::ios::binary | std::ios::trunc) << bytes;
    return scratch();
}

// Even lengths in memory, where a sanitizer detects reads past the end; odd lengths in a file.
ByteSource opened(const std::string &bytes) {
    return bytes.size() % 2 ? ByteSource(in_file(bytes), "a file") : ByteSource(bytes);
}

// Metadata from the bytes of a graph's file.
void metadata(const std::string &bytes) {
    ByteSource source = opened(bytes);
    signature_of(read_onnx_file(source).metadata, default_state_bytes);
}

// A tokenizer.json, and encoding and decoding with it.
void tokenizer(const std::string &bytes) {
    Tokenizer made(bytes, 0);
    made.decode(made.encode("Once upon a time, 12 été 日本 e\u0323\u0301 한글 ﬁ <s> 😀\n  it's", true));
    made.decode({0, 1, 2, 300, 5, 77});
}

// Text, with a valid tokenizer; and tokens, one by one.
Tokenizer *good_tokenizer = nullptr;
void text(const std::string &bytes) {
    const Ids ids = good_tokenizer->encode(bytes, true);
    TextStream stream(std::shared_ptr<Tokenizer>(good_tokenizer, [](Tokenizer *) {}), {});
    std::string joined;
    for (const char c : bytes.substr(0, 40)) joined += stream.feed(static_cast<signed char>(c) * 3);
    joined += stream.end();
    if (!is_utf8(good_tokenizer->decode(ids)) || !is_utf8(joined)) std::abort();
}

// A snapshot's archive, arrays and head.
void snapshot(const std::string &bytes) {
    ByteSource file = opened(bytes);
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

// ---- Memory: live bytes during one file. The sanitizer reports every allocation and deallocation.
std::atomic<std::size_t> living{0}, most{std::numeric_limits<std::size_t>::max()};

void taken(const volatile void *, std::size_t size) {
    if ((living += size) <= most) return;
    most = std::numeric_limits<std::size_t>::max();  // reporting allocates too
    std::fprintf(stderr, "more memory than four times the file and %zu bytes\n", memory_bytes);
    std::abort();
}

void given_back(const volatile void *memory) {
    if (memory) living -= __sanitizer_get_allocated_size(memory);
}

std::string read(const char *path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int *, char ***) {
    const std::pair<const char *, void (*)(const std::string &)> targets[] = {
        {"metadata", metadata}, {"tokenizer", tokenizer}, {"text", text}, {"snapshot", snapshot}};
    const char *name = std::getenv("T2R_FUZZ"), *file = std::getenv("T2R_FUZZ_TOKENIZER");
    for (const auto &[known, function] : targets)
        if (name && std::string_view(name) == known) target = function;
    if (const char *bytes = std::getenv("T2R_FUZZ_MEMORY")) memory_bytes = std::strtoull(bytes, nullptr, 10);
    if (target == text && file) good_tokenizer = new Tokenizer(read(file), 0);
    if (!target || (target == text && !good_tokenizer)) {
        std::fputs("T2R_FUZZ is metadata, tokenizer, text or snapshot; T2R_FUZZ_TOKENIZER is a file, for text\n", stderr);
        std::exit(2);
    }
    std::atexit([] { std::remove(scratch().c_str()); });
    __sanitizer_install_malloc_and_free_hooks(taken, given_back);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::string bytes(reinterpret_cast<const char *>(data), size);
    most = living + 4 * size + memory_bytes;
    run(bytes);
    most = std::numeric_limits<std::size_t>::max();
    return 0;
}
