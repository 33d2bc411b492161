#include "states.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "error.hpp"
#include "half.hpp"
#include "interface.hpp"
#include "plugins.hpp"

namespace t2r {

namespace {

constexpr std::size_t line = 64;
constexpr std::int64_t least_room = 64;  // tokens

std::size_t elements(const Shape &shape) {
    std::size_t count = 1;
    for (const std::int64_t dim : shape) count *= static_cast<std::size_t>(dim);
    return count;
}

std::size_t bytes_of(const StateSpec &spec, const Shape &shape) { return elements(shape) * size_of(spec.dtype); }

// Copies parts of `bytes` each; the steps are from the begin of one to that of the next.
void copy_parts(std::byte *to, std::size_t to_step, const std::byte *from, std::size_t from_step, std::size_t count, std::size_t bytes) {
    for (std::size_t i = 0; i < count; i++) std::memcpy(to + i * to_step, from + i * from_step, bytes);
}

template <class T> void fill(std::byte *to, std::size_t count, T value) {
    std::fill_n(reinterpret_cast<T *>(to), count, value);
}

void fill(const StateSpec &spec, std::byte *to, std::size_t count) {
    switch (spec.dtype) {
    case Dtype::float32: return fill(to, count, static_cast<float>(spec.initial));
    case Dtype::float16: return fill(to, count, half_of(static_cast<float>(spec.initial)));
    case Dtype::int8: return fill(to, count, static_cast<std::int8_t>(spec.initial));
    case Dtype::int32: return fill(to, count, static_cast<std::int32_t>(spec.initial));
    case Dtype::int64: return fill(to, count, static_cast<std::int64_t>(spec.initial));
    }
}

// Whether a state is the last rows of keys or values, by its name (docs/mixers.md) and shape (B, G, W, d).
bool is_window(const StateSpec &spec) {
    const std::string name = spec.name.substr(0, spec.name.find('.'));
    const bool is_named = name == "k" || name == "v" || name == "k_scale" || name == "v_scale";
    return is_named && !spec.grows() && !spec.constant && spec.shape.size() == 4 && spec.shape[2] > 1;
}

}  // namespace

void Buffer::Free::operator()(std::byte *memory) const { ::operator delete(memory, std::align_val_t(line)); }

void Buffer::reserve(std::size_t bytes, bool doubling) {
    bytes = std::max(bytes, line);
    if (bytes <= capacity) return;
    if (doubling) bytes = std::max(bytes, 2 * capacity);
    memory.reset();
    capacity = 0;
    memory.reset(static_cast<std::byte *>(::operator new(bytes, std::align_val_t(line))));
    capacity = bytes;
}

States::States(std::shared_ptr<Graph> opened, Cancellation &cancellation, std::int64_t batch)
    : batch(batch), graph(std::move(opened)), cancellation(cancellation), memory(Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault)) {
    const Signature &signature = graph->signature;
    signature.require_batch(batch);
    signature.require_memory(batch, graph->options.max_state_bytes);
    input_size = signature.input_size;
    slots.resize(signature.states.size());
    for (std::size_t i = 0; i < slots.size(); i++) {
        slots[i].spec = &signature.states[i];
        const Shape &shape = slots[i].spec->shape;
        slots[i].growing = static_cast<std::size_t>(std::find(shape.begin(), shape.end(), dim_growing) - shape.begin());
        grows = grows || slots[i].spec->grows();
        slots[i].is_window = is_window(*slots[i].spec);
        appends = appends || slots[i].spec->grows() || slots[i].is_window;
    }
    // caches of another rank are parts of one tensor (state_layout packed), to which no node appends
    appends = appends && graph->appends && std::all_of(slots.begin(), slots.end(), [](const Slot &slot) {
        return !slot.spec->grows() || (slot.growing == 2 && slot.spec->shape.size() == 4);
    });
    one = inputs_value(inputs, 1, {batch});
    const auto wide = static_cast<std::size_t>(batch * signature.vocab_size), few = static_cast<std::size_t>(batch * signature.top_k);
    result_values.push_back(value(results[0], ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4 * wide, {batch, signature.vocab_size}));
    if (signature.top_k) {
        result_values.push_back(value(results[1], ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4 * few, {batch, signature.top_k}));
        result_values.push_back(value(results[2], ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8 * few, {batch, signature.top_k}));
        if (signature.source)
            result_values.push_back(value(results[3], ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4 * static_cast<std::size_t>(batch), {batch}));
    }
    reset();
}

void States::reset() {
    for (std::size_t i = 0; i < slots.size(); i++) {
        const StateSpec &spec = *slots[i].spec;
        const Shape shape = spec.dims(batch);
        fill(spec, place(i, shape), elements(shape));
    }
}

