// Zip archives with stored, not compressed members, so a small file cannot expand. They are written as in
// runtimes/contract/snapshots.md: the same members give the same bytes in every language.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "files.hpp"

namespace t2r {

class ZipWriter {
public:
    // `write` is called with the parts of the archive in order.
    explicit ZipWriter(std::function<void(std::string_view)> write) : write(std::move(write)) {}
    // Add a member whose content is the concatenation of these parts.
    void add(const std::string &name, const std::vector<std::string_view> &parts);
    void end();

private:
    void put(std::string_view bytes);

    std::function<void(std::string_view)> write;
    std::uint64_t at = 0, count = 0;
    std::string directory;
};

struct ZipMember {
    std::string name;
    std::uint64_t offset, size;  // of its content
    std::uint32_t crc;
};

// Throws ZipError.
struct ZipError {
    std::string why;
};
std::vector<ZipMember> read_zip(ByteSource &file, std::size_t most_members);

// The member's content, after a check of its CRC-32. Throws ZipError.
std::string read_member(ByteSource &file, const ZipMember &member);

std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);

}  // namespace t2r
