// What all cases share: counting, comparing, reading golden files.
#pragma once

#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "json.hpp"
#include "t2r.h"

namespace conformance {

struct Failed {
    std::string why;
};

inline void require(bool good, const std::string &why) {
    if (!good) throw Failed{why};
}

// Of a call that must succeed.
inline void ok(t2r_kind kind) {
    if (kind != T2R_OK) throw Failed{std::string(t2r_kind_name(kind)) + ": " + t2r_error()};
}

class Tally {
public:
    // A line: the case's name, and what was wrong with it, if anything.
    void run(const std::string &name, const std::function<void()> &body) {
        std::string why;
        try {
            body();
        } catch (const Failed &failed) {
            why = failed.why;
        } catch (const t2r::JsonError &error) {
            why = "the golden file: " + error.what;
        }
        (why.empty() ? passed : failed)++;
        std::cout << (why.empty() ? "ok      " : "FAILED  ") << name << (why.empty() ? "" : ": ") << why << "\n";
    }

    int end() const {
        std::cout << passed << " passed, " << failed << " failed" << std::endl;
        return failed || !passed ? 1 : 0;
    }

private:
    int passed = 0, failed = 0;
};

struct Decoder {
    explicit Decoder(const std::string &path) { ok(t2r_open(path.c_str(), nullptr, &handle)); }
    ~Decoder() { t2r_close(handle); }
    Decoder(const Decoder &) = delete;
    Decoder &operator=(const Decoder &) = delete;
    operator t2r_decoder *() const { return handle; }

    t2r_info info() const {
        t2r_info found;
        ok(t2r_get_info(handle, &found, sizeof found));
        return found;
    }

    t2r_decoder *handle = nullptr;
};

inline std::unique_ptr<t2r::Json> read_json(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    require(static_cast<bool>(file), path + " cannot be read");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    return std::make_unique<t2r::Json>(std::move(text));
}

inline std::vector<std::int64_t> integers(t2r::Json::Value list) {
    std::vector<std::int64_t> found;
    list.each([&](t2r::Json::Value value) { found.push_back(value.integer()); });
    return found;
}

// {"shape": [...], "data": [...]}
struct Array {
    explicit Array(t2r::Json::Value value) : shape(integers(value.at("shape"))) {
        value.at("data").each([&](t2r::Json::Value number) { data.push_back(number.real()); });
        std::size_t count = 1;
        for (const std::int64_t dim : shape) count *= static_cast<std::size_t>(dim);
        require(count == data.size(), "an array of another size than its shape");
    }

    std::vector<std::int64_t> shape;
    std::vector<double> data;
};

std::vector<double> numbers_of(const t2r_tensor &tensor);
void set_states(t2r_decoder *decoder, t2r::Json::Value states);
void run_trace(Tally &tally, const std::string &folder, const std::string &name, t2r::Json::Value golden);

}  // namespace conformance
