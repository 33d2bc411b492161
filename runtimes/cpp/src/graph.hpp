// A step graph, opened and checked: the session, what its metadata says, and the companions that lie beside it.
#pragma once

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
    int threads = 0;  // inside an operator; 0: those that are shared, else one a core that this process may use
    bool companions = true;  // use those that lie beside; an encoder always is
    std::int64_t max_state_bytes = default_state_bytes;
    Pairs config;  // of ONNX Runtime's sessions
    std::optional<std::string> provider;  // as ONNX Runtime names it; none: the CPU
    Pairs provider_options;
};

// A file that the caller has in memory, and its name.
struct MemoryFile {
    std::string name;
    std::string_view bytes;
};

using MemoryFiles = std::vector<MemoryFile>;

class Graph {
public:
    // Throws Error: every way in which the file is no step graph of this contract.
    Graph(const std::string &path, const Options &options);
    // The first is the step graph, the others are the companions and the weights that it names. The bytes are read before
    // this returns, and not after.
    Graph(const MemoryFiles &files, const Options &options);

    Ort::Session &session() { return *step; }
    // What the file says of itself, as it stands there, without tokenizers.
    const std::map<std::string, std::string> &metadata() const { return properties; }
    // The graph of that role, opened and checked when it is first used; null where there is none, or none is wanted.
    Ort::Session *companion(const std::string &role);
    bool has(const std::string &role) const { return companions.count(role) > 0; }

    const Options options;
    Signature signature;

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
};

}  // namespace t2r
