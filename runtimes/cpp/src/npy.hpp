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
    std::size_t bytes;   // of its elements
    std::size_t header;  // bytes before them
};

// The header, as NumPy writes it.
std::string npy_header(Dtype dtype, const Shape &shape);

// The header's content, if as many elements follow it as it declares; else nothing.
std::optional<NpyForm> read_npy(std::string_view file);

}  // namespace t2r
