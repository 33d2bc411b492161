// misuse FOLDER NAME: one misuse of the golden files of FOLDER, and its result. A decoder closes itself after its last
// reference, so use of a closed one is not among them.
import Foundation
import T2R

struct Mine: Error {}

func open(_ name: String) throws -> Decoder { try Decoder("\(CommandLine.arguments[1])/\(name)") }

func position() throws {
    let decoder = try open("ends.onnx")
    for _ in 0...40 { _ = try decoder.step([1, 2]) }
}

func twoThreads() throws {
    let decoder = try open("tiny.onnx"), inside = DispatchSemaphore(value: 0), forever = DispatchSemaphore(value: 0)
    Thread.detachNewThread {
        _ = try? decoder.generate([1], maxTokens: 2, sampling: .greedy) { _ in
            inside.signal()
            forever.wait()
            return true
        }
    }
    inside.wait()
    _ = try decoder.step([1])
}

func callback() throws {
    let decoder = try open("tiny.onnx")
    do {
        _ = try decoder.generate([1], maxTokens: 5) { _ in throw Mine() }
    } catch is Mine {
        print("mine")
    }
    _ = try decoder.step([1])  // no longer in use
}

let misuses: [String: () throws -> Void] = [
    "no-file": { _ = try open("nowhere.onnx") },
    "zero-byte": { _ = try open("tiny\0.onnx") },
    "prefill-graph": { _ = try open("bad/role.onnx") },
    "token": { _ = try open("tiny.onnx").step([17]) },
    "batch": { _ = try open("tiny.onnx").step([1, 2]) },
    "rows": { _ = try open("tiny.onnx").prefill([[1, 2], [1]]) },
    "position": position,
    "other-model": { _ = try open("tiny.onnx").load("\(CommandLine.arguments[1])/packed.state") },
    "two-threads": twoThreads,
    "from-a-callback": {
        let decoder = try open("tiny.onnx")
        _ = try decoder.generate([1], maxTokens: 2) { _ in try decoder.step([1]).count > 0 }
    },
    "callback": callback,
]

do {
    try misuses[CommandLine.arguments[2]]!()
} catch {
    FileHandle.standardError.write(Data("\(error)\n".utf8))
    exit(2)
}