std::byte *States::place(std::size_t index, const Shape &shape) {
    Slot &slot = slots[index];
    const std::size_t bytes = bytes_of(*slot.spec, shape);
    const bool same = slot.shape == shape;
    slot.shape = shape;
    if (slot.spec->grows()) slot.room = 0, follows = false;
    if (slot.turns) slot.turns = follows = false, bindings.clear();
    if (slot.spec->constant) {
        slot.buffers[0].reserve(bytes);
        if (!same) bindings.clear();
        return slot.buffers[0].data();
    }
    const std::byte *before[2] = {slot.buffers[0].data(), slot.buffers[1].data()};
    for (Buffer &buffer : slot.buffers) buffer.reserve(bytes);
    if (before[0] != slot.buffers[0].data() || before[1] != slot.buffers[1].data()) bindings.clear();
    return slot.buffers[turn].data();
}

std::int64_t States::source_length() const {
    std::int64_t length = 1;
    for (const Slot &slot : slots)
        for (std::size_t i = 0; i < slot.shape.size(); i++)
            if (slot.spec->shape[i] == dim_source) length = std::max(length, slot.shape[i]);
    return length;
}

StateView States::state(std::size_t index) {
    Slot &slot = slots[index];
    const std::size_t bytes = bytes_of(*slot.spec, slot.shape);
    if (!slot.is_in_place()) return {slot.spec, &slot.shape, data(slot), bytes};
    Buffer &copy = slot.buffers[1 - turn];  // steps in place do not use it
    copy.reserve(bytes);
    const auto rows = static_cast<std::size_t>(batch);
    for (std::size_t row = 0; row < rows; row++) copy_row(slot, row, copy.data() + row * (bytes / rows));
    return {slot.spec, &slot.shape, copy.data(), bytes};
}

// Copies the state of one sequence: of a window, from its oldest row on.
void States::copy_row(const Slot &slot, std::size_t row, std::byte *to) const {
    const Parts parts = parts_of(slot);
    const std::byte *const from = data(slot) + row * parts.all();
    if (!slot.turns) return copy_parts(to, parts.bytes, from, parts.step, parts.count, parts.bytes);
    const auto heads = static_cast<std::size_t>(slot.shape[1]);
    const std::size_t bytes = parts.bytes / heads, before = bytes / static_cast<std::size_t>(slot.shape[2]) * static_cast<std::size_t>(turned % slot.shape[2]);
    copy_parts(to, bytes, from + before, bytes, heads, bytes - before);
    copy_parts(to + bytes - before, bytes, from, bytes, heads, before);
}

States::Parts States::parts_of(const Slot &slot, std::int64_t room) const {
    const std::size_t bytes = bytes_of(*slot.spec, slot.shape) / static_cast<std::size_t>(batch);
    if (!room) return {1, bytes, bytes};
    const auto heads = static_cast<std::size_t>(slot.shape[1]), length = static_cast<std::size_t>(slot.shape[2]);
    return {heads, bytes / heads, bytes / heads / length * static_cast<std::size_t>(room)};
}

// Caches are in place afterwards, with room for another token.
void States::put_in_place() {
    std::int64_t room = least_room;
    for (const Slot &slot : slots) {
        room = std::max(room, slot.room);
        while (slot.spec->grows() && room <= slot.shape[2]) room *= 2;
    }
    for (Slot &slot : slots) {
        if (!slot.spec->grows() || slot.room == room) continue;
        bindings.clear();
        const Parts from = parts_of(slot, slot.room ? slot.room : slot.shape[2]), to = parts_of(slot, room);
        const std::size_t count = static_cast<std::size_t>(batch) * to.count;
        Buffer made;
        made.reserve(count * to.step);
        copy_parts(made.data(), to.step, data(slot), from.step, count, to.bytes);
        slot.buffers[turn] = std::move(made);
        slot.buffers[1 - turn] = Buffer();
        slot.room = room;
    }
}

// Windows are in place afterwards, unless the provider has refused it.
void States::turn_in_place() {
    const auto is_apart = [](const Slot &slot) { return slot.is_window && !slot.turns; };
    if (!graph->turns || std::none_of(slots.begin(), slots.end(), is_apart)) return;
    take_out();
    for (Slot &slot : slots)
        if (slot.is_window) slot.turns = true, slot.buffers[1 - turn] = Buffer();
    turned = 0, follows = true;
    bindings.clear();
}

// No state is in place afterwards.
void States::take_out() {
    for (std::size_t i = 0; i < slots.size(); i++) {
        if (!slots[i].is_in_place()) continue;
        state(i);
        std::swap(slots[i].buffers[0], slots[i].buffers[1]);
        if (slots[i].turns) bindings.clear();
        slots[i].room = 0, slots[i].turns = false;
    }
    follows = false;
}

