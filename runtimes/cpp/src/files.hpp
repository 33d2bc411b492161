// Files, read by windows and replaced atomically; and bytes in memory, read like a file.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace t2r {

// A path from UTF-8, on Windows too.
std::filesystem::path path_of(const std::string &path);

// Reads a regular file, or bytes in memory.
class ByteSource {
public:
    // Throws Error of the kind file if it is not a regular file or cannot be read; `what`: what was expected.
    ByteSource(const std::string &path, const char *what);
    // Bytes that must outlive this.
    explicit ByteSource(std::string_view memory);
    std::uint64_t size() const { return bytes; }
    // The bytes must be in the file.
    std::uint8_t byte(std::uint64_t at) {
        if (at - start >= filled) fill(at);
        return seen[static_cast<std::size_t>(at - start)];
    }
    std::string text(std::uint64_t at, std::size_t size);
    void read(std::uint64_t at, void *to, std::size_t size);

private:
    void fill(std::uint64_t at);

    std::unique_ptr<std::FILE, int (*)(std::FILE *)> file;
    std::string path;
    std::uint64_t bytes = 0, start = 0;  // `seen` begins at offset `start`: the window, or all bytes in memory
    std::size_t filled = 0;
    const std::uint8_t *seen = nullptr;
    std::vector<std::uint8_t> window;
};

// Whether this names a file in the graph's own folder: an untrusted graph must not refer to other files.
bool is_file_name(const std::string &name);

// Writes a file beside `path` by `body`, and renames it to `path`. Throws Error of the kind file, and the old file remains.
void replace_file(const std::string &path, const std::function<void(std::FILE *)> &body);

}  // namespace t2r
