// Reads a graph's metadata and the names of its external weights before ONNX Runtime opens it. Parses the bytes (protobuf,
// ONNX's ModelProto) by windows; weights are skipped, never read.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "files.hpp"

namespace t2r {

struct OnnxFile {
    std::map<std::string, std::string> metadata;  // metadata_props
    std::map<std::string, std::uint64_t> external;  // files with weights, and the least size of each in bytes
};

inline constexpr std::size_t max_metadata_bytes = std::size_t{1} << 26;

// Throws Error: of the kind file, graph (not ONNX, or truncated) or metadata (too large).
OnnxFile read_onnx_file(ByteSource &file);

}  // namespace t2r
