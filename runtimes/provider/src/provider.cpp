// The execution provider. It takes a whole step graph if it has an operator for every node, and runs it as one kernel.
//
// ONNX Runtime runs a step's thousand nodes one by one, at a microsecond or more each; here a team of threads runs them
// (plan.hpp, team.hpp), and products with 4- and 8-bit weights run at memory speed (kernels.hpp).
//
// Session options, as ep.t2rexecutionprovider.NAME: threads (0: one per core; by default those of the session's pool).
// Options of a run, by the same names: rows and windows (caches and windows in place, bound as inputs and outputs; see plan.hpp).
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>

#include "fuse.hpp"
#include "ort_graph.hpp"
#include "ort_session.hpp"
#include "plans.hpp"

#if defined(_WIN32)
#define T2R_EXPORTED __declspec(dllexport)
#else
#define T2R_EXPORTED __attribute__((visibility("default")))
#endif

namespace t2r::provider {

namespace {

constexpr const char *provider_name = "T2rExecutionProvider";
constexpr const char *threads_option = "ep.t2rexecutionprovider.threads", *rows_option = "ep.t2rexecutionprovider.rows",
                     *windows_option = "ep.t2rexecutionprovider.windows";
constexpr std::int64_t most_rows = std::int64_t{1} << 31, most_turned = std::int64_t{1} << 62;

// What a device says of this library, for runtimes that keep states in place: a library that does not say so ignores these options.
constexpr const char *in_place_key = "in_place", *in_place_options = "rows windows";

// Converts exceptions to a status of ONNX Runtime; null on success.
template <class Work> OrtStatus *guarded(Work work) noexcept {
    try {
        work();
        return nullptr;
    } catch (const Ort::Exception &error) {
        return Ort::GetApi().CreateStatus(error.GetOrtErrorCode(), error.what());
    } catch (const std::bad_alloc &) {
        return Ort::GetApi().CreateStatus(ORT_FAIL, "expected memory, received none; close other programs, or use a smaller model or batch");
    } catch (const std::exception &error) {
        return Ort::GetApi().CreateStatus(ORT_FAIL, error.what());
    } catch (...) {
        return Ort::GetApi().CreateStatus(ORT_FAIL, "expected the call to go on, received an exception without a text; report it");
    }
}

void require(OrtStatus *status) { Ort::ThrowOnError(status); }

std::mutex refused;
std::string last_refusal;  // why the last refused graph was not taken

std::atomic<std::size_t> last_size{0};  // operations of the plan of the last run
std::atomic<int> last_threads{0};       // of the team of the last run

thread_local const OrtRunOptions *options_of_run = nullptr;  // of the run that this thread is in

// An integer from 0 to `most`.
std::int64_t integer_of(const std::string &said, std::int64_t most, const std::string &what) {
    char *end = nullptr;
    errno = 0;
    const long long number = std::strtoll(said.c_str(), &end, 10);
    if (said.empty() || *end || errno || number < 0 || number > most)
        throw Refused("a number of " + what + " from 0 to " + std::to_string(most), said, "correct the provider's option " + what);
    return number;
}

// What the caller keeps in place.
InPlace in_place_of(const OrtRunOptions *options) {
    const auto number = [&](const char *option, std::int64_t most, const char *what) {
        const char *const said = options ? Ort::GetApi().GetRunConfigEntry(options, option) : nullptr;
        return said ? std::optional(integer_of(said, most, what)) : std::nullopt;
    };
    return {number(rows_option, most_rows, "rows"), number(windows_option, most_turned, "windows")};
}

// A claimed graph, and its plans by the shapes of its inputs.
class Step : public OrtNodeComputeInfo {
public:
    Step(Graph graph, std::vector<std::optional<Given>> weights, std::optional<int> threads)
        : OrtNodeComputeInfo{}, plans(fused(std::move(graph)), std::move(weights)), threads(threads) {
        if (threads) team = team_of(*threads);
        ort_version_supported = ORT_API_VERSION;
        CreateState = [](OrtNodeComputeInfo *self, OrtNodeComputeContext *, void **state) noexcept -> OrtStatus * {
            *state = self;
            return nullptr;
        };
        Compute = [](OrtNodeComputeInfo *self, void *, OrtKernelContext *context) noexcept -> OrtStatus * {
            return guarded([&] { static_cast<Step *>(self)->run(Ort::KernelContext(context)); });
        };
        ReleaseState = [](OrtNodeComputeInfo *, void *) noexcept {};
    }

private:
    void run(const Ort::KernelContext &context) {
        std::call_once(are_known, [&] { read_weights(context); });
        std::vector<const void *> inputs = addresses;
        Dims shapes;
        shapes.reserve(last_numbers);
        for (std::size_t i = 0; i < plans.weights.size(); i++) {
            if (plans.weights[i]) continue;
            const Ort::ConstValue value = context.GetInput(i);
            inputs[i] = value.GetTensorRawData();
            add_shape(value, shapes);
        }
        last_numbers = shapes.size();
        const OrtRunOptions *const options = options_of_run;
        const InPlace in_place = in_place_of(options);
        const std::shared_ptr<const Plan> plan = plan_for(std::move(shapes), in_place);
        std::vector<void *> outputs;
        outputs.reserve(plan->outputs().size());
        for (const ValueId id : plan->outputs()) {
            const Dims &dims = plan->value(id).dims;
            outputs.push_back(context.GetOutput(outputs.size(), dims.data(), dims.size()).GetTensorMutableRawData());
        }
        plan->run(inputs, outputs, *current_team(context), runs, [&] { return options && termination.is_wanted(options); },
                  in_place);
    }

