// A decoder's states as a file that every language's runtime reads: runtimes/contract/snapshots.md.
#pragma once

#include <string>

#include "decoder.hpp"
#include "files.hpp"

namespace t2r {

// token: one that was chosen and has not been read, or -1. Throws Error: of the kinds file and token.
void save_snapshot(const Decoder &decoder, const std::string &path, std::int64_t token);
// The bytes of such a file.
std::string snapshot_of(const Decoder &decoder, std::int64_t token);

// The token that was saved, or -1. Throws Error: of the kinds file and snapshot; the decoder is as before then.
std::int64_t load_snapshot(Decoder &decoder, const std::string &path);
// The same of its bytes, `what` in messages.
std::int64_t load_snapshot(Decoder &decoder, ByteSource &source, const std::string &what);

}  // namespace t2r
