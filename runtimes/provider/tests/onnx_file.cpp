// The reader of ONNX files on files that are cut off or changed, each in memory of its exact size: for a build with AddressSanitizer.
// Arguments: graphs, whose external weights are beside them.
#include "../web/onnx_file.hpp"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "fuse.hpp"

using namespace t2r::provider;

namespace {

constexpr int tries = 1500;  // of each graph

int wrong = 0, read_whole = 0, refused = 0;

std::string content_of(const std::filesystem::path &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Reads, and plans what could be read.
void attempt(const std::string &content, std::map<std::string, std::string> &beside, bool must_pass) {
    const std::unique_ptr<char[]> bytes(new char[content.size()]);
    std::memcpy(bytes.get(), content.data(), content.size());
    std::map<std::string, Bytes> files;
    for (auto &[name, data] : beside) files[name] = {data.data(), data.size()};
    try {
        const Model model = read_model({bytes.get(), content.size()}, files);
        std::vector<Given> given;
        for (std::size_t i = 0; i < model.weights.size(); i++) {
            if (model.weights[i]) {
                const auto *const begin = static_cast<const unsigned char *>(model.addresses[i]);
                const std::size_t size = count_of(model.weights[i]->dims) * bytes_of(model.weights[i]->type);
                volatile unsigned last = size ? begin[0] + begin[size - 1] : 0;  // AddressSanitizer sees what is not there
                static_cast<void>(last);
                if (reinterpret_cast<std::uintptr_t>(begin) % bytes_of(model.weights[i]->type)) wrong++, std::printf("an odd address\n");
                given.push_back(*model.weights[i]);
            } else {
                Dims dims = model.inputs[i].dims;
                for (std::int64_t &dim : dims) dim = dim < 0 ? 1 : dim;
                given.push_back({model.inputs[i].type, dims});
            }
        }
        const Plan plan(fused(model.graph), given);
        read_whole++;
    } catch (const Refused &error) {
        refused++;
        if (std::strncmp(error.what(), "expected ", 9) != 0) wrong++;
        if (must_pass) wrong++, std::printf("%s\n", error.what());
    }
}

}  // namespace

int main(int count, char **paths) {
    std::mt19937 random(1);
    for (int at = 1; at < count; at++) {
        const std::filesystem::path path = paths[at];
        std::map<std::string, std::string> beside;
        for (const auto &entry : std::filesystem::directory_iterator(path.parent_path()))
            if (entry.path().extension() == ".data") beside[entry.path().filename().string()] = content_of(entry.path());
        const std::string whole = content_of(path);
        attempt(whole, beside, true);
        for (int i = 0; i < tries; i++) {
            attempt(whole.substr(0, whole.size() * static_cast<std::size_t>(i) / tries), beside, false);
            std::string changed = whole;
            for (unsigned changes = random() % 3 + 1; changes; changes--) {
                const std::size_t place = i % 2 ? random() % changed.size() : changed.size() - 1 - random() % std::min<std::size_t>(changed.size(), 6000);
                changed[place] = static_cast<char>(i % 3 ? random() : changed[place] ^ 1 << random() % 8);
            }
            attempt(changed, beside, false);
        }
    }
    std::printf("%d read, %d refused, %d wrong\n", read_whole, refused, wrong);
    return wrong != 0 || read_whole < count || refused < tries;
}
