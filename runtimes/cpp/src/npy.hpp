// One array as an .npy file of version 1.0, in row-major order, little-endian.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "signature.hpp"

namespace t2r {

struct NpyForm {
    Dtype dtype;
    Shape shape;
    std::size_t bytes;   // of its numbers
    std::size_t header;  // bytes before them
};

// The header as numpy writes it.
std::string npy_header(Dtype dtype, const Shape &shape);

// The form in the header at the front of `file`, which has as many numbers behind it as that says; else nothing.
std::optional<NpyForm> read_npy(std::string_view file);

}  // namespace t2r
