#include "snapshot.hpp"

#include <algorithm>

#include "files.hpp"
#include "json.hpp"
#include "npy.hpp"
#include "zip.hpp"

namespace t2r {

namespace {

constexpr const char *wanted = "a snapshot written by save_state", *head_name = "t2r.json", *suffix = ".npy";
constexpr std::size_t max_head = 65536;

[[noreturn]] void damaged(const std::string &path, const std::string &why) {
    fail(T2R_SNAPSHOT, wanted, printable(path) + ": " + printable(why), "read the prompt again and save it");
}

struct Head {
    std::int64_t position, token;
};

Head read_head(const std::string &path, const Signature &signature, std::string text) {
    const Json json(std::move(text), {max_head, 1000, 8});
    const Json::Value head = json.root();
    if (head.at("snapshot").integer() != 1)
        fail(T2R_SNAPSHOT, "a snapshot of version 1", "another", "read the prompt again and save it");
    if (head.at("checkpoint_sha256").string() != signature.checkpoint)
        fail(T2R_SNAPSHOT, "a snapshot of the checkpoint " + printable(signature.checkpoint.substr(0, 12)),
             "one of the checkpoint " + printable(head.at("checkpoint_sha256").string().substr(0, 12)),
             "read the prompt again with this model and save it");
    Head found{head.at("position").integer(), -1};
    if (const auto token = head.find("token"); token && !token->is_null()) {
        found.token = token->integer();
        if (found.token < 0 || found.token >= signature.vocab_size) damaged(path, "a token that the model has not");
    }
    return found;
}

const ZipMember &find(const std::string &path, const std::vector<ZipMember> &members, const std::string &name) {
    const auto found = std::find_if(members.begin(), members.end(), [&](const ZipMember &m) { return m.name == name; });
    if (found == members.end()) damaged(path, "no " + name + " in it");
    return *found;
}

}  // namespace

namespace {

void write_snapshot(const Decoder &decoder, std::int64_t token, std::function<void(std::string_view)> write) {
    if (token != -1) decoder.require_tokens(&token, 1);
    std::string head = "{\"snapshot\": 1, \"checkpoint_sha256\": " + json_string(decoder.signature().checkpoint) +
                       ", \"position\": " + number(decoder.position());
    head += token == -1 ? "}" : ", \"token\": " + number(token) + "}";
    ZipWriter zip(std::move(write));
    zip.add(head_name, {head});
    for (std::size_t i = 0; i < decoder.all_states().count(); i++) {
        const StateView state = decoder.all_states().state(i);
        const std::string header = npy_header(state.spec->dtype, *state.shape);
        zip.add(state.spec->name + suffix, {header, {reinterpret_cast<const char *>(state.data), state.bytes}});
    }
    zip.end();
}

}  // namespace

void save_snapshot(const Decoder &decoder, const std::string &path, std::int64_t token) {
    if (token != -1) decoder.require_tokens(&token, 1);
    replace_file(path, [&](std::FILE *file) {  // errors of fwrite are detected when it is closed
        write_snapshot(decoder, token, [&](std::string_view part) { std::fwrite(part.data(), 1, part.size(), file); });
    });
}

std::string snapshot_of(const Decoder &decoder, std::int64_t token) {
    std::string bytes;
    write_snapshot(decoder, token, [&](std::string_view part) { bytes.append(part); });
    return bytes;
}

std::int64_t load_snapshot(Decoder &decoder, const std::string &path) {
    ByteSource file(path, wanted);
    return load_snapshot(decoder, file, path);
}

std::int64_t load_snapshot(Decoder &decoder, ByteSource &file, const std::string &path) {
    const Signature &signature = decoder.signature();
    try {
        const std::vector<ZipMember> members = read_zip(file, signature.states.size() + 1);
        const ZipMember &first = find(path, members, head_name);
        if (first.size > max_head) damaged(path, "a t2r.json that is too large");
        const Head head = read_head(path, signature, read_member(file, first));
        if (members.size() != signature.states.size() + 1) damaged(path, "other states than the graph's");
        std::vector<std::string> contents;
        contents.reserve(signature.states.size());
        std::vector<GivenState> given;
        for (const StateSpec &spec : signature.states) {
            contents.push_back(read_member(file, find(path, members, spec.name + suffix)));
            const std::optional<NpyForm> form = read_npy(contents.back());
            if (!form) damaged(path, "the state " + spec.name + ", which is no array of its header");
            given.push_back({spec.name, form->dtype, form->shape, contents.back().data() + form->header});
        }
        decoder.set_states(given, head.position);
        return head.token;
    } catch (const ZipError &error) {
        damaged(path, error.why);
    } catch (const JsonError &error) {
        damaged(path, "t2r.json: " + error.what);
    }
}

}  // namespace t2r
