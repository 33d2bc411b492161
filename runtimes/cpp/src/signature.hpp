// A graph's parsed metadata (runtimes/CONTRACT.md, "Metadata").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"

namespace t2r {

inline constexpr std::int64_t default_state_bytes = std::int64_t{1} << 31;
inline constexpr std::int64_t default_source = 4096;  // tokens of a source: scores of softmax attention grow with their square
inline constexpr std::int64_t batch_states = 8;  // limit for a whole batch, as a multiple of max_state_bytes

enum class Dtype { float32, float16, int8, int32, int64 };

std::size_t size_of(Dtype dtype);
const char *name_of(Dtype dtype);
std::optional<Dtype> dtype_named(const std::string &name);

// Symbolic dimensions: the batch, a cache's length, a source's length.
enum : std::int64_t { dim_batch = -1, dim_growing = -2, dim_source = -3 };

using Shape = std::vector<std::int64_t>;

struct StateSpec {
    std::string name;
    Dtype dtype;
    Shape shape;  // sizes, dim_batch, and at most one dim_growing (of a constant state: dim_source)
    double initial;
    bool constant;  // an input without an output, constant during a text
    std::string past, present;

    bool grows() const;
    Shape dims(std::int64_t batch, std::int64_t length = 0, std::int64_t source = 1) const;
    // Bytes of its elements, at most 2^61.
    std::int64_t bytes(std::int64_t batch, std::int64_t length = 0, std::int64_t source = 1) const;
};

// Whether a state is the number of each row's adapter.
bool is_adapter(const StateSpec &spec);

// The metadata keys of translators.
struct Source {
    std::vector<std::string> start_states;
    std::int64_t vocab_size = 0, max_source = 0, source_length = 0;  // 0: null
    std::optional<std::string> tokenizer;
    std::vector<std::int64_t> start_tokens, banned_tokens;

    bool operator==(const Source &other) const;
};

struct Signature {
    std::vector<StateSpec> states;  // recurrent states, then constant ones
    std::int64_t vocab_size = 0, batch = 0, max_positions = 0, top_k = 0;  // 0: null
    std::int64_t input_size = 0;                                           // elements of the vectors it reads; 0: it reads tokens
    std::int64_t hidden_size = 0;                                          // elements of the output hidden; 0: there is none
    std::int64_t bos_token = -1;                                           // -1: null
    std::vector<std::int64_t> eos_tokens;
    std::string past_end, checkpoint, quantization, role, layers, target, state_layout, producer;
    std::map<std::string, std::string> graphs;  // role: file name
    std::optional<std::string> tokenizer;
    std::optional<Source> source;
    std::vector<std::string> adapters;          // names of low-rank adapters; the state `adapter` is the number of one, 0 for none
    bool chats = false, has_options = false;    // whether it has a chat template, and t2r.generation
    Sampling sampling;  // defaults if the caller sets nothing
    Beam beam;

    // The most tokens of a text; 0: no limit.
    std::int64_t reach() const { return past_end == "refuse" ? max_positions : 0; }
    // Throws Error of the kind graph if it reads vectors.
    void require_tokens() const;
    // Throws Error of the kind batch.
    void require_batch(std::int64_t wanted) const;
    // Compares states, logits and history of `wanted` sequences with batch_states times `most`. Throws Error of the kind batch.
    void require_memory(std::int64_t wanted, std::int64_t most, std::int64_t source_length = 1) const;
    // Whether `other` fits this graph as its companion of that role.
    bool is_companion(const Signature &other, const std::string &role) const;
};

// Throws Error of the kinds version and metadata.
Signature signature_of(const std::map<std::string, std::string> &metadata, std::int64_t max_state_bytes);

}  // namespace t2r
