#include "api.hpp"
#include "snapshot.hpp"

namespace {

using namespace t2r;

GivenState given_state(const t2r_tensor &state) {
    require(state.name, "a state's name");
    require(state.dtype, "a state's dtype");
    require_list(state.shape, state.rank, "a state's shape");
    require_list(state.data, state.bytes, "a state's data");
    const auto refuse = [&](const std::string &received) {
        fail(T2R_SNAPSHOT, "a state of a dtype and shape that say its bytes", printable(state.name, 100) + ": " + received, "see t2r_state");
    };
    const auto dtype = dtype_named(state.dtype);
    if (!dtype) refuse("dtype " + printable(state.dtype, 40));
    std::size_t bytes = size_of(*dtype);
    for (std::size_t i = 0; i < state.rank; i++) {
        const std::int64_t dim = state.shape[i];
        if (dim < 0 || (dim > 0 && bytes > (std::size_t{1} << 62) / static_cast<std::size_t>(dim))) refuse("a dimension " + number(dim));
        bytes *= static_cast<std::size_t>(dim);
    }
    if (bytes != state.bytes) refuse(std::to_string(state.bytes) + " bytes, not " + std::to_string(bytes));
    return {state.name, *dtype, Shape(state.shape, state.shape + state.rank), state.data};
}

}  // namespace

t2r_kind t2r_state(t2r_decoder *decoder, size_t index, t2r_tensor *state) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require(state, "where to put the state");
        require_index(index, use->decoder.all_states().count(), "state");
        const StateView view = use->decoder.all_states().state(index);
        *state = {view.spec->name.c_str(), name_of(view.spec->dtype), view.shape->size(), view.shape->data(), view.data, view.bytes};
    });
}

t2r_kind t2r_set_states(t2r_decoder *decoder, const t2r_tensor *states, size_t count, int64_t position) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_list(states, count, "states");
        std::vector<GivenState> given;
        for (size_t i = 0; i < count; i++) given.push_back(given_state(states[i]));
        use->decoder.set_states(given, position);
    });
}

t2r_kind t2r_save(t2r_decoder *decoder, const char *path, int64_t token) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require(path, "a path");
        save_snapshot(use->decoder, path, token);
    });
}

t2r_kind t2r_load(t2r_decoder *decoder, const char *path, int64_t *token) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require(path, "a path");
        const std::int64_t saved = load_snapshot(use->decoder, path);
        if (token) *token = saved;
    });
}

t2r_kind t2r_save_memory(t2r_decoder *decoder, int64_t token, const void **data, size_t *bytes) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require(data, "where to put the snapshot");
        require(bytes, "where to put its size");
        use->snapshot = snapshot_of(use->decoder, token);
        *data = use->snapshot.data();
        *bytes = use->snapshot.size();
    });
}

t2r_kind t2r_load_memory(t2r_decoder *decoder, const void *data, size_t bytes, int64_t *token) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require(data, "a snapshot");
        ByteSource source({static_cast<const char *>(data), bytes});
        const std::int64_t saved = load_snapshot(use->decoder, source, "the bytes given");
        if (token) *token = saved;
    });
}
