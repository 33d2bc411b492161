// The provider as a WebAssembly module: what runtimes/js/src/module.js calls. A module has one thread, and graphs that share files.
//
// There is no unwinding: what throws calls the imported t2r.fail with the message, which leaves the module by an exception of JavaScript.
// What the call held is lost, so a module is dropped when a graph does not open.
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <typeinfo>

#include "../src/fuse.hpp"
#include "../src/plans.hpp"
#include "onnx_file.hpp"

#define T2R_EXPORTED(name) extern "C" __attribute__((export_name(#name)))

extern "C" __attribute__((import_module("t2r"), import_name("fail"), noreturn)) void t2r_fail(const char *text, std::size_t size);

static constexpr char no_memory[] = "expected memory, received none; close other pages, or use a smaller model or batch";

[[noreturn]] static void fail_without_memory() { t2r_fail(no_memory, sizeof no_memory - 1); }

extern "C" void *__cxa_allocate_exception(std::size_t size) noexcept { return std::malloc(size); }
extern "C" void __cxa_throw(void *thrown, std::type_info *, void (*)(void *)) {
    const char *const text = static_cast<const std::exception *>(thrown)->what();  // all that is thrown here begins with one
    t2r_fail(text, std::strlen(text));
}

void *operator new(std::size_t size, const std::nothrow_t &) noexcept { return std::malloc(size ? size : 1); }
void *operator new[](std::size_t size, const std::nothrow_t &) noexcept { return std::malloc(size ? size : 1); }
void *operator new(std::size_t size) {
    if (void *const made = std::malloc(size ? size : 1)) return made;
    fail_without_memory();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void *memory) noexcept { std::free(memory); }

namespace t2r::provider {

namespace {

std::map<std::string, Bytes> files;  // with external weights

// What JavaScript reads of values: their number; of each its name and the size of it, its type, the number of its dimensions, and these.
using Words = std::vector<std::int32_t>;

void add_value(Words &words, const char *name, std::size_t size, Type type, const Dims &dims) {
    words.insert(words.end(), {static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(name)), static_cast<std::int32_t>(size),
                               static_cast<std::int32_t>(type), static_cast<std::int32_t>(dims.size())});
    for (const std::int64_t dim : dims) words.push_back(static_cast<std::int32_t>(dim));
    words[0]++;
}

Words words_of(const std::vector<ModelValue> &values) {
    Words words{0};
    for (const ModelValue &value : values) add_value(words, value.name.data(), value.name.size(), value.type, value.dims);
    return words;
}

class Session {
public:
    explicit Session(Model given)
        : model(std::move(given)), inputs(words_of(model.inputs)), outputs(words_of(model.outputs)), plans(fused(model.graph), model.weights) {
        Dims shapes;  // whether it can be planned, with dimensions of 1 for those that may be any
        for (const ModelValue &input : model.inputs) {
            add_shape(shapes, input.type, input.dims.size());
            for (const std::int64_t dim : input.dims) shapes.push_back(dim < 0 ? 1 : dim);
        }
        plans.plan_for(std::move(shapes));
    }

    const std::int32_t *values(bool are_outputs) const { return (are_outputs ? outputs : inputs).data(); }

    // `dims`: those of all inputs, one after another; ranks are those of the model. Returns the outputs' values.
    const std::int32_t *plan(const std::int32_t *dims) {
        Dims shapes;
        for (const ModelValue &input : model.inputs) {
            add_shape(shapes, input.type, input.dims.size());
            for (std::size_t i = 0; i < input.dims.size(); i++) shapes.push_back(*dims++);
        }
        current = plans.plan_for(std::move(shapes));
        planned.assign(1, 0);
        for (const ValueId id : current->outputs()) add_value(planned, nullptr, 0, current->value(id).type, current->value(id).dims);
        return planned.data();
    }

    // Runs what `plan` planned last. An output without an address is not kept.
    void run(const void *const *given, void *const *wanted) {
        std::vector<const void *> from = model.addresses;
        std::copy(given, given + model.inputs.size(), from.begin());
        std::vector<void *> to(wanted, wanted + current->outputs().size());
        std::size_t size = 0;
        for (std::size_t i = 0; i < to.size(); i++)
            if (!to[i]) size += bytes_of_output(i);
        if (unwanted.size() < size) unwanted.resize(size);
        char *next = unwanted.data();
        for (std::size_t i = 0; i < to.size(); i++)
            if (!to[i]) to[i] = next, next += bytes_of_output(i);
        current->run(from, to, team, runs, [] { return false; });
    }

    std::size_t operations() const { return current->size(); }

private:
    static void add_shape(Dims &shapes, Type type, std::size_t rank) {
        shapes.push_back(static_cast<std::int64_t>(type)), shapes.push_back(static_cast<std::int64_t>(rank));
    }
    std::size_t bytes_of_output(std::size_t i) const {
        const Value &value = current->value(current->outputs()[i]);
        return (count_of(value.dims) * bytes_of(value.type) + 63) / 64 * 64;
    }

    const Model model;
    const Words inputs, outputs;
    Plans plans;
    std::shared_ptr<const Plan> current;
    Words planned;
    Team team;
    Runs runs;
    std::vector<char> unwanted;  // memory of outputs
};

}  // namespace

T2R_EXPORTED(allocate) void *t2r_allocate(std::size_t size) { return ::operator new(size); }
// For a file, which stays: the C library would round its size up to a power of two.
T2R_EXPORTED(reserve) void *t2r_reserve(std::size_t size) {
    constexpr std::size_t page = 1 << 16;
    const std::size_t found = __builtin_wasm_memory_grow(0, size / page + 1);
    if (found == ~std::size_t{0}) fail_without_memory();
    return reinterpret_cast<void *>(found * page);
}
T2R_EXPORTED(free) void t2r_free(void *memory) { std::free(memory); }
T2R_EXPORTED(add_file) void t2r_add_file(const char *name, std::size_t size, char *bytes, std::size_t count) {
    files[std::string(name, size)] = {bytes, count};
}
T2R_EXPORTED(open) Session *t2r_open(char *bytes, std::size_t size) { return new Session(read_model({bytes, size}, files)); }
T2R_EXPORTED(close) void t2r_close(Session *session) { delete session; }
T2R_EXPORTED(values) const std::int32_t *t2r_values(const Session *session, bool are_outputs) { return session->values(are_outputs); }
T2R_EXPORTED(plan) const std::int32_t *t2r_plan(Session *session, const std::int32_t *dims) { return session->plan(dims); }
T2R_EXPORTED(run) void t2r_run(Session *session, const void *const *inputs, void *const *outputs) { session->run(inputs, outputs); }
T2R_EXPORTED(operations) std::size_t t2r_operations(const Session *session) { return session->operations(); }

}  // namespace t2r::provider
