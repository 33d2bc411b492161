#include "onnx_file.hpp"

#include <algorithm>
#include <cstdlib>

#include "error.hpp"

namespace t2r {

namespace {

constexpr unsigned deepest = 64;                      // nesting of graphs
constexpr std::size_t max_names = 1 << 16;            // bytes of one tensor's external data fields
constexpr std::size_t max_files = 1 << 12;            // files with weights

// The messages of onnx.proto that contain metadata and tensors, and their field numbers.
enum class Message { model, graph, node, attribute, tensor, sparse, function, entry };

struct Field {
    Message in;
    std::uint32_t number;
    Message holds;
};

constexpr Field fields[] = {
    {Message::model, 7, Message::graph},       {Message::model, 25, Message::function},
    {Message::graph, 1, Message::node},        {Message::graph, 5, Message::tensor},
    {Message::graph, 15, Message::sparse},     {Message::node, 5, Message::attribute},
    {Message::attribute, 5, Message::tensor},  {Message::attribute, 6, Message::graph},
    {Message::attribute, 10, Message::tensor}, {Message::attribute, 11, Message::graph},
    {Message::attribute, 22, Message::sparse}, {Message::attribute, 23, Message::sparse},
    {Message::sparse, 1, Message::tensor},     {Message::sparse, 2, Message::tensor},
    {Message::function, 7, Message::node},     {Message::function, 11, Message::attribute},
    {Message::model, 14, Message::entry},
};

class Reader {
public:
    Reader(ByteSource &file, OnnxFile &found) : file(file), found(found) {}

    void model() {
        message(Message::model, 0, file.size(), 0);
        if (!whole) broken("a file without a graph");
    }

private:
    [[noreturn]] static void broken(const char *why) {
        fail(T2R_GRAPH, "an ONNX graph", why, "fetch the file again, or export the model again");
    }

    std::uint8_t byte(std::uint64_t &at, std::uint64_t end) {
        if (at >= end) broken("a file that is cut short, or is none");
        return file.byte(at++);
    }

    std::uint64_t varint(std::uint64_t &at, std::uint64_t end) {
        std::uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const std::uint8_t part = byte(at, end);
            value |= static_cast<std::uint64_t>(part & 0x7F) << shift;
            if (part < 0x80) return value;
        }
        broken("a file that is no protobuf");
    }

    // Calls visit(number, begin, end) for each field that holds bytes; others are skipped.
    template <class F> void each_field(std::uint64_t at, std::uint64_t end, F visit) {
        while (at < end) {
            const std::uint64_t key = varint(at, end), number = key >> 3;
            if (number == 0 || number >> 29) broken("a file that is no protobuf");
            std::uint64_t size = 0;
            switch (key & 7) {
            case 0: varint(at, end); continue;
            case 1: size = 8; break;
            case 2: size = varint(at, end); break;
            case 5: size = 4; break;
            default: broken("a file that is no protobuf");
            }
            if (size > end - at) broken("a file that is cut short, or is none");
            if ((key & 7) == 2) visit(static_cast<std::uint32_t>(number), at, at + size);
            at += size;
        }
    }

    void message(Message kind, std::uint64_t begin, std::uint64_t end, unsigned depth) {
        if (depth > deepest) broken("graphs inside graphs without end");
        each_field(begin, end, [&](std::uint32_t number, std::uint64_t first, std::uint64_t last) {
            const auto field = std::find_if(std::begin(fields), std::end(fields), [&](const Field &known) {
                return known.in == kind && known.number == number;
            });
            if (field == std::end(fields)) return;
            if (kind == Message::model && field->holds == Message::graph) {
                if (whole) broken("two graphs in a file");
                whole = true;
            }
            if (field->holds == Message::entry) return property(first, last);
            if (field->holds == Message::tensor) return tensor(first, last);
            message(field->holds, first, last, depth + 1);
        });
    }

    // StringStringEntryProto: key 1, value 2. The bytes of both are subtracted from `left`.
    std::pair<std::string, std::string> entry(std::uint64_t begin, std::uint64_t end, std::size_t &left) {
        std::pair<std::string, std::string> texts;
        each_field(begin, end, [&](std::uint32_t number, std::uint64_t first, std::uint64_t last) {
            if (number != 1 && number != 2) return;
            if (last - first > left)
                fail(T2R_METADATA, "at most 64 MiB of metadata", "more", "check where this file is from");
            left -= static_cast<std::size_t>(last - first);
            (number == 1 ? texts.first : texts.second) = file.text(first, static_cast<std::size_t>(last - first));
        });
        return texts;
    }

    void property(std::uint64_t begin, std::uint64_t end) {
        auto [key, value] = entry(begin, end, metadata_left);
        if (!found.metadata.emplace(std::move(key), std::move(value)).second) broken("a key of its metadata twice");
    }

    // Records the file of a tensor with external data.
    void tensor(std::uint64_t begin, std::uint64_t end) {
        std::string file_name;
        std::uint64_t offset = 0, length = 0;
        bool outside = false;
        each_field(begin, end, [&](std::uint32_t number, std::uint64_t first, std::uint64_t last) {
            if (number != 13) return;
            std::size_t left = max_names;
            const auto [key, value] = entry(first, last, left);
            if (key == "offset") offset = std::strtoull(value.c_str(), nullptr, 10);
            if (key == "length") length = std::strtoull(value.c_str(), nullptr, 10);
            if (key != "location") return;
            outside = true;
            file_name = value;
        });
        if (!outside) return;
        if (found.external.size() == max_files && !found.external.count(file_name)) broken("weights in too many files");
        std::uint64_t &needed = found.external[file_name];
        needed = std::max(needed, offset > ~length ? ~std::uint64_t{0} : offset + length);
    }

    ByteSource &file;
    OnnxFile &found;
    bool whole = false;  // whether there is a graph
    std::size_t metadata_left = max_metadata_bytes;
};

}  // namespace

OnnxFile read_onnx_file(ByteSource &file) {
    OnnxFile found;
    Reader(file, found).model();
    return found;
}

}  // namespace t2r
