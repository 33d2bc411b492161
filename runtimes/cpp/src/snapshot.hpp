// Snapshots: a decoder's states in a file that all runtimes read (runtimes/contract/snapshots.md).
#pragma once

#include <string>

#include "decoder.hpp"
#include "files.hpp"

namespace t2r {

// token: one that was chosen but not read, or -1. Throws Error of the kinds file and token.
void save_snapshot(const Decoder &decoder, const std::string &path, std::int64_t token);
// The bytes of the file that save_snapshot writes.
std::string snapshot_of(const Decoder &decoder, std::int64_t token);

// Returns the saved token, or -1. Throws Error of the kinds file, snapshot and batch, and the decoder is unchanged.
std::int64_t load_snapshot(Decoder &decoder, const std::string &path);
// The same from bytes, which error messages call `what`.
std::int64_t load_snapshot(Decoder &decoder, ByteSource &source, const std::string &what);

}  // namespace t2r
