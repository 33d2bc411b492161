#include "graph.hpp"

#include <algorithm>
#include <filesystem>

#include "copies.hpp"
#include "cores.hpp"
#include "error.hpp"
#include "interface.hpp"
#include "log.hpp"
#include "onnx_file.hpp"
#include "plugins.hpp"

namespace t2r {

namespace fs = std::filesystem;

namespace {

const std::map<std::string, std::string> role_names = {{"step", "step graph"},
                                                       {"prefill", "prefill graph"},
                                                       {"draft_check", "draft-check graph"},
                                                       {"encoder", "encoder graph"}};

// Whether to use a companion of this role. An encoder is always used; a draft-check graph only when drafts are asked for.
bool is_wanted(const std::string &role, const Options &options) {
    return role == "encoder" || (role == "prefill" && options.companions);
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

const MemoryFile *find_file(const MemoryFiles &files, const std::string &name) {
    const auto found = std::find_if(files.begin(), files.end(), [&](const MemoryFile &file) { return file.name == name; });
    return found == files.end() ? nullptr : &*found;
}

// The same for a graph in memory. ONNX Runtime copies the weights.
void give_weights(const MemoryFile &graph, const OnnxFile &file, const MemoryFiles &beside, Ort::SessionOptions &options) {
    std::vector<std::basic_string<ORTCHAR_T>> names;
    std::vector<char *> contents;
    std::vector<std::size_t> sizes;
    for (const auto &[name, end] : file.external) {
        const MemoryFile *const found = find_file(beside, name);
        if (!found)
            fail(T2R_WEIGHTS, "the weights " + printable(name, 100) + " of " + printable(graph.name, 100), "no such file among those given",
                 "pass it to t2r_open_memory too");
        if (found->bytes.size() < end)
            fail(T2R_WEIGHTS, "at least " + std::to_string(end) + " bytes in the weights " + printable(name, 100),
                 std::to_string(found->bytes.size()), "read that file again");
        names.push_back(path_of(name).native());
        contents.push_back(const_cast<char *>(found->bytes.data()));  // only read
        sizes.push_back(found->bytes.size());
    }
    if (!names.empty()) options.AddExternalInitializersFromFilesInMemory(names, contents, sizes);
}

void append_provider(const Options &wanted, Ort::SessionOptions &options) {
    try {
        const int threads = wanted.threads ? wanted.threads : shared_threads().value_or(0);
        if (is_plugin(*wanted.provider)) return append_plugin(*wanted.provider, wanted.provider_options, threads, options);
        options.AppendExecutionProvider(*wanted.provider, {wanted.provider_options.begin(), wanted.provider_options.end()});
    } catch (const Ort::Exception &error) {
        fail(T2R_PROVIDER, "an execution provider that this ONNX Runtime has", printable(error.what()),
             "choose another, or link an ONNX Runtime that was built with it");
    }
}

Ort::SessionOptions session_options(const Options &wanted, const std::string &role, const Signature &signature) {
    require_threads(wanted.threads);
    Ort::SessionOptions options;
    options.SetLogSeverityLevel(log_level());  // errors are reported even without a log
    if (wanted.threads == 0 && shared_threads()) options.DisablePerSessionThreads();
    else if (const int threads = wanted.threads ? wanted.threads : usable_threads()) options.SetIntraOpNumThreads(threads);
    if (role == "prefill") {
        // with many rows, prepacked weights are not faster: avoid a second copy of them
        if (signature.quantization == "none") options.AddConfigEntry("session.disable_prepacking", "1");
        options.AddConfigEntry("session.force_spinning_stop", "1");  // spinning threads would slow the steps
    }
    const bool may_fall_back = !wanted.provider || (is_plugin(*wanted.provider) && role != "step");
    if (!may_fall_back) options.AddConfigEntry("session.disable_cpu_ep_fallback", "1");
    for (const auto &[key, value] : wanted.config) options.AddConfigEntry(key.c_str(), value.c_str());
    if (wanted.provider) append_provider(wanted, options);
    return options;
}

}  // namespace

template <class MakeSession> Graph::Opened Graph::open(ByteSource &source, const std::string &role, MakeSession make_session) const {
    OnnxFile file = read_onnx_file(source);
    Signature found = signature_of(file.metadata, options.max_state_bytes);
    if (found.role != role)
        fail(T2R_GRAPH, "a " + role_names.at(role), "a " + role_names.at(found.role), "open the step graph that names it");
    found.require_memory(found.batch ? found.batch : 1, options.max_state_bytes);
    const Ort::Env &env = ort_env();
    try {
        Ort::SessionOptions chosen = session_options(options, role, found);
        std::unique_ptr<Ort::Session> session = make_session(env, file, chosen);
        check_interface(found, *session);
        for (const char *large : {"t2r.tokenizer", "t2r.source_tokenizer"}) file.metadata.erase(large);
        return {std::move(found), std::move(file.metadata), std::move(session)};
    } catch (const Ort::Exception &error) {
        const std::string why = error.what();
        if (why.find("Current official support for domain") != why.npos || why.find("Unsupported model IR version") != why.npos)
            fail(T2R_VERSION, "an opset that this ONNX Runtime reads", printable(why), "export the model again, for an older one");
        if (why.find("fallback to CPU EP has been explicitly disabled") != why.npos)
            fail(T2R_PROVIDER, "every node of the " + role_names.at(role) + " on " + printable(options.provider.value_or("another than the CPU"), 40), printable(why),
                 "export it for this provider, or set session.disable_cpu_ep_fallback to 0");
        if (options.provider && is_plugin(*options.provider) && why.find("::CreateProvider") != why.npos)
            fail(T2R_PROVIDER, "options that the plugin takes", printable(why.substr(why.rfind(" : ") + 3)), "correct them");
        fail(T2R_GRAPH, "an ONNX graph that ONNX Runtime accepts", printable(why), "export the model again with t2r-export");
    }
}

Graph::Opened Graph::open(const std::string &path, const std::string &role) const {
    ByteSource source(path, "an ONNX file");
    return open(source, role, [&](const Ort::Env &env, const OnnxFile &file, Ort::SessionOptions &chosen) {
        require_weights(path, file);
        return std::make_unique<Ort::Session>(env, path_of(path).c_str(), chosen);
    });
}

Graph::Opened Graph::open(const MemoryFile &memory, const std::string &role, const MemoryFiles &beside, std::set<std::string> &used) const {
    ByteSource source(memory.bytes);
    return open(source, role, [&](const Ort::Env &env, const OnnxFile &file, Ort::SessionOptions &chosen) {
        give_weights(memory, file, beside, chosen);
        for (const auto &[name, end] : file.external) used.insert(name);
        return std::make_unique<Ort::Session>(env, memory.bytes.data(), memory.bytes.size(), chosen);
    });
}

void Graph::take(Opened opened) {
    const auto may_fall_back = [](const auto &entry) { return entry.first == "session.disable_cpu_ep_fallback" && entry.second != "1"; };
    appends = options.provider && keeps_in_place(*options.provider) && std::none_of(options.config.begin(), options.config.end(), may_fall_back);
    signature = std::move(opened.signature);
    properties = std::move(opened.metadata);
    step = std::move(opened.session);
}

void Graph::require_companion(const Signature &theirs, const std::string &role, const std::string &path) const {
    if (!signature.is_companion(theirs, role))
        fail(T2R_GRAPH, "in " + printable(path) + " the same model as in its step graph", "another", "export both again");
}

Graph::Graph(const std::string &path, const Options &options) : options(options) {
    take(open(path, "step"));
    for (const auto &[role, name] : signature.graphs) {
        const fs::path beside = path_of(path).parent_path() / path_of(name);
        if (role == "draft_check" && options.companions) companions[role].path = beside.u8string();
        if (!is_wanted(role, options)) continue;
        std::error_code error;
        if (!fs::is_regular_file(beside, error))
            fail(T2R_FILE, "the " + role_names.at(role) + " " + printable(name, 100) + " beside " + printable(path), "none",
                 "copy the files beside it too, or open it without companions");
        companions[role].path = beside.u8string();
    }
}

Graph::Graph(const MemoryFiles &files, const Options &options) : options(options) {
    std::set<std::string> used = {files.front().name};
    take(open(files.front(), "step", files, used));
    for (const auto &[role, name] : signature.graphs) {
        used.insert(name);
        const MemoryFile *const file = find_file(files, name);
        if (!file || !is_wanted(role, options)) continue;
        Opened opened = open(*file, role, files, used);
        require_companion(opened.signature, role, name);
        companions[role].session = std::move(opened.session);
    }
    for (const MemoryFile &file : files)
        if (options.companions && !used.count(file.name))
            fail(T2R_FILE, "files that " + printable(files.front().name, 100) + " or its companions name", printable(file.name, 100),
                 "pass each under the name that it has in a folder");
}

const Copying *Graph::copying() {
    std::call_once(copying_once, [&] {
        if (!signature.source || !signature.tokenizer) return;
        try {
            copies = std::make_shared<const Copying>(signature);
        } catch (const Error &error) {
            if (error.kind != T2R_TOKENIZER) throw;
        }
    });
    return copies.get();
}

Ort::Session *Graph::companion(const std::string &role) {
    const auto found = companions.find(role);
    if (found == companions.end()) return nullptr;
    Companion &other = found->second;
    std::call_once(other.once, [&] {
        if (other.session) return;  // opened from memory
        Opened opened = open(other.path, role);
        require_companion(opened.signature, role, other.path);
        other.session = std::move(opened.session);
    });
    return other.session.get();
}

}  // namespace t2r
