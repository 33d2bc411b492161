// What a runtime needs of a graph's file before anything opens it: its metadata, and the names of its external weights.
// Read from the bytes (protobuf, ONNX's ModelProto), a window at a time: weights are skipped, never read.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "files.hpp"

namespace t2r {

struct OnnxFile {
    std::map<std::string, std::string> metadata;  // metadata_props
    std::map<std::string, std::uint64_t> external;  // the files that hold weights, and how long each must be
};

inline constexpr std::size_t max_metadata_bytes = std::size_t{1} << 26;

// Throws Error: of the kind file, graph (not ONNX, or cut short) or metadata (too much of it).
OnnxFile read_onnx_file(ByteSource &file);

}  // namespace t2r