    // A session's weights stay where they are: a step has a thousand of them, and a few hundred other inputs.
    void read_weights(const Ort::KernelContext &context) {
        std::vector<const void *> found(plans.weights.size());
        for (std::size_t i = 0; i < found.size(); i++)
            if (plans.weights[i]) found[i] = context.GetInput(i).GetTensorRawData();
        addresses = std::move(found);
    }

    // Adds the type, the number of dimensions and the dimensions of an input.
    static void add_shape(const Ort::ConstValue &value, Dims &shapes) {
        const auto shape = value.GetTensorTypeAndShapeInfo();
        const std::size_t rank = shape.GetDimensionsCount();
        shapes.push_back(shape.GetElementType()), shapes.push_back(static_cast<std::int64_t>(rank));
        shapes.resize(shapes.size() + rank);
        require(Ort::GetApi().GetDimensions(shape, shapes.data() + shapes.size() - rank, rank));
    }

    std::shared_ptr<Team> current_team(const Ort::KernelContext &context) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!threads) threads = pool_threads(context, usable_cores());
        if (!team || team->is_of_parent()) team = team_of(*threads);
        last_threads = *threads;
        return team;
    }

    std::shared_ptr<const Plan> plan_for(Dims shapes, const InPlace &in_place) {
        const std::lock_guard<std::mutex> lock(mutex);
        auto plan = plans.plan_for(std::move(shapes), in_place);
        last_size = plan->size();
        return plan;
    }

    Plans plans;
    std::once_flag are_known;
    std::vector<const void *> addresses;  // of the weights
    std::atomic<std::size_t> last_numbers{0};
    std::optional<int> threads;  // empty until the first run, if no option gives them
    std::shared_ptr<Team> team;
    Termination termination;
    Runs runs;
    std::mutex mutex;  // of the threads, the team and the plans
};

Given given_of(const Ort::ConstValueInfo &value) {
    const auto [type, dims] = shape_of(value);
    return {type, dims};
}

// Why the graph cannot be planned with symbolic dimensions of 1; empty if it can.
std::optional<std::string> refusal(const Ort::ConstGraph &given) {
    try {
        std::vector<Given> inputs;
        const Graph graph = fused(read_graph(given));
        std::map<std::string, Given> shapes;
        for (const Ort::ConstValueInfo &value : given.GetInputs()) shapes.emplace(value.GetName(), given_of(value));
        for (const Ort::ConstValueInfo &value : given.GetInitializers()) shapes.emplace(value.GetName(), given_of(value));
        for (const std::string &name : graph.inputs) inputs.push_back(shapes.at(name));
        const Plan plan(graph, inputs);
        return std::nullopt;
    } catch (const std::bad_alloc &) {
        throw;  // says nothing about the graph
    } catch (const std::exception &error) {
        return error.what();
    }
}

