#include "zip.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::uint64_t largest = (std::uint64_t{1} << 31) - 1;  // larger numbers are written as zip64
constexpr std::uint32_t elsewhere = 0xFFFFFFFF;
constexpr std::uint32_t header_mark = 0x04034B50, entry_mark = 0x02014B50, end_mark = 0x06054B50, end64_mark = 0x06064B50,
                        locator_mark = 0x07064B50;
constexpr std::uint64_t header_bytes = 30, entry_bytes = 46, end_bytes = 22, end64_bytes = 56, locator_bytes = 20,
                        max_comment = 65535, max_directory = std::uint64_t{1} << 26;

void put(std::string &to, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) to += static_cast<char>(value >> 8 * i & 0xFF);
}

std::uint64_t get(std::string_view from, std::size_t at, int bytes) {
    if (at > from.size() || from.size() - at < static_cast<std::size_t>(bytes)) throw ZipError{"a directory that is cut short"};
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= static_cast<std::uint64_t>(static_cast<unsigned char>(from[at + i])) << 8 * i;
    return value;
}

bool is_ascii(std::string_view name) {
    return std::all_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 128; });
}

struct Directory {
    std::uint64_t count, bytes, offset;
};

// Finds the end record of the archive, before a comment of any length.
Directory find_directory(ByteSource &file) {
    const std::uint64_t size = file.size(), tail = std::min(size, end_bytes + max_comment);
    const std::string bytes = file.text(size - tail, static_cast<std::size_t>(tail));
    for (std::size_t at = bytes.size() < end_bytes ? 0 : bytes.size() - end_bytes + 1; at-- > 0;) {
        if (get(bytes, at, 4) != end_mark || at + end_bytes + get(bytes, at + 20, 2) != bytes.size()) continue;
        Directory found{get(bytes, at + 10, 2), get(bytes, at + 12, 4), get(bytes, at + 16, 4)};
        const std::uint64_t end = size - tail + at;
        if (end >= locator_bytes && get(file.text(end - locator_bytes, 4), 0, 4) == locator_mark) {
            const std::uint64_t place = get(file.text(end - locator_bytes, locator_bytes), 8, 8);
            if (place > end || end - place < end64_bytes) break;
            const std::string end64 = file.text(place, end64_bytes);
            if (get(end64, 0, 4) != end64_mark) break;
            found = {get(end64, 32, 8), get(end64, 40, 8), get(end64, 48, 8)};
        }
        if (found.offset > end || found.bytes > end - found.offset || found.bytes > max_directory) break;
        return found;
    }
    throw ZipError{"no zip archive, or one that is cut short"};
}

// Reads the numbers that do not fit 32 bits from an entry's extra fields.
void read_zip64(std::string_view extra, std::uint64_t &size, std::uint64_t &stored, std::uint64_t &offset) {
    while (extra.size() >= 4) {
        const std::uint64_t kind = get(extra, 0, 2), bytes = get(extra, 2, 2);
        std::string_view field = extra.substr(4, static_cast<std::size_t>(bytes));
        if (kind == 1)
            for (std::uint64_t *number : {&size, &stored, &offset})
                if (*number == elsewhere) {
                    *number = get(field, 0, 8);
                    field.remove_prefix(8);
                }
        extra.remove_prefix(std::min<std::size_t>(extra.size(), 4 + static_cast<std::size_t>(bytes)));
    }
}

// The offset of the member's content, according to its own header.
std::uint64_t content_of(ByteSource &file, std::uint64_t offset, const std::string &name) {
    if (offset > file.size() || file.size() - offset < header_bytes) throw ZipError{"a member outside of the file"};
    const std::string header = file.text(offset, header_bytes);
    const std::uint64_t name_bytes = get(header, 26, 2), begin = offset + header_bytes + name_bytes + get(header, 28, 2);
    if (get(header, 0, 4) != header_mark || get(header, 8, 2) != 0 || name_bytes != name.size() || begin > file.size() ||
        file.text(offset + header_bytes, name.size()) != name)
        throw ZipError{"a member that is not what the directory says"};
    return begin;
}

}  // namespace

std::uint32_t crc32(std::string_view bytes, std::uint32_t before) {
    static const auto table = [] {
        std::array<std::uint32_t, 256> made{};
        for (std::uint32_t i = 0; i < 256; i++) {
            std::uint32_t value = i;
            for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0xEDB88320 : 0);
            made[i] = value;
        }
        return made;
    }();
    std::uint32_t value = ~before;
    for (const char byte : bytes) value = value >> 8 ^ table[(value ^ static_cast<unsigned char>(byte)) & 0xFF];
    return ~value;
}

void ZipWriter::put(std::string_view bytes) {
    write(bytes);
    at += bytes.size();
}

