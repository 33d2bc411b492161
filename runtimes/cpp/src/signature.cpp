#include "signature.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "error.hpp"
#include "files.hpp"
#include "history.hpp"
#include "json.hpp"
#include "onnx_file.hpp"

namespace t2r {

namespace {

constexpr std::int64_t contract = 1, max_vocabulary = 1 << 24, max_bytes = std::int64_t{1} << 61, max_source_length = 1 << 20;
constexpr std::size_t max_adapters = 1024, max_adapter_name = 64;
constexpr std::size_t max_special = 1024;  // start tokens or banned tokens
const std::set<std::string> roles = {"step", "prefill", "draft_check", "encoder"};

struct DtypeForm {
    const char *name;
    std::size_t size;
    double most;  // largest initial value
    bool whole;
};
constexpr DtypeForm dtypes[] = {
    {"float32", 4, std::numeric_limits<float>::max(), false},
    {"float16", 2, 65504, false},
    {"int8", 1, std::numeric_limits<std::int8_t>::max(), true},
    {"int32", 4, std::numeric_limits<std::int32_t>::max(), true},
    {"int64", 8, 9007199254740992.0, true},
};

[[noreturn]] void malformed(const std::string &problem) {
    fail(T2R_METADATA, "metadata of the contract's form", printable(problem), "export the model again");
}

void require(bool good, const char *key) {
    if (!good) malformed(std::string("a bad value of ") + key);
}

// Reads the metadata by key.
class Keys {
public:
    explicit Keys(const std::map<std::string, std::string> &metadata) : metadata(metadata) {}

    bool has(const char *key) const { return metadata.count(std::string("t2r.") + key) > 0; }

    const std::string &text(const char *key) const {
        const auto found = metadata.find(std::string("t2r.") + key);
        if (found == metadata.end())
            fail(T2R_METADATA, std::string("the metadata key t2r.") + key, "a graph without it",
                 "export the model again with t2r-export");
        return found->second;
    }

    // Calls read(value) with the key's value.
    template <class F> auto with(const char *key, F read) const {
        const std::string &source = text(key);
        const JsonLimits limits{max_metadata_bytes};  // one value may be all the metadata
        try {
            const Json json(source, limits);
            return read(json.root());
        } catch (const JsonError &error) {
            fail(T2R_METADATA, std::string("JSON of the contract's form in the metadata key t2r.") + key,
                 printable(error.what), "export the model again");
        }
    }

    std::string string(const char *key) const {
        return with(key, [](Json::Value value) { return std::string(value.string()); });
    }

    std::optional<std::string> tokenizer(const char *key) const {
        return with(key, [](Json::Value value) {
            return value.is_null() ? std::nullopt : std::optional<std::string>(value.string());
        });
    }

    // A positive number, or 0 for null.
    std::int64_t count(const char *key) const {
        const std::int64_t value = with(key, [](Json::Value found) -> std::int64_t {
            if (found.is_null()) return 0;
            return found.integer() > 0 ? found.integer() : -1;
        });
        require(value >= 0, key);
        return value;
    }

    // The elements of a vector; 0 if the key is absent.
    std::int64_t size(const char *key) const {
        if (!has(key)) return 0;
        const std::int64_t value = count(key);
        require(value > 0 && value <= max_vocabulary, key);
        return value;
    }

