#include "plugins.hpp"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <mutex>

#include "error.hpp"
#include "files.hpp"

struct OrtEpDevice;
struct OrtKeyValuePairs;

namespace t2r {

namespace {

constexpr std::uint32_t first_version = 22;  // first version of OrtApi with these functions

// Functions of OrtApi since that version, at their positions in it, which never change: libt2r can be built with older headers
// and checks the version at run time.
struct PluginApi {
    OrtStatus *(ORT_API_CALL *register_library)(OrtEnv *, const char *name, const ORTCHAR_T *path);
    OrtStatus *(ORT_API_CALL *unregister_library)(OrtEnv *, const char *name);
    OrtStatus *(ORT_API_CALL *devices)(const OrtEnv *, const OrtEpDevice *const **, std::size_t *count);
    OrtStatus *(ORT_API_CALL *append)(OrtSessionOptions *, OrtEnv *, const OrtEpDevice *const *, std::size_t count,
                                      const char *const *keys, const char *const *values, std::size_t options);
};
constexpr std::size_t place = 301;  // index of the first function in OrtApi
using NameOf = const char *(ORT_API_CALL *)(const OrtEpDevice *);
using PairsOf = const OrtKeyValuePairs *(ORT_API_CALL *)(const OrtEpDevice *);
using ValueOf = const char *(ORT_API_CALL *)(const OrtKeyValuePairs *, const char *key);
constexpr std::size_t name_place = 312, pairs_place = 314, value_place = 297;  // of EpDevice_EpName, EpDevice_EpMetadata and GetKeyValue

#if ORT_API_VERSION >= 22
constexpr bool is_at(std::size_t offset, std::size_t function) { return offset == (place + function) * sizeof(void *); }
static_assert(is_at(offsetof(OrtApi, RegisterExecutionProviderLibrary), 0) && is_at(offsetof(OrtApi, GetEpDevices), 2) &&
                  is_at(offsetof(OrtApi, SessionOptionsAppendExecutionProvider_V2), 3) &&
                  is_at(offsetof(OrtApi, EpDevice_EpName), name_place - place) &&
                  is_at(offsetof(OrtApi, EpDevice_EpMetadata), pairs_place - place) &&
                  offsetof(OrtApi, GetKeyValue) == value_place * sizeof(void *),
              "functions of OrtApi at the places that they had in 1.22");
#elif ORT_API_VERSION == 21
static_assert(sizeof(OrtApi) == (place - 16) * sizeof(void *), "functions of OrtApi of 1.21, which 16 others follow before these");
#endif

// The functions of OrtApi from an index on.
template <class Functions> const Functions &functions_at(std::size_t index) {
    const OrtApi *const api = OrtGetApiBase()->GetApi(first_version);
    if (!api)
        fail(T2R_PROVIDER, "an ONNX Runtime of 1.22 or later, which opens execution providers by path",
             printable(OrtGetApiBase()->GetVersionString()), "put a newer library in its place");
    return *reinterpret_cast<const Functions *>(reinterpret_cast<void *const *>(api) + index);
}

// Defaults of our own provider: its number of threads, no QuantizeLinear around products with weights of 4 and 8 bits, and scales in float16
// as they are in the file.
void set_defaults(Ort::SessionOptions &options, int threads) {
    const std::pair<const char *, std::string> defaults[] = {
        {"ep.t2rexecutionprovider.threads", std::to_string(threads)},
        {"session.disable_quant_qdq", "1"},
        {"optimization.disable_specified_optimizers", "ConstantFolding"}};
    for (const auto &[key, value] : defaults)
        if (!options.HasConfigEntry(key)) options.AddConfigEntry(key, value.c_str());
}

std::vector<const OrtEpDevice *> devices(const PluginApi &api, OrtEnv *env) {
    const OrtEpDevice *const *found = nullptr;
    std::size_t count = 0;
    Ort::ThrowOnError(api.devices(env, &found, &count));
    return {found, found + count};
}

// The first device of a library, which is opened once and never closed.
const OrtEpDevice *device_of(const PluginApi &api, OrtEnv *env, const std::string &path) {
    static std::mutex mutex;
    static std::map<std::filesystem::path, const OrtEpDevice *> opened;
    // ONNX Runtime searches for relative paths beside its own library
    const std::filesystem::path file = std::filesystem::absolute(path_of(path));
    const std::lock_guard<std::mutex> lock(mutex);
    const OrtEpDevice *&device = opened[file];
    if (device) return device;
    const auto before = devices(api, env);
    try {
        Ort::ThrowOnError(api.register_library(env, path.c_str(), file.c_str()));
    } catch (const Ort::Exception &error) {
        fail(T2R_PROVIDER, "an execution provider's library in " + printable(path), printable(error.what()),
             "name a plugin of ONNX Runtime, of this system and of its version");
    }
    try {
        for (const OrtEpDevice *const each : devices(api, env))
            if (!device && std::find(before.begin(), before.end(), each) == before.end()) device = each;
    } catch (...) {
        Ort::Status(api.unregister_library(env, path.c_str()));  // so that the next opening can register it
        throw;
    }
    if (device) return device;
    Ort::ThrowOnError(api.unregister_library(env, path.c_str()));
    fail(T2R_PROVIDER, "a device for " + printable(path), "none", "choose an execution provider for what this machine has");
}

bool is_own(const OrtEpDevice *device) { return std::string(functions_at<NameOf>(name_place)(device)) == "T2rExecutionProvider"; }

}  // namespace

bool is_plugin(const std::string &provider) { return provider.find_first_of("/\\") != std::string::npos; }

bool keeps_in_place(const std::string &provider) {
    if (!is_plugin(provider)) return false;
    const OrtEpDevice *const device = device_of(functions_at<PluginApi>(place), ort_env(), provider);
    const char *const said = functions_at<ValueOf>(value_place)(functions_at<PairsOf>(pairs_place)(device), "in_place");
    return is_own(device) && said && std::string(said) == "rows windows";
}

void append_plugin(const std::string &path, const std::vector<std::pair<std::string, std::string>> &provider_options, int threads,
                   Ort::SessionOptions &options) {
    const auto &api = functions_at<PluginApi>(place);
    OrtEnv *const env = ort_env();
    const OrtEpDevice *const device = device_of(api, env, path);
    if (is_own(device)) set_defaults(options, threads);
    std::vector<const char *> keys, values;
    for (const auto &[key, value] : provider_options) keys.push_back(key.c_str()), values.push_back(value.c_str());
    Ort::ThrowOnError(api.append(options, env, &device, 1, keys.data(), values.data(), keys.size()));
}

}  // namespace t2r
