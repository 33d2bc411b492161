#include "npy.hpp"

#include <charconv>
#include <iterator>

namespace t2r {

namespace {

constexpr std::string_view magic("\x93NUMPY\x01\x00", 8);
constexpr std::size_t alignment = 64, growth_digits = 21, max_rank = 16;
constexpr const char *descriptions[] = {"<f4", "<f2", "|i1", "<i4", "<i8"};  // in the order of Dtype

// Parses the header: a Python dictionary of these three keys, in any order.
class Header {
public:
    explicit Header(std::string_view text) : text(text) {}

    std::optional<NpyForm> read() {
        std::optional<Dtype> dtype;
        bool shaped = false, ordered = false;
        NpyForm form{};
        if (!take("{")) return {};
        while (!take("}")) {
            if (take("'descr':") && !dtype) {
                for (std::size_t i = 0; i < std::size(descriptions); i++)
                    if (take(std::string("'") + descriptions[i] + "'")) dtype = static_cast<Dtype>(i);
                if (!dtype) return {};
            } else if (take("'fortran_order':") && !ordered) {
                if (!(ordered = take("False"))) return {};
            } else if (take("'shape':") && !shaped) {
                if (!(shaped = tuple(form.shape))) return {};
            } else {
                return {};
            }
            if (!take(",") && !text.empty() && text.front() != '}') return {};
        }
        if (!take("\n") || !text.empty() || !dtype || !shaped || !ordered) return {};
        form.dtype = *dtype;
        return form;
    }

private:
    bool take(std::string_view word) {
        while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
        if (text.substr(0, word.size()) != word) return false;
        text.remove_prefix(word.size());
        return true;
    }

    bool tuple(Shape &shape) {
        if (!take("(")) return false;
        while (!take(")")) {
            std::int64_t dim = 0;
            take("");  // blanks
            const auto read = std::from_chars(text.data(), text.data() + text.size(), dim);
            if (read.ec != std::errc() || dim < 0 || shape.size() == max_rank) return false;
            text.remove_prefix(static_cast<std::size_t>(read.ptr - text.data()));
            shape.push_back(dim);
            if (!take(",") && (text.empty() || text.front() != ')')) return false;
        }
        return true;
    }

    std::string_view text;
};

}  // namespace

std::string npy_header(Dtype dtype, const Shape &shape) {
    std::string text = std::string("{'descr': '") + descriptions[static_cast<int>(dtype)] + "', 'fortran_order': False, 'shape': (";
    for (std::size_t i = 0; i < shape.size(); i++) text += (i ? ", " : "") + std::to_string(shape[i]);
    text += shape.size() == 1 ? ",), }" : "), }";
    if (!shape.empty()) text.append(growth_digits - std::to_string(shape[0]).size(), ' ');
    text.append(alignment - (magic.size() + 2 + text.size() + 1) % alignment, ' ');
    text += '\n';
    std::string header(magic);
    header += static_cast<char>(text.size() & 0xFF);
    header += static_cast<char>(text.size() >> 8 & 0xFF);
    return header + text;
}

std::optional<NpyForm> read_npy(std::string_view file) {
    if (file.size() < 10 || file.substr(0, 8) != magic) return {};
    const std::size_t size = static_cast<unsigned char>(file[8]) | static_cast<std::size_t>(static_cast<unsigned char>(file[9])) << 8;
    if (size > file.size() - 10) return {};
    std::optional<NpyForm> form = Header(file.substr(10, size)).read();
    if (!form) return {};
    form->header = 10 + size;
    form->bytes = size_of(form->dtype);
    for (const std::int64_t dim : form->shape) {
        if (dim && form->bytes > file.size() / static_cast<std::size_t>(dim)) return {};
        form->bytes *= static_cast<std::size_t>(dim);
    }
    if (form->bytes != file.size() - form->header) return {};
    return form;
}

}  // namespace t2r