    std::vector<std::int64_t> tokens(const char *key, std::int64_t vocabulary) const {
        std::vector<std::int64_t> found;
        with(key, [&](Json::Value value) { value.each([&](Json::Value token) { found.push_back(token.integer()); }); });
        require(std::all_of(found.begin(), found.end(), [&](std::int64_t t) { return t >= 0 && t < vocabulary; }), key);
        return found;
    }

private:
    const std::map<std::string, std::string> &metadata;
};

StateSpec read_state(Json::Value value, bool constant) {
    StateSpec spec;
    spec.name = value.at("name").string();
    const std::optional<Dtype> dtype = dtype_named(std::string(value.at("dtype").string()));
    std::size_t free = 0;
    bool good = dtype && !spec.name.empty() && value.at("constant").boolean() == constant && value.size() == 5;
    if (!good) malformed("the state " + spec.name);
    spec.dtype = *dtype;
    value.at("shape").each([&](Json::Value dim) {
        if (spec.shape.empty()) {  // the first dimension is the batch
            good = good && dim.is(Json::Type::string) && dim.string() == "B";
            spec.shape.push_back(dim_batch);
        } else if (dim.is(Json::Type::number)) {
            spec.shape.push_back(dim.integer());
            good = good && spec.shape.back() > 0;
        } else {
            good = good && dim.string() == (constant ? "M" : "T") && ++free == 1;
            spec.shape.push_back(constant ? dim_source : dim_growing);
        }
    });
    spec.initial = value.at("initial").real();
    spec.constant = constant;
    good = good && !spec.shape.empty() && spec.shape.size() <= 16 && (!constant || spec.name.rfind("source_", 0) == 0);
    const DtypeForm &form = dtypes[static_cast<int>(spec.dtype)];
    if (!good || std::abs(spec.initial) > form.most || (form.whole && spec.initial != std::floor(spec.initial)))
        malformed("the state " + spec.name);
    spec.past = constant ? spec.name : "past_" + spec.name;
    spec.present = constant ? "" : "present_" + spec.name;
    return spec;
}

void read_states(const Keys &keys, const char *key, bool constant, std::vector<StateSpec> &states) {
    keys.with(key, [&](Json::Value value) {
        value.each([&](Json::Value state) { states.push_back(read_state(state, constant)); });
    });
}

void require_bounded(const std::vector<StateSpec> &states, std::int64_t most) {
    std::int64_t total = 0;
    const StateSpec *largest = nullptr;
    for (const StateSpec &spec : states) {
        const std::int64_t bytes = spec.bytes(1, 1);
        total = std::min(max_bytes, total + bytes);
        if (!largest || bytes > largest->bytes(1, 1)) largest = &spec;
    }
    if (total > std::min(most, max_bytes - 1))  // a sum that is max_bytes is too large to be counted
        fail(T2R_METADATA, "states of at most " + number(most) + " bytes a sequence",
             number(total) + " bytes, " + printable(largest->name, 50) + " alone " + number(largest->bytes(1, 1)),
             "check where this file is from, or raise max_state_bytes");
}

bool is_past_end(const std::string &text) {
    if (text == "refuse" || text == "clamp") return true;
    const bool digits = std::all_of(text.begin() + std::min<std::size_t>(5, text.size()), text.end(),
                                    [](char c) { return c >= '0' && c <= '9'; });
    return text.rfind("wrap:", 0) == 0 && digits && text.size() >= 6 && text.size() <= 14 && text[5] != '0';
}

// The names of adapters, and whether there is the state that chooses one.
void read_adapters(const Keys &keys, Signature &made) {
    if (!keys.has("adapters")) return;
    keys.with("adapters", [&](Json::Value value) {
        value.each([&](Json::Value name) { made.adapters.emplace_back(name.string()); });
    });
    const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const std::set<std::string> different(made.adapters.begin(), made.adapters.end());
    bool good = !different.empty() && different.size() == made.adapters.size() && different.size() <= max_adapters;
    for (const std::string &name : made.adapters)
        good = good && name.size() <= max_adapter_name && name.find_first_of(letters) == 0 &&
               name.find_first_not_of(letters + "._-") == std::string::npos;
    good = good && std::any_of(made.states.begin(), made.states.end(), is_adapter);
    require(good, "adapters");
}

Source read_source(const Keys &keys, const Signature &signature) {
    Source source;
    source.vocab_size = keys.count("source_vocab_size");
    require(source.vocab_size > 0 && source.vocab_size <= max_vocabulary, "source_vocab_size");
    source.max_source = keys.count("max_source");
    source.source_length = keys.count("source_length");
    // every source is padded to it, so it bounds what a batch of them takes
    require(source.source_length == 0 || (source.max_source > 0 && source.max_source <= source.source_length &&
                                          source.source_length <= max_source_length),
            "source_length");
    source.tokenizer = keys.tokenizer("source_tokenizer");
    source.start_tokens = keys.tokens("start_tokens", signature.vocab_size);
    require(!source.start_tokens.empty() && source.start_tokens.size() <= max_special, "start_tokens");
    source.banned_tokens = keys.tokens("banned_tokens", signature.vocab_size);
    require(source.banned_tokens.size() <= max_special, "banned_tokens");
    keys.with("start_states", [&](Json::Value value) {
        value.each([&](Json::Value name) { source.start_states.emplace_back(name.string()); });
    });
    std::set<std::string> names;
    for (const std::string &name : source.start_states)
        require(names.insert(name).second && std::any_of(signature.states.begin(), signature.states.end(),
                                                         [&](const StateSpec &spec) { return !spec.constant && spec.name == name; }),
                "start_states");
    return source;
}

}  // namespace

std::size_t size_of(Dtype dtype) { return dtypes[static_cast<int>(dtype)].size; }
const char *name_of(Dtype dtype) { return dtypes[static_cast<int>(dtype)].name; }

std::optional<Dtype> dtype_named(const std::string &name) {
    for (std::size_t i = 0; i < std::size(dtypes); i++)
        if (name == dtypes[i].name) return static_cast<Dtype>(i);
    return std::nullopt;
}

bool is_adapter(const StateSpec &spec) {
    return spec.name == "adapter" && spec.dtype == Dtype::int32 && spec.shape == Shape{dim_batch} && spec.initial == 0 && !spec.constant;
}

bool StateSpec::grows() const { return std::find(shape.begin(), shape.end(), dim_growing) != shape.end(); }

Shape StateSpec::dims(std::int64_t batch, std::int64_t length, std::int64_t source) const {
    Shape made = shape;
    for (std::int64_t &dim : made) dim = dim == dim_batch ? batch : dim == dim_growing ? length : dim == dim_source ? source : dim;
    return made;
}

std::int64_t StateSpec::bytes(std::int64_t batch, std::int64_t length, std::int64_t source) const {
    auto bytes = static_cast<std::int64_t>(size_of(dtype));
    const Shape all = dims(batch, length, source);
    if (std::find(all.begin(), all.end(), 0) != all.end()) return 0;
    for (const std::int64_t dim : all) bytes = bytes > max_bytes / dim ? max_bytes : bytes * dim;
    return bytes;
}

bool Source::operator==(const Source &other) const {
    return start_states == other.start_states && vocab_size == other.vocab_size && max_source == other.max_source &&
           source_length == other.source_length && start_tokens == other.start_tokens && banned_tokens == other.banned_tokens;
}

void Signature::require_tokens() const {
    if (input_size)
        fail(T2R_GRAPH, "a graph that reads token ids", "one that reads vectors of " + number(input_size) + " elements (inputs_embeds)",
             "read vectors with t2r_read_vectors, or export a graph of tokens");
}

void Signature::require_batch(std::int64_t wanted) const {
    if (wanted >= 1 && (batch == 0 || wanted == batch)) return;
    if (batch == 0) fail(T2R_BATCH, "a batch of at least 1", number(wanted), "choose another");
    fail(T2R_BATCH, "a batch of " + number(batch) + ", for which the graph was exported", number(wanted),
         "export the model without a fixed batch");
}

void Signature::require_memory(std::int64_t wanted, std::int64_t most, std::int64_t source_length) const {
    // a sum that is max_bytes is too large to be counted
    const std::int64_t limit = most > max_bytes / batch_states ? max_bytes - 1 : most * batch_states;
    const std::int64_t row = 4 * (vocab_size + input_size + static_cast<std::int64_t>(History::first));
    std::int64_t total = wanted > max_bytes / row ? max_bytes : wanted * row;
    for (const StateSpec &spec : states) total = std::min(max_bytes, total + spec.bytes(wanted, 0, source_length));
    if (total > limit)
        fail(T2R_BATCH, "states of at most " + number(limit) + " bytes", number(total) + " bytes",
             source_length > 1 ? "choose a smaller batch or shorter sources" : "choose a smaller batch");
}

bool Signature::is_companion(const Signature &other, const std::string &wanted) const {
    const auto same = [](const StateSpec &a, const StateSpec &b) {
        return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.initial == b.initial && a.constant == b.constant;
    };
    return other.role == wanted && std::equal(states.begin(), states.end(), other.states.begin(), other.states.end(), same) &&
           vocab_size == other.vocab_size && batch == other.batch && max_positions == other.max_positions &&
           other.top_k == top_k && input_size == other.input_size && bos_token == other.bos_token && eos_tokens == other.eos_tokens &&
           past_end == other.past_end && checkpoint == other.checkpoint && quantization == other.quantization &&
           layers == other.layers && adapters == other.adapters && target == other.target && state_layout == other.state_layout &&
           other.hidden_size == (wanted == "encoder" ? 0 : hidden_size) && !other.chats && !other.has_options &&
           producer == other.producer && other.graphs.empty() && !other.tokenizer && source == other.source &&
           !(other.source && other.source->tokenizer);
}

Signature signature_of(const std::map<std::string, std::string> &metadata, std::int64_t max_state_bytes) {
    const Keys keys(metadata);
    if (!keys.has("contract"))
        fail(T2R_METADATA, "a step graph with t2r metadata", "a graph without the key t2r.contract",
             "export the model with t2r-export");
    const std::int64_t version =
        keys.with("contract", [](Json::Value value) -> std::int64_t { return value.is_integer() ? value.integer() : -1; });
    if (version != contract)
        fail(T2R_VERSION, "contract version 1", "version " + printable(keys.text("contract"), 40),
             "export the model again, or use the runtime of that version");
    Signature made;
    made.vocab_size = keys.count("vocab_size");
    require(made.vocab_size > 0 && made.vocab_size <= max_vocabulary, "vocab_size");
    made.batch = keys.count("batch");
    made.max_positions = keys.count("max_positions");
    made.top_k = keys.count("top_k");
    require(made.top_k <= made.vocab_size, "top_k");
    made.input_size = keys.size("input_size");
    made.hidden_size = keys.size("hidden_size");
    made.bos_token = keys.with("bos_token", [](Json::Value value) -> std::int64_t { return value.is_null() ? -1 : value.integer(); });
    require(made.bos_token >= -1 && made.bos_token < made.vocab_size, "bos_token");
    made.eos_tokens = keys.tokens("eos_tokens", made.vocab_size);
    made.past_end = keys.string("past_end");
    require(is_past_end(made.past_end), "past_end");
    made.checkpoint = keys.string("checkpoint_sha256");
    made.quantization = keys.string("quantization");
    made.target = keys.string("target");
    made.producer = keys.string("producer");
    made.state_layout = keys.text("state_layout");
    made.layers = keys.text("layers");
    keys.with("layers", [](Json::Value value) { value.each([](Json::Value layer) { require(layer.is(Json::Type::object), "layers"); }); });
    made.role = keys.string("role");
    require(roles.count(made.role) > 0, "role");
    made.tokenizer = keys.tokenizer("tokenizer");
    keys.with("graphs", [&](Json::Value value) {
        value.each_pair([&](std::string_view role, Json::Value file) { made.graphs[std::string(role)] = file.string(); });
    });
    require(made.role == "step" || made.graphs.empty(), "graphs");
    for (const auto &[role, file] : made.graphs)
        if (!is_file_name(file))
            fail(T2R_METADATA, "companions in the graph's own folder", printable(file, 100), "check where this file is from");
    read_states(keys, "states", false, made.states);
    if (keys.has("source_states")) {
        read_states(keys, "source_states", true, made.states);
        made.source = read_source(keys, made);
    } else {
        require(made.role != "encoder", "role");
    }
    read_adapters(keys, made);
    made.chats = keys.has("chat_template") && !keys.with("chat_template", [](Json::Value value) { return value.is_null(); });
    made.has_options = keys.has("generation");
    if (made.has_options) keys.with("generation", [&](Json::Value value) {
            try {
                read_generation(value, made.source.has_value(), made.sampling, made.beam);
            } catch (const Error &error) {
                malformed("a bad value of t2r.generation: " + error.line);
            }
        });
    std::set<std::string> names;
    for (const StateSpec &spec : made.states) require(names.insert(spec.name).second, "states");
    require_bounded(made.states, max_state_bytes);
    return made;
}

}  // namespace t2r