void ZipWriter::add(const std::string &name, const std::vector<std::string_view> &parts) {
    std::uint64_t size = 0;
    std::uint32_t crc = 0;
    for (const std::string_view part : parts) {
        size += part.size();
        crc = crc32(part, crc);
    }
    const std::uint64_t flags = is_ascii(name) ? 0 : 0x800, offset = at;
    std::string common, header, extra;
    for (const std::uint64_t half : {std::uint64_t{45}, flags, std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{33}})
        t2r::put(common, half, 2);
    t2r::put(common, crc, 4);
    t2r::put(header, header_mark, 4);
    header += common;
    t2r::put(header, elsewhere, 4);
    t2r::put(header, elsewhere, 4);
    t2r::put(header, name.size(), 2);
    t2r::put(header, 20, 2);
    header += name;
    t2r::put(header, 1, 2);
    t2r::put(header, 16, 2);
    t2r::put(header, size, 8);
    t2r::put(header, size, 8);
    put(header);
    for (const std::string_view part : parts) put(part);

    if (size > largest) {
        t2r::put(extra, size, 8);
        t2r::put(extra, size, 8);
    }
    if (offset > largest) t2r::put(extra, offset, 8);
    if (!extra.empty()) {
        std::string head;
        t2r::put(head, 1, 2);
        t2r::put(head, extra.size(), 2);
        extra = head + extra;
    }
    t2r::put(directory, entry_mark, 4);
    t2r::put(directory, 0x032D, 2);
    directory += common;
    for (int i = 0; i < 2; i++) t2r::put(directory, size > largest ? elsewhere : size, 4);
    t2r::put(directory, name.size(), 2);
    t2r::put(directory, extra.size(), 2);
    for (int i = 0; i < 3; i++) t2r::put(directory, 0, 2);
    t2r::put(directory, 0x01800000, 4);
    t2r::put(directory, offset > largest ? elsewhere : offset, 4);
    directory += name + extra;
    count++;
}

void ZipWriter::end() {
    const std::uint64_t offset = at, bytes = directory.size();
    std::string tail;
    if (count > 65535 || offset > largest || bytes > largest) {
        t2r::put(tail, end64_mark, 4);
        t2r::put(tail, end64_bytes - 12, 8);
        t2r::put(tail, 45, 2);
        t2r::put(tail, 45, 2);
        t2r::put(tail, 0, 8);
        for (const std::uint64_t number : {count, count, bytes, offset, std::uint64_t{locator_mark}})
            t2r::put(tail, number, number == locator_mark ? 4 : 8);
        t2r::put(tail, 0, 4);
        t2r::put(tail, offset + bytes, 8);
        t2r::put(tail, 1, 4);
    }
    t2r::put(tail, end_mark, 4);
    t2r::put(tail, 0, 4);
    for (int i = 0; i < 2; i++) t2r::put(tail, std::min<std::uint64_t>(count, 65535), 2);
    t2r::put(tail, std::min<std::uint64_t>(bytes, elsewhere), 4);
    t2r::put(tail, std::min<std::uint64_t>(offset, elsewhere), 4);
    t2r::put(tail, 0, 2);
    put(directory);
    put(tail);
}

std::vector<ZipMember> read_zip(ByteSource &file, std::size_t most_members) {
    const Directory found = find_directory(file);
    const std::string bytes = file.text(found.offset, static_cast<std::size_t>(found.bytes));
    std::vector<ZipMember> members;
    std::set<std::string> names;
    std::size_t at = 0;
    while (at < bytes.size()) {
        if (get(bytes, at, 4) != entry_mark) throw ZipError{"a directory that is damaged"};
        std::uint64_t size = get(bytes, at + 24, 4), stored = get(bytes, at + 20, 4), offset = get(bytes, at + 42, 4);
        const auto name_bytes = static_cast<std::size_t>(get(bytes, at + 28, 2)), extra = static_cast<std::size_t>(get(bytes, at + 30, 2)),
                   comment = static_cast<std::size_t>(get(bytes, at + 32, 2));
        if (bytes.size() - at < entry_bytes + name_bytes + extra + comment) throw ZipError{"a directory that is cut short"};
        ZipMember member{bytes.substr(at + entry_bytes, name_bytes), 0, 0, static_cast<std::uint32_t>(get(bytes, at + 16, 4))};
        read_zip64(std::string_view(bytes).substr(at + entry_bytes + name_bytes, extra), size, stored, offset);
        if (get(bytes, at + 10, 2) != 0 || size != stored) throw ZipError{"a member that is compressed"};
        if (members.size() == most_members || !is_utf8(member.name) || !names.insert(member.name).second)
            throw ZipError{"too many members, or a name twice"};
        member.offset = content_of(file, offset, member.name);
        member.size = size;
        if (size > found.offset || member.offset > found.offset - size) throw ZipError{"a member outside of the file"};
        members.push_back(member);
        at += entry_bytes + name_bytes + extra + comment;
    }
    if (members.size() != found.count) throw ZipError{"another number of members than it says"};
    std::vector<ZipMember> sorted = members;
    std::sort(sorted.begin(), sorted.end(), [](const ZipMember &a, const ZipMember &b) { return a.offset < b.offset; });
    for (std::size_t i = 1; i < sorted.size(); i++)
        if (sorted[i].offset - sorted[i - 1].offset < sorted[i - 1].size) throw ZipError{"a member over another"};
    return members;
}

std::string read_member(ByteSource &file, const ZipMember &member) {
    std::string content = file.text(member.offset, static_cast<std::size_t>(member.size));
    if (crc32(content) != member.crc) throw ZipError{"a member that is damaged"};
    return content;
}

}  // namespace t2r
