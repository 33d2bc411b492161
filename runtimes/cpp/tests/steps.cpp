// steps TOKENIZER TEXT [STOP…]: counts the work of opening a tokenizer, encoding a text, decoding its tokens, and streaming
// them up to a stop text. Prints STEPS and BYTES of each. STEPS: basic blocks executed (instrumented by the compiler), and
// one step per 16 bytes that the C library reads or copies. BYTES: peak heap memory of the call.
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <string>

#include "t2r.h"

extern "C" void *__libc_malloc(std::size_t size);
extern "C" void __libc_free(void *memory);

namespace {

std::uint64_t steps = 0;
std::size_t living = 0, most = 0;

void *taken(void *memory) {
    living += malloc_usable_size(memory);
    most = std::max(most, living);
    return memory;
}

void read_or_moved(std::size_t bytes) { steps += 1 + bytes / 16; }

}  // namespace

extern "C" {
void __sanitizer_cov_trace_pc() { steps++; }

void *malloc(std::size_t size) { return taken(__libc_malloc(size)); }
void free(void *memory) {
    if (memory) living -= malloc_usable_size(memory);
    __libc_free(memory);
}

void *memmove(void *to, const void *from, std::size_t bytes) {
    read_or_moved(bytes);
    auto *out = static_cast<volatile char *>(to);  // volatile: not compiled into a call of memmove
    const auto *in = static_cast<const char *>(from);
    if (out < in) for (std::size_t i = 0; i < bytes; i++) out[i] = in[i];
    else for (std::size_t i = bytes; i-- > 0;) out[i] = in[i];
    return to;
}
void *memcpy(void *to, const void *from, std::size_t bytes) { return memmove(to, from, bytes); }
int memcmp(const void *a, const void *b, std::size_t bytes) {
    const auto *left = static_cast<const unsigned char *>(a), *right = static_cast<const unsigned char *>(b);
    std::size_t i = 0;
    while (i < bytes && left[i] == right[i]) i++;
    read_or_moved(i);
    return i < bytes ? left[i] - right[i] : 0;
}
void *memchr(const void *memory, int byte, std::size_t bytes) {
    const auto *in = static_cast<const unsigned char *>(memory);
    std::size_t i = 0;
    while (i < bytes && in[i] != static_cast<unsigned char>(byte)) i++;
    read_or_moved(i);
    return i < bytes ? const_cast<unsigned char *>(in + i) : nullptr;
}
}

void *operator new(std::size_t size) {
    void *memory = malloc(size);
    return memory ? memory : throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { free(memory); }
void operator delete(void *memory, std::size_t) noexcept { free(memory); }

namespace {

std::string read(const char *path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

template <class F> bool counted(F call) {
    const std::size_t before = living;
    const std::uint64_t first = steps;
    most = living;
    if (call() != T2R_OK) return std::fprintf(stderr, "%s\n", t2r_error()), false;
    std::printf("%llu %zu ", static_cast<unsigned long long>(steps - first), most - before);
    return true;
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 3) return std::fputs("usage: steps TOKENIZER TEXT [STOP…]\n", stderr), 1;
    const std::string json = read(arguments[1]), source = read(arguments[2]);
    t2r_tokenizer *tokenizer;
    t2r_stream *stream;
    const std::int64_t *tokens;
    const char *text;
    std::size_t length, size;
    const bool good = counted([&] { return t2r_make_tokenizer(json.data(), json.size(), 0, &tokenizer); }) &&
                      counted([&] { return t2r_encode(tokenizer, source.data(), source.size(), 1, &tokens, &length); }) &&
                      counted([&] { return t2r_decode(tokenizer, tokens, length, &text, &size); }) &&
                      t2r_open_stream(tokenizer, nullptr, 0, &stream) == T2R_OK &&
                      t2r_stop_at(stream, arguments + 3, static_cast<std::size_t>(count) - 3) == T2R_OK && counted([&] {
                          t2r_kind kind = T2R_OK;
                          for (std::size_t i = 0; i < length && kind == T2R_OK; i++) kind = t2r_feed(stream, tokens[i], &text, &size);
                          return kind;
                      });
    return good ? 0 : 2;
}
