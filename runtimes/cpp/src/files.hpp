// Files: read a window at a time, and written whole or not at all; and bytes in memory, read as a file is.
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

// A path of UTF-8, on Windows too.
std::filesystem::path path_of(const std::string &path);

// A regular file, or bytes in memory, to be read.
class ByteSource {
public:
    // Throws Error of the kind file: it is none, or cannot be read; `what` says what was wanted.
    ByteSource(const std::string &path, const char *what);
    // Of bytes that stay where they are.
    explicit ByteSource(std::string_view memory);
    std::uint64_t size() const { return bytes; }
    // Both of bytes that lie in the file.
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
    std::uint64_t bytes = 0, start = 0;  // `seen` is what begins at `start`: the window, or all that is in memory
    std::size_t filled = 0;
    const std::uint8_t *seen = nullptr;
    std::vector<std::uint8_t> window;
};

// Whether this names a file in a graph's own folder: a stranger's graph must not lead anywhere else.
bool is_file_name(const std::string &name);

// Writes a file beside `path` by `body`, and lets it take that place. Throws Error of the kind file; what stood there
// then still stands there.
void replace_file(const std::string &path, const std::function<void(std::FILE *)> &body);

}  // namespace t2r
