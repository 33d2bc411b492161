#include "files.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>

#include "error.hpp"
#include "utf8.hpp"

#ifndef _WIN32
#include <unistd.h>
#endif

namespace t2r {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t window_bytes = 1 << 16;

std::FILE *open_file(const fs::path &path, bool writes) {
#ifdef _WIN32
    return _wfopen(path.c_str(), writes ? L"wbx" : L"rb");
#else
    return std::fopen(path.c_str(), writes ? "wbx" : "rb");
#endif
}

bool seek(std::FILE *file, std::uint64_t at) {
#ifdef _WIN32
    return _fseeki64(file, static_cast<long long>(at), SEEK_SET) == 0;
#else
    return fseeko(file, static_cast<off_t>(at), SEEK_SET) == 0;
#endif
}

[[noreturn]] void unwritable(const std::string &path, const std::string &why) {
    fail(T2R_FILE, "to be able to write " + printable(path), printable(why), "choose another place, or make room there");
}

}  // namespace

fs::path path_of(const std::string &path) {
#ifdef __cpp_char8_t
    return fs::path(std::u8string(path.begin(), path.end()));
#else
    return fs::u8path(path);
#endif
}

ByteSource::ByteSource(const std::string &path, const char *what) : file(nullptr, std::fclose), path(path) {
    std::error_code error;
    const fs::path place = path_of(path);
    const fs::file_status status = fs::status(place, error);
    if (!fs::is_regular_file(status)) {
        const bool there = !error && fs::exists(status);
        const char *why = there ? ", which is not a file" : ", which does not exist";
        fail(T2R_FILE, what, printable(path) + why, "check the path");
    }
    bytes = fs::file_size(place, error);
    if (!error) file.reset(open_file(place, false));
    if (!file) fail(T2R_FILE, what, printable(path) + ", which cannot be read", "check its permissions");
    window.resize(window_bytes);
    seen = window.data();
}

ByteSource::ByteSource(std::string_view memory)
    : file(nullptr, std::fclose), bytes(memory.size()), filled(memory.size()), seen(reinterpret_cast<const std::uint8_t *>(memory.data())) {}

void ByteSource::read(std::uint64_t at, void *to, std::size_t size) {
    if (!file) {
        std::memcpy(to, seen + at, size);
        return;
    }
    if (!seek(file.get(), at) || std::fread(to, 1, size, file.get()) != size)
        fail(T2R_FILE, "to be able to read " + printable(path), "an error of the disk, or a file that changes", "try again");
}

void ByteSource::fill(std::uint64_t at) {
    const std::size_t size = static_cast<std::size_t>(std::min<std::uint64_t>(window_bytes, bytes - at));
    filled = 0;
    read(at, window.data(), size);
    start = at;
    filled = size;
}

std::string ByteSource::text(std::uint64_t at, std::size_t size) {
    std::string found(size, '\0');
    if (at >= start && at - start <= filled && size <= filled - (at - start)) {
        if (size) std::memcpy(found.data(), seen + (at - start), size);
    } else {
        read(at, found.data(), size);
    }
    return found;
}

bool is_file_name(const std::string &name) {
    const auto bad = [](unsigned char c) { return c < 32 || c == 127 || c == '/' || c == '\\' || c == ':'; };
    return !name.empty() && name != "." && name != ".." && is_utf8(name) && std::none_of(name.begin(), name.end(), bad);
}

void replace_file(const std::string &path, const std::function<void(std::FILE *)> &body) {
    const fs::path place = path_of(path);
    std::error_code error;
    const fs::file_status status = fs::symlink_status(place, error);
    if (!fs::status_known(status)) unwritable(path, error.message());
    if (fs::exists(status) && !fs::is_regular_file(status))
        fail(T2R_FILE, "a regular file at " + printable(path) + ", or nothing", "something else", "name another file");
    if (fs::exists(status) && (status.permissions() & fs::perms(0222)) == fs::perms::none)
        fail(T2R_FILE, "a file that may be written at " + printable(path), "a read-only one", "name another file");
    static std::atomic<unsigned> count{std::random_device{}()};
    fs::path part = place;
    part += ".";
    part += std::to_string(++count) + ".part";
    std::unique_ptr<std::FILE, int (*)(std::FILE *)> file(open_file(part, true), std::fclose);
    if (!file) unwritable(path, std::strerror(errno));
    const auto close = [&] {
        bool good = std::fflush(file.get()) == 0 && !std::ferror(file.get());
#ifndef _WIN32
        good = good && fsync(fileno(file.get())) == 0;
#endif
        return std::fclose(file.release()) == 0 && good;
    };
    try {
        body(file.get());
        if (!close()) unwritable(path, std::strerror(errno));
        error.clear();
        if (fs::exists(status)) fs::permissions(part, status.permissions(), error);  // else others could read what they could not
        if (!error) fs::rename(part, place, error);
        if (error) unwritable(path, error.message());
    } catch (...) {
        file.reset();
        fs::remove(part, error);
        throw;
    }
}

}  // namespace t2r
