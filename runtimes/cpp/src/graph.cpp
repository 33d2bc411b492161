#include "graph.hpp"

#include <filesystem>
#include <thread>

#include "error.hpp"
#include "files.hpp"
#include "interface.hpp"
#include "onnx_file.hpp"

#ifdef __linux__
#include <sched.h>
#endif

namespace t2r {

namespace fs = std::filesystem;

namespace {

const std::map<std::string, std::string> role_names = {{"step", "step graph"},
                                                       {"prefill", "prefill graph"},
                                                       {"draft_check", "draft-check graph"},
                                                       {"generate", "generation graph"},
                                                       {"encoder", "encoder graph"}};
constexpr int max_threads = 4096;

// ONNX Runtime counts the machine's cores: threads of a process that may use fewer would wait for each other.
int usable_threads() {
#ifdef __linux__
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) {
        const int usable = CPU_COUNT(&cores);
        if (usable < static_cast<int>(std::thread::hardware_concurrency())) return usable;
    }
#endif
    return 0;
}

void require_weights(const std::string &path, const OnnxFile &file) {
    for (const auto &[name, end] : file.external) {
        if (!is_file_name(name))
            fail(T2R_WEIGHTS, "weights in the graph's own folder", printable(name, 100), "check where this file is from");
        std::error_code error;
        const fs::path place = path_of(path).parent_path() / path_of(name);
        if (!fs::is_regular_file(place, error))
            fail(T2R_WEIGHTS, "the weights " + printable(name, 100) + " beside " + printable(path), "no such file",
                 "copy the files beside it too, under their own names");
        const std::uint64_t bytes = fs::file_size(place, error);
        if (error || bytes < end)
            fail(T2R_WEIGHTS, "at least " + std::to_string(end) + " bytes in the weights " + printable(name, 100),
                 std::to_string(bytes), "copy that file again");
    }
}

Ort::SessionOptions session_options(const Options &wanted, const std::string &role, const Signature &signature) {
    if (wanted.threads < 0 || wanted.threads > max_threads)
        fail(T2R_PROVIDER, "a number of threads from 1 to 4096", number(wanted.threads), "leave it 0 for one a core");
    Ort::SessionOptions options;
    options.SetLogSeverityLevel(ORT_LOGGING_LEVEL_FATAL);  // what goes wrong arrives as an error
    const int threads = wanted.threads ? wanted.threads : usable_threads();
    if (threads) options.SetIntraOpNumThreads(threads);
    if (role == "prefill") {
        // for many rows, products of weights as they lie in the file are as fast: no second copy of them
        if (signature.quantization == "none") options.AddConfigEntry("session.disable_prepacking", "1");
        options.AddConfigEntry("session.force_spinning_stop", "1");  // not in the way of the steps
    }
    return options;
}

}  // namespace

const Ort::Env &ort_env() {
    static const Ort::Env *const env = [] {
        const OrtApi *api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
        if (!api)
            fail(T2R_PROVIDER, "an ONNX Runtime of the interface " + number(ORT_API_VERSION) + " or later",
                 printable(OrtGetApiBase()->GetVersionString()), "put a newer library in its place");
        Ort::InitApi(api);
        return new Ort::Env(ORT_LOGGING_LEVEL_FATAL, "t2r");  // never deleted: sessions may outlive main
    }();
    return *env;
}

std::unique_ptr<Ort::Session> Graph::open(const std::string &path, const std::string &role, Signature &found) const {
    const OnnxFile file = read_onnx_file(path);
    found = signature_of(file.metadata, options.max_state_bytes);
    if (found.role != role)
        fail(T2R_GRAPH, "a " + role_names.at(role), "a " + role_names.at(found.role), "open the step graph that names it");
    found.require_memory(found.batch ? found.batch : 1, options.max_state_bytes);
    require_weights(path, file);
    const Ort::Env &env = ort_env();
    try {
        auto session = std::make_unique<Ort::Session>(env, path_of(path).c_str(), session_options(options, role, found));
        check_interface(found, *session);
        return session;
    } catch (const Ort::Exception &error) {
        const std::string why = error.what();
        if (why.find("Current official support for domain") != why.npos || why.find("Unsupported model IR version") != why.npos)
            fail(T2R_VERSION, "an opset that this ONNX Runtime reads", printable(why), "export the model again, for an older one");
        fail(T2R_GRAPH, "an ONNX graph that ONNX Runtime accepts", printable(why), "export the model again with t2r-export");
    }
}

Graph::Graph(const std::string &path, const Options &options) : options(options) {
    step = open(path, "step", signature);
    for (const auto &[role, name] : signature.graphs) {
        if (role_names.count(role) == 0 || (!options.companions && role != "encoder")) continue;
        const fs::path beside = path_of(path).parent_path() / path_of(name);
        std::error_code error;
        if (!fs::is_regular_file(beside, error))
            fail(T2R_FILE, "the " + role_names.at(role) + " " + printable(name, 100) + " beside " + printable(path), "none",
                 "copy the files beside it too, or open it without companions");
        companions[role].path = beside.u8string();
    }
}

Ort::Session *Graph::companion(const std::string &role) {
    const auto found = companions.find(role);
    if (found == companions.end()) return nullptr;
    Companion &other = found->second;
    std::call_once(other.once, [&] {
        Signature theirs;
        std::unique_ptr<Ort::Session> session = open(other.path, role, theirs);
        if (!signature.is_companion(theirs, role))
            fail(T2R_GRAPH, "in " + printable(other.path) + " the same model as in its step graph", "another", "export both again");
        other.session = std::move(session);
    });
    return other.session.get();
}

}  // namespace t2r