Ort::Value States::value(const StateSpec &spec, const Buffer &buffer, const Shape &shape) const {
    return Ort::Value::CreateTensor(memory, buffer.data(), bytes_of(spec, shape), shape.data(), shape.size(), type_of(spec.dtype));
}

Ort::Value States::value(Buffer &buffer, ONNXTensorElementDataType dtype, std::size_t bytes, const Shape &shape) const {
    buffer.reserve(bytes);
    return Ort::Value::CreateTensor(memory, buffer.data(), bytes, shape.data(), shape.size(), dtype);
}

Ort::Value States::inputs_value(Buffer &buffer, std::int64_t length, Shape shape) const {
    const std::size_t bytes = input_bytes() * static_cast<std::size_t>(batch * length);
    if (input_size) shape.push_back(input_size);
    return value(buffer, input_size ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT : ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, bytes, shape);
}

Ort::IoBinding States::bind(Ort::Session &session, int past, Wanted wanted, const Ort::Value &fed) {
    Ort::IoBinding made(session);
    made.BindInput(input_size ? "inputs_embeds" : "input_ids", fed);
    if (wanted == Wanted::logits) {
        made.BindOutput("logits", result_values[0]);
    } else {
        made.BindOutput("top_logits", result_values[1]);
        made.BindOutput("top_tokens", result_values[2]);
        if (result_values.size() > 3) made.BindOutput("log_sum", result_values[3]);
    }
    bind_states(made, past);
    return made;
}

void States::bind_states(Ort::IoBinding &binding, int past) const {
    for (const Slot &slot : slots) {
        const StateSpec &spec = *slot.spec;
        if (spec.grows()) {
            if (!slot.room) continue;
            Shape shape = slot.shape;
            shape[slot.growing] = slot.room;
            binding.BindInput(spec.past.c_str(), value(spec, slot.buffers[turn], shape));
            binding.BindOutput(spec.present.c_str(), value(spec, slot.buffers[turn], shape));
            continue;
        }
        binding.BindInput(spec.past.c_str(), value(spec, slot.buffers[spec.constant ? 0 : past], slot.shape));
        if (!spec.constant) binding.BindOutput(spec.present.c_str(), value(spec, slot.buffers[slot.turns ? past : 1 - past], slot.shape));
    }
}

Ort::IoBinding &States::binding(Wanted wanted) {
    const auto found = bindings.find({wanted, turn});
    if (found != bindings.end()) return found->second;
    return bindings.emplace(std::pair{wanted, turn}, bind(graph->session(), turn, wanted, one)).first->second;
}

void States::bind_caches(Ort::IoBinding &binding, std::int64_t length) {
    for (Slot &slot : slots) {
        const StateSpec &spec = *slot.spec;
        if (!spec.grows()) continue;
        slot.next = slot.shape;
        slot.next[slot.growing] += length;
        Buffer &to = slot.buffers[1 - turn];
        to.reserve(bytes_of(spec, slot.next), true);
        binding.BindInput(spec.past.c_str(), value(spec, slot.buffers[turn], slot.shape));
        binding.BindOutput(spec.present.c_str(), value(spec, to, slot.next));
    }
}

void States::run(Ort::Session &session, Ort::IoBinding &binding, std::int64_t length) {
    if (grows) bind_caches(binding, length);
    cancellation.run("the graph to run a step", [&](const Ort::RunOptions &options) { session.Run(options, binding); });
    for (Slot &slot : slots)
        if (grows && slot.spec->grows()) slot.shape.swap(slot.next);
    turn = 1 - turn;
    follows = appends && length == 1 && (grows || graph->turns);
}

// A step with the caches and windows in place.
void States::append(Wanted wanted) {
    turn_in_place();
    put_in_place();
    try {
        run_in_place(wanted);
    } catch (const Error &error) {
        if (!std::strstr(error.what(), no_window)) throw;
        graph->turns = false;  // as where other nodes read one
        take_out();
        run(graph->session(), binding(wanted), 1);
    }
}

void States::run_in_place(Wanted wanted) {
    Ort::IoBinding &bound = binding(wanted);
    std::int64_t rows = -1;
    bool turns = false;
    for (const Slot &slot : slots) {
        if (slot.room) rows = slot.shape[slot.growing];
        turns = turns || slot.turns;
    }
    cancellation.run("the graph to run a step", [&](const Ort::RunOptions &) {
        Ort::RunOptions options;  // ONNX Runtime would log a change of an entry
        if (rows >= 0) options.AddConfigEntry(rows_option, std::to_string(rows).c_str());
        if (turns) options.AddConfigEntry(windows_option, std::to_string(turned).c_str());
        const Cancellation::Others others(cancellation, options);
        graph->session().Run(options, bound);
    });
    for (Slot &slot : slots) {
        if (slot.is_in_place()) std::swap(slot.buffers[0], slot.buffers[1]);
        if (slot.room) slot.shape[slot.growing]++;
    }
    turned++, turn = 1 - turn;
}

