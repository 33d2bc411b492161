// t2r_conformance FOLDER: runs all cases of FOLDER/index.json. Prints a line per case, then "N passed, N failed"; exits with
// 1 if any failed.
#include <map>

#include "case.hpp"

int main(int count, char **arguments) {
    using namespace conformance;
    const std::map<std::string, void (*)(const std::string &, t2r::Json::Value)> kinds = {
        {"trace", run_trace},         {"sampling", run_sampling}, {"calls", run_calls}, {"snapshot", run_snapshot},
        {"tokenizer", run_tokenizer}, {"stream", run_stream},     {"bad", run_bad},
        {"translator", run_translator},
    };
    const std::string folder = count == 2 ? arguments[1] : "";
    int passed = 0, failed = 0;
    try {
        const std::unique_ptr<t2r::Json> index = read_json(folder + "/index.json");
        require(index->root().at("golden").integer() == 1, "golden files of another version");
        index->root().at("cases").each([&](t2r::Json::Value value) {
            const std::string kind(value.at("kind").string()), name(value.at("case").string());
            std::string why;
            try {
                require(kinds.count(kind) > 0, "a kind of case that is not known here: " + kind);
                const std::unique_ptr<t2r::Json> golden = read_json(folder + "/" + std::string(value.at("file").string()));
                kinds.at(kind)(folder, golden->root());
            } catch (const Failed &error) {
                why = error.why;
            } catch (const t2r::JsonError &error) {
                why = "the golden file: " + error.what;
            } catch (const std::exception &error) {
                why = error.what();
            }
            (why.empty() ? passed : failed)++;
            std::cout << (why.empty() ? "ok " : "FAILED ") << name << (why.empty() ? "" : ": ") << why << "\n";
        });
    } catch (const Failed &error) {
        std::cerr << "expected a folder of golden files; received " << error.why << "; t2r_conformance models/tiny\n";
        return 2;
    } catch (const t2r::JsonError &error) {
        std::cerr << "expected an index of golden files; received " << error.what << "; t2r_conformance models/tiny\n";
        return 2;
    }
    std::cout << passed << " passed, " << failed << " failed" << std::endl;
    return failed || !passed ? 1 : 0;
}