class Provider : public OrtEp {
public:
    Provider(std::optional<int> threads, const OrtLogger *logger) : OrtEp{}, threads(threads), logger(logger) {
        ort_version_supported = ORT_API_VERSION;
        GetName = [](const OrtEp *) noexcept { return provider_name; };
        GetCapability = [](OrtEp *self, const OrtGraph *graph, OrtEpGraphSupportInfo *found) noexcept -> OrtStatus * {
            return guarded([&] { static_cast<Provider *>(self)->claim(Ort::ConstGraph(graph), found); });
        };
        Compile = [](OrtEp *self, const OrtGraph **graphs, const OrtNode **nodes, std::size_t count,
                     OrtNodeComputeInfo **infos, OrtNode **) noexcept -> OrtStatus * {
            return guarded([&] {
                std::vector<std::unique_ptr<Step>> made;  // ONNX Runtime releases none if one fails
                for (std::size_t i = 0; i < count; i++)
                    made.push_back(static_cast<Provider *>(self)->compiled(Ort::ConstGraph(graphs[i]), Ort::ConstNode(nodes[i])));
                for (std::size_t i = 0; i < count; i++) infos[i] = made[i].release();
            });
        };
        OnRunStart = [](OrtEp *, const OrtRunOptions *options) noexcept -> OrtStatus * {
            options_of_run = options;
            return nullptr;
        };
        OnRunEnd = [](OrtEp *, const OrtRunOptions *, bool) noexcept -> OrtStatus * {
            options_of_run = nullptr;
            return nullptr;
        };
        ReleaseNodeComputeInfos = [](OrtEp *, OrtNodeComputeInfo **infos, std::size_t count) noexcept {
            for (std::size_t i = 0; i < count; i++) delete static_cast<Step *>(infos[i]);
        };
    }

private:
    // Claims all nodes of the graph or none: a part would be no faster.
    void claim(const Ort::ConstGraph &graph, OrtEpGraphSupportInfo *found) {
        const OrtNode *parent = nullptr;
        require(Ort::GetApi().Graph_GetParentNode(graph, &parent));
        const std::vector<Ort::ConstNode> nodes = graph.GetNodes();
        if (parent || nodes.empty()) return;
        if (const auto why = refusal(graph)) {
            {
                const std::lock_guard<std::mutex> lock(refused);
                last_refusal = *why;
            }
            require(Ort::GetApi().Logger_LogMessage(logger, ORT_LOGGING_LEVEL_WARNING, why->c_str(), ORT_FILE, __LINE__, "claim"));
            return;
        }
        std::vector<const OrtNode *> all(nodes.begin(), nodes.end());
        OrtNodeFusionOptions options{};
        options.ort_version_supported = ORT_API_VERSION;
        require(Ort::GetApi().GetEpApi()->EpGraphSupportInfo_AddNodesToFuse(found, all.data(), all.size(), &options));
    }

    std::unique_ptr<Step> compiled(const Ort::ConstGraph &graph, const Ort::ConstNode &fused) const {
        std::vector<std::string> inputs;
        std::vector<std::optional<Given>> weights;
        for (const Ort::ConstValueInfo &value : fused.GetInputs()) {
            inputs.push_back(value.GetName());
            weights.push_back(value.IsConstantInitializer() ? std::optional(given_of(value)) : std::nullopt);
        }
        Graph read = read_graph(graph, &inputs);
        read.outputs.clear();
        for (const Ort::ConstValueInfo &value : fused.GetOutputs()) read.outputs.push_back(value.GetName());
        return std::make_unique<Step>(std::move(read), std::move(weights), threads);
    }

    const std::optional<int> threads;
    const OrtLogger *const logger;
};

std::optional<int> threads_of(const OrtSessionOptions *options) {
    const Ort::ConstSessionOptions session(options);
    if (!session.HasConfigEntry(threads_option)) return std::nullopt;
    const std::int64_t threads = integer_of(session.GetConfigEntry(threads_option), 4096, "threads");
    return threads ? static_cast<int>(threads) : usable_cores();
}

