// t2r_conformance FOLDER: reproduce the golden files of models/tiny. A line a case, then "N passed, N failed".
#include <algorithm>
#include <filesystem>

#include "case.hpp"

int main(int count, char **arguments) {
    using namespace conformance;
    if (count != 2 || !std::filesystem::is_directory(arguments[1])) {
        std::cerr << "expected a folder of golden files; received "
                  << (count == 2 ? arguments[1] : "something else") << "; t2r_conformance models/tiny\n";
        return 2;
    }
    Tally tally;
    std::vector<std::filesystem::path> files;
    for (const auto &entry : std::filesystem::directory_iterator(arguments[1]))
        if (entry.path().extension() == ".json") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto &file : files) {
        std::unique_ptr<t2r::Json> golden;
        const std::string name = file.stem().string();
        tally.run(name + ": the file", [&] { golden = read_json(file.string()); });
        if (golden && golden->root().find("logits")) run_trace(tally, arguments[1], name, golden->root());
    }
    return tally.end();
}
