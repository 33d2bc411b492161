// A step graph, opened and checked: its session, its metadata, and the companions beside it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "files.hpp"
#include "ort.hpp"
#include "signature.hpp"

namespace t2r {

using Pairs = std::vector<std::pair<std::string, std::string>>;  // a key and its value

struct Options {
    int threads = 0;  // inside an operator; 0: the shared ones, else one per core that this process may use
    bool companions = true;  // use those beside the graph; an encoder is always used
    std::int64_t max_state_bytes = default_state_bytes;
    std::int64_t max_source = default_source;  // tokens, besides the graph's own limit
    Pairs config;  // ONNX Runtime's session options
    std::optional<std::string> provider;  // as ONNX Runtime names it; none: the CPU
    Pairs provider_options;
};

// A file of the caller in memory.
struct MemoryFile {
    std::string name;
    std::string_view bytes;
};

using MemoryFiles = std::vector<MemoryFile>;

class Copying;

class Graph {
public:
    // Throws Error if the file is not a step graph of this contract.
    Graph(const std::string &path, const Options &options);
    // The first file is the step graph, the others its companions and their external weights. The bytes are not used after
    // this returns.
    Graph(const MemoryFiles &files, const Options &options);

    Ort::Session &session() { return *step; }
    // The file's metadata, unparsed, without tokenizers.
    const std::map<std::string, std::string> &metadata() const { return properties; }
    // The graph of that role, opened and checked at its first use; null if there is none, or it is not wanted.
    Ort::Session *companion(const std::string &role);
    // What a translator needs to copy; null if a tokenizer is missing, or has parts that are not supported.
    const Copying *copying();
    bool has(const std::string &role) const { return companions.count(role) > 0; }

    const Options options;
    Signature signature;
    bool appends = false;  // whether steps can append to caches in place: our own provider runs all of the step graph
    std::atomic<bool> turns{true};  // whether windows can then be in place: false once the provider has refused it

private:
    struct Companion {
        std::string path;
        std::once_flag once;
        std::unique_ptr<Ort::Session> session;
    };

    struct Opened {
        Signature signature;
        std::map<std::string, std::string> metadata;
        std::unique_ptr<Ort::Session> session;
    };

    Opened open(const std::string &path, const std::string &role) const;
    Opened open(const MemoryFile &file, const std::string &role, const MemoryFiles &beside, std::set<std::string> &used) const;
    template <class MakeSession> Opened open(ByteSource &source, const std::string &role, MakeSession make_session) const;
    void take(Opened opened);
    void require_companion(const Signature &theirs, const std::string &role, const std::string &path) const;

    std::unique_ptr<Ort::Session> step;
    std::map<std::string, std::string> properties;
    std::map<std::string, Companion> companions;
    std::once_flag copying_once;
    std::shared_ptr<const Copying> copies;
};

}  // namespace t2r