class Factory : public OrtEpFactory {
public:
    Factory() : OrtEpFactory{} {
        ort_version_supported = ORT_API_VERSION;
        GetName = [](const OrtEpFactory *) noexcept { return provider_name; };
        GetVendor = [](const OrtEpFactory *) noexcept { return "t2r"; };
        GetVendorId = [](const OrtEpFactory *) noexcept -> std::uint32_t { return 0; };
        GetVersion = [](const OrtEpFactory *) noexcept { return T2R_PROVIDER_VERSION; };
        GetSupportedDevices = [](OrtEpFactory *self, const OrtHardwareDevice *const *devices, std::size_t count, OrtEpDevice **found,
                                 std::size_t most, std::size_t *number) noexcept -> OrtStatus * {
            return guarded([&] {
                *number = 0;
                Ort::KeyValuePairs metadata;
                metadata.Add(in_place_key, in_place_options);
                for (std::size_t i = 0; i < count && *number < most; i++) {
                    if (Ort::GetApi().HardwareDevice_Type(devices[i]) != OrtHardwareDeviceType_CPU) continue;
                    require(Ort::GetApi().GetEpApi()->CreateEpDevice(self, devices[i], metadata, nullptr, &found[*number]));
                    ++*number;
                }
            });
        };
        CreateEp = [](OrtEpFactory *, const OrtHardwareDevice *const *, const OrtKeyValuePairs *const *, std::size_t,
                      const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **made) noexcept -> OrtStatus * {
            return guarded([&] { *made = new Provider(threads_of(options), logger); });
        };
        ReleaseEp = [](OrtEpFactory *, OrtEp *made) noexcept { delete static_cast<Provider *>(made); };
        IsStreamAware = [](const OrtEpFactory *) noexcept { return false; };
        // states and weights are in CPU memory, which ONNX Runtime allocates
        CreateAllocator = [](OrtEpFactory *, const OrtMemoryInfo *, const OrtKeyValuePairs *, OrtAllocator **made) noexcept -> OrtStatus * {
            *made = nullptr;
            return nullptr;
        };
        ReleaseAllocator = [](OrtEpFactory *, OrtAllocator *) noexcept {};
        CreateDataTransfer = [](OrtEpFactory *, OrtDataTransferImpl **made) noexcept -> OrtStatus * {
            *made = nullptr;
            return nullptr;
        };
    }
};

}  // namespace

}  // namespace t2r::provider

extern "C" T2R_EXPORTED OrtStatus *CreateEpFactories(const char *, const OrtApiBase *base, const OrtLogger *,
                                                     OrtEpFactory **factories, std::size_t most, std::size_t *number) {
    const OrtApi *api = base->GetApi(ORT_API_VERSION);
    if (!api) return base->GetApi(1)->CreateStatus(ORT_FAIL, "expected a newer ONNX Runtime; put a newer library in its place");
    Ort::InitApi(api);
    if (most < 1) return api->CreateStatus(ORT_INVALID_ARGUMENT, "expected room for one factory");
    return t2r::provider::guarded([&] {
        factories[0] = new t2r::provider::Factory;
        *number = 1;
    });
}

// Copies up to `size` bytes of the reason for the last refusal, which ONNX Runtime does not report; returns its whole length.
extern "C" T2R_EXPORTED std::size_t t2r_provider_refusal(char *text, std::size_t size) {
    const std::lock_guard<std::mutex> lock(t2r::provider::refused);
    const std::string &why = t2r::provider::last_refusal;
    why.copy(text, size);
    return why.size();
}

// Number of operations in the plan of the last run.
extern "C" T2R_EXPORTED std::size_t t2r_provider_operations() { return t2r::provider::last_size; }

// Number of threads of the last run.
extern "C" T2R_EXPORTED int t2r_provider_threads() { return t2r::provider::last_threads; }

// Number of cores that this process may use, by the files of control groups under a folder.
extern "C" T2R_EXPORTED int t2r_provider_cores(const char *root) { return t2r::provider::usable_cores(root); }

extern "C" T2R_EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
    delete static_cast<t2r::provider::Factory *>(factory);
    return nullptr;
}