void States::read(const std::byte *given, std::int64_t length, Wanted wanted) {
    const std::size_t bytes = input_bytes() * static_cast<std::size_t>(batch * length);
    if (length > 1) {
        take_out();
        Ort::Session &many = *graph->companion("prefill");
        Buffer copy;
        const Ort::Value fed = inputs_value(copy, length, {batch, length});
        std::memcpy(copy.data(), given, bytes);
        Ort::IoBinding bound = bind(many, turn, wanted, fed);
        return run(many, bound, length);
    }
    std::memcpy(inputs.data(), given, bytes);
    follows ? append(wanted) : run(graph->session(), binding(wanted), 1);
}

void States::check(const std::int64_t *tokens, std::int64_t length, std::int64_t keep, Wanted wanted) {
    take_out();
    Ort::Session &session = *graph->companion("draft_check");
    Ort::IoBinding bound(session);
    Buffer copy;
    const Ort::Value fed = inputs_value(copy, length, {batch, length});
    std::memcpy(copy.data(), tokens, input_bytes() * static_cast<std::size_t>(batch * length));
    bound.BindInput("input_ids", fed);
    std::vector<std::int64_t> kept(static_cast<std::size_t>(batch), keep);
    bound.BindInput("keep", Ort::Value::CreateTensor(memory, kept.data(), kept.size(), &batch, 1));
    const Signature &signature = graph->signature;
    const auto bind_result = [&](const char *name, Buffer &to, ONNXTensorElementDataType dtype, std::size_t bytes, std::int64_t columns) {
        const Shape shape = {batch, length, columns};
        bound.BindOutput(name, value(to, dtype, bytes * elements(shape), shape));
    };
    if (wanted == Wanted::logits) {
        bind_result("logits", checked[0], ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4, signature.vocab_size);
    } else {
        bind_result("top_logits", checked[0], ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4, signature.top_k);
        bind_result("top_tokens", checked[1], ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8, signature.top_k);
    }
    bind_states(bound, turn);
    run(session, bound, keep);
    follows = false;  // caches in place could not be restored
}

void States::uncheck() {
    for (Slot &slot : slots)
        if (slot.spec->grows()) slot.shape.swap(slot.next);  // which is that before the run
    turn = 1 - turn;
}

void States::take(const std::vector<std::pair<const States *, std::int64_t>> &rows) {
    for (std::size_t i = 0; i < slots.size(); i++) {
        Shape shape = rows.front().first->slots[i].shape;
        for (const auto &[from, row] : rows)
            if (const Shape &other = from->slots[i].shape; !std::equal(shape.begin() + 1, shape.end(), other.begin() + 1))
                fail(T2R_BATCH, "the state " + printable(slots[i].spec->name, 100) + " of one length in all sequences", "different ones", "read as much of each");
        shape[0] = batch;
        std::byte *to = place(i, shape);
        for (const auto &[from, row] : rows) {
            from->copy_row(from->slots[i], static_cast<std::size_t>(row), to);
            to += bytes_of(*slots[i].spec, shape) / static_cast<std::size_t>(batch);
        }
    }
}

void States::exchange(const std::vector<std::int64_t> &rows) {
    std::vector<std::pair<std::size_t, std::size_t>> copied, cycled;  // (to, from); copied: from a row that keeps its place
    for (std::size_t to = 0; to < rows.size(); to++) {
        const auto from = static_cast<std::size_t>(rows[to]);
        if (from == to) continue;
        (rows[from] == rows[to] ? copied : cycled).emplace_back(to, from);
    }
    for (const Slot &slot : slots) rows_between.reserve(cycled.size() * parts_of(slot).all());
    for (const Slot &slot : slots) {
        const Parts parts = parts_of(slot);
        std::byte *const between = rows_between.data(), *const begin = data(slot);
        const auto copy = [&](std::byte *to, const std::byte *from) { copy_parts(to, parts.step, from, parts.step, parts.count, parts.bytes); };
        for (std::size_t i = 0; i < cycled.size(); i++) copy(between + i * parts.all(), begin + cycled[i].second * parts.all());
        for (const auto &[to, from] : copied) copy(begin + to * parts.all(), begin + from * parts.all());
        for (std::size_t i = 0; i < cycled.size(); i++) copy(begin + cycled[i].first * parts.all(), between + i * parts.all());
    }
}

}  // namespace t2r
