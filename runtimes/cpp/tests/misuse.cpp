// misuse FOLDER NAME: one misuse of the API with the golden files of FOLDER; prints its error.
#include <functional>
#include <iostream>
#include <map>
#include <t2r.hpp>
#include <thread>

namespace {

std::string folder;

t2r::Decoder opened(const std::string &name) { return t2r::Decoder(folder + "/" + name + ".onnx"); }

void position() {
    t2r::Decoder decoder = opened("ends");
    decoder.reset(2);
    for (int step = 0; step <= 40; step++) decoder.step({1, 2});
}

void closed() {
    t2r::Decoder decoder = opened("tiny");
    decoder.close();
    decoder.step({1});
}

void closed_tokenizer() {
    t2r::Tokenizer tokenizer(opened("bytes"));
    tokenizer.close();
    tokenizer.encode("a");
}

void moved() {
    t2r::Decoder decoder = opened("tiny");
    const t2r::Decoder other = std::move(decoder);
    decoder.step({1});
}

// Throws the second thread's error in this one.
void two_threads() {
    t2r::Decoder decoder = opened("tiny");
    std::exception_ptr told;
    const auto step = [&] {
        try {
            decoder.step({1});
        } catch (...) {
            told = std::current_exception();
        }
    };
    decoder.generate({1}, 2, {}, [&](std::int64_t) {
        std::thread(step).join();
        return false;
    });
    if (told) std::rethrow_exception(told);
}

void from_a_callback() {
    t2r::Decoder decoder = opened("tiny");
    decoder.generate({1}, 2, {}, [&](std::int64_t) { return decoder.step({1}) != nullptr; });
}

void copied() {
    t2r::Decoder decoder = opened("ends");
    for (int step = 0; step < 40; step++) decoder.step({1, 2});
    decoder.copy().step({1, 2});
}

void taken() {
    t2r::Decoder decoder = opened("tiny");
    decoder.step({1});
    const t2r::Decoder other = decoder.fork(), stranger = opened("tiny");
    decoder.take({{decoder, 0}, {other, 0}});
    decoder.choose(decoder.step({1, 2}), 1, {}, 0);
    decoder.take({{stranger, 0}});
}

void provider() {
    const char *const words[] = {"CPU", "a", "b"};
    t2r_options options = t2r::options();
    options.provider = words;
    options.provider_count = 3;
    t2r::Decoder(folder + "/tiny.onnx", options);
}

void long_source() {
    t2r_options options = t2r::options();
    options.max_source = 2;
    t2r::Decoder(folder + "/translator.onnx", options).translate({1, 2, 3});
}

void session_option() {
    const char *const words[] = {"session.intra_op_thread_affinities", "everywhere"};
    t2r_options options = t2r::options();
    options.threads = 2;
    options.config = words;
    options.config_count = 2;
    t2r::Decoder(folder + "/tiny.onnx", options);
}

void damaged_in_memory() {
    t2r::Decoder decoder = opened("tiny");
    decoder.load_memory(decoder.save_memory().substr(1));
}

void stop_at(const std::string &text) { t2r::Stream(t2r::Tokenizer(opened("bytes"))).stop_at({text}); }

void cancelled() {
    t2r::Decoder decoder = opened("tiny");
    decoder.generate({1}, 2, {}, [&](std::int64_t) { return decoder.cancel(), true; });
}

void callback() {
    t2r::Decoder decoder = opened("tiny");
    try {
        decoder.generate({1}, 5, {}, [](std::int64_t) -> bool { throw std::string("mine"); });
    } catch (const std::string &thrown) {
        std::cout << thrown << "\n";
    }
    decoder.step({1});  // no longer in use
}

const std::map<std::string, std::function<void()>> misuses = {
    {"no-file", [] { opened("nowhere"); }},
    {"zero-byte", [] { opened(std::string("tiny\0", 5)); }},
    {"zero-byte-saved", [] { opened("tiny").save(folder + std::string("/x\0", 3)); }},
    {"zero-byte-loaded", [] { opened("tiny").load(folder + std::string("/tiny.state\0", 12)); }},
    {"prefill-graph", [] { opened("bad/role"); }},
    {"token", [] { opened("tiny").step({17}); }},
    {"position", position},
    {"batch", [] { opened("tiny").step({1, 2}); }},
    {"other-model", [] { opened("tiny").load(folder + "/packed.state"); }},
    {"no-utf8", [] { t2r::Tokenizer(opened("bytes")).encode("\xFF"); }},
    {"closed", closed},
    {"closed-tokenizer", closed_tokenizer},
    {"moved", moved},
    {"two-threads", two_threads},
    {"from-a-callback", from_a_callback},
    {"copied", copied},
    {"taken", taken},
    {"provider", provider},
    {"session-option", session_option},
    {"long-source", long_source},
    {"late-threads", [] { opened("tiny"), t2r::share_threads(2); }},
    {"no-graph-in-memory", [] { t2r::Decoder({t2r::File{"tiny.onnx", "no graph"}}); }},
    {"damaged-in-memory", damaged_in_memory},
    {"empty-stop", [] { stop_at(""); }},
    {"zero-byte-stop", [] { stop_at(std::string(1, '\0')); }},
    {"cancelled", cancelled},
    {"callback", callback},
};

}  // namespace

int main(int count, char **arguments) try {
    if (count != 3 || !misuses.count(arguments[2])) {
        std::cerr << "usage: misuse FOLDER NAME\n";
        return 1;
    }
    folder = arguments[1];
    misuses.at(arguments[2])();
} catch (const t2r::Failed &failed) {
    std::cerr << t2r_kind_name(failed.kind) << ": " << failed.what() << "\n";
    return 2;
}
