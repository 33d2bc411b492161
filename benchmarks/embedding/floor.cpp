// floor GRAPH THREADS TOKEN: the same text with ONNX Runtime alone: two IO bindings that change places, and Session::Run.
// What no program can be faster than. States must have one size and start at zero.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <onnxruntime_cxx_api.h>
#include <vector>

#include "protocol.hpp"

struct State {
    std::string name;
    std::vector<std::int64_t> shape;
    ONNXTensorElementDataType dtype;
    std::vector<std::uint64_t> memory[2];  // eight bytes a number are enough for any dtype
};

int main(int count, char **arguments) try {
    if (count != 4) return std::cerr << "usage: floor GRAPH THREADS TOKEN\n", 2;
    Ort::Env environment(ORT_LOGGING_LEVEL_ERROR);
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(std::atoi(arguments[2]));
    options.SetInterOpNumThreads(1);
    Ort::Session session(environment, arguments[1], options);
    Ort::AllocatorWithDefaultOptions allocator;
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    std::vector<State> states;
    for (std::size_t i = 0; i < session.GetInputCount(); i++) {
        const std::string name = session.GetInputNameAllocated(i, allocator).get();
        if (name.rfind("past_", 0) != 0) continue;
        const Ort::TypeInfo type = session.GetInputTypeInfo(i);
        const auto form = type.GetTensorTypeAndShapeInfo();
        State state{name.substr(5), form.GetShape(), form.GetElementType(), {}};
        std::size_t size = 1;
        for (auto &side : state.shape) size *= static_cast<std::size_t>(side = side < 0 ? 1 : side);
        for (auto &half : state.memory) half.resize(size);
        states.push_back(std::move(state));
    }
    std::int64_t id = 0;
    const std::int64_t one[] = {1};
    std::int64_t vocabulary = 0;
    for (std::size_t i = 0; i < session.GetOutputCount(); i++)
        if (session.GetOutputNameAllocated(i, allocator).get() == std::string("logits"))
            vocabulary = session.GetOutputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape().back();
    const std::int64_t logits_shape[] = {1, vocabulary};
    std::vector<float> logits(static_cast<std::size_t>(vocabulary));
    const Ort::Value input = Ort::Value::CreateTensor<std::int64_t>(memory, &id, 1, one, 1);
    const Ort::Value output = Ort::Value::CreateTensor<float>(memory, logits.data(), logits.size(), logits_shape, 2);
    std::vector<Ort::IoBinding> bindings;
    for (const int past : {0, 1}) {
        Ort::IoBinding &binding = bindings.emplace_back(session);
        binding.BindInput("input_ids", input);
        binding.BindOutput("logits", output);
        for (State &state : states) {
            const auto value = [&](int half) {
                auto &buffer = state.memory[half];
                return Ort::Value::CreateTensor(memory, buffer.data(), buffer.size() * sizeof buffer[0], state.shape.data(),
                                                state.shape.size(), state.dtype);
            };
            binding.BindInput(("past_" + state.name).c_str(), value(past));
            binding.BindOutput(("present_" + state.name).c_str(), value(1 - past));
        }
    }
    const Ort::RunOptions run;
    int turn = 0;
    const auto reset = [&] {
        for (State &state : states) std::memset(state.memory[0].data(), 0, state.memory[0].size() * sizeof state.memory[0][0]);
        turn = 0;
    };
    return serve_greedy(std::atoll(arguments[3]), vocabulary, reset, [&](std::int64_t token) {
        id = token;
        session.Run(run, bindings[static_cast<std::size_t>(turn)]);
        turn = 1 - turn;
        return static_cast<const float *>(logits.data());
    });
} catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 2;
}
