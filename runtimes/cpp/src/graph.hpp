// A step graph, opened and checked: the session, what its metadata says, and the companions that lie beside it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ort.hpp"
#include "signature.hpp"

namespace t2r {

struct Options {
    int threads = 0;  // inside an operator; 0: one a core that this process may use
    bool companions = true;  // use those that lie beside; an encoder always is
    std::int64_t max_state_bytes = default_state_bytes;
};

class Graph {
public:
    // Throws Error: every way in which the file is no step graph of this contract.
    Graph(const std::string &path, const Options &options);

    Ort::Session &session() { return *step; }
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

    std::unique_ptr<Ort::Session> open(const std::string &path, const std::string &role, Signature &found) const;

    std::unique_ptr<Ort::Session> step;
    std::map<std::string, Companion> companions;
};

}  // namespace t2r
