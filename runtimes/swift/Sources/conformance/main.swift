// conformance FOLDER: runs all cases of FOLDER/index.json. One line per case, then `N passed, N failed`; exit 1 if any failed.
import Foundation
import T2R

let kinds: [String: (Golden, String) throws -> Void] = [
    "trace": trace, "sampling": sampling, "calls": calls, "snapshot": snapshot, "tokenizer": tokenizer, "stream": stream,
    "translator": translator, "bad": bad,
]

func conform(_ folder: String) throws -> Int32 {
    let index = try Golden.read("\(folder)/index.json")
    try same(try index.at("golden").whole(), 1, "the version of the golden files")
    var passed = 0, failed = 0
    for one in try index.at("cases").list() {
        let name = try one.at("case").text()
        do {
            let kind = try one.at("kind").text()
            guard let run = kinds[kind] else { throw Wrong(description: "a kind of case that is not known, \(kind)") }
            try run(try Golden.read("\(folder)/\(try one.at("file").text())"), folder)
            print("ok \(name)")
            passed += 1
        } catch {
            print("FAILED \(name): \(error)")
            failed += 1
        }
    }
    print("\(passed) passed, \(failed) failed")
    return failed > 0 || passed == 0 ? 1 : 0
}

do {
    exit(try conform(CommandLine.arguments.dropFirst().first ?? ""))
} catch {
    let line = "file: expected a folder of golden files; received \(error); conformance models/tiny\n"
    FileHandle.standardError.write(Data(line.utf8))
    exit(2)
}
