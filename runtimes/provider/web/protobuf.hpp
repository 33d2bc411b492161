// The fields of a protobuf message, one after another, from untrusted bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "../src/graph.hpp"

namespace t2r::provider {

[[noreturn]] inline void broken(const std::string &received) {
    throw Refused("an ONNX file", received, "copy it again, or export the model again");
}

// A part of the file.
struct Span {
    char *at, *end;

    std::size_t size() const { return static_cast<std::size_t>(end - at); }
    std::string text(std::size_t most = 1 << 12) const {
        if (size() > most) broken("a text of " + std::to_string(size()) + " bytes");
        return std::string(at, size());
    }
};

inline std::uint64_t take_varint(Span &from) {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (from.at == from.end) broken("a number that is cut off");
        const auto byte = static_cast<unsigned char>(*from.at++);
        value |= static_cast<std::uint64_t>(byte & 127) << shift;
        if (byte < 128) return value;
    }
    broken("a number of more than 10 bytes");
}

struct Field {
    std::uint32_t number, type;  // types: 0, an integer; 1, 8 bytes; 2, bytes; 5, 4 bytes
    std::uint64_t integer;       // of type 0
    Span bytes;                  // of the other types

    Span message() const {
        if (type != 2) broken("a field " + std::to_string(number) + " of another type");
        return bytes;
    }
    std::int64_t whole() const {
        if (type != 0) broken("a field " + std::to_string(number) + " of another type");
        return static_cast<std::int64_t>(integer);
    }
    float real() const {
        float number = 0;
        if (type != 5) broken("a field " + std::to_string(this->number) + " of another type");
        std::memcpy(&number, bytes.at, sizeof number);
        return number;
    }
};

// Calls visit(field) for each field.
template <class Visit> void each_field(Span from, Visit visit) {
    while (from.at != from.end) {
        const std::uint64_t key = take_varint(from);
        Field field{static_cast<std::uint32_t>(key >> 3), static_cast<std::uint32_t>(key & 7), 0, {nullptr, nullptr}};
        if (key >> 3 == 0 || key >> 32) broken("a field without a number");
        std::uint64_t size = 0;
        switch (field.type) {
        case 0: field.integer = take_varint(from); break;
        case 1: size = 8; break;
        case 2: size = take_varint(from); break;
        case 5: size = 4; break;
        default: broken("a field of the type " + std::to_string(field.type));
        }
        if (size > from.size()) broken("a part that is cut off");
        field.bytes = {from.at, from.at + size};
        from.at += size;
        visit(field);
    }
}

// Adds integers, packed into one field or with a field each.
inline void add_integers(const Field &field, Dims &to, std::size_t most) {
    const auto add = [&](std::uint64_t number) {
        if (to.size() == most) broken("more than " + std::to_string(most) + " numbers");
        to.push_back(static_cast<std::int64_t>(number));
    };
    if (field.type == 0) return add(field.integer);
    Span rest = field.message();
    while (rest.at != rest.end) add(take_varint(rest));
}

}  // namespace t2r::provider
