import Foundation
import T2R

/// Why a case has failed.
struct Wrong: Error, CustomStringConvertible {
    let description: String
}

func require(_ good: Bool, _ why: @autoclosure () -> String) throws {
    if !good { throw Wrong(description: why()) }
}

func same<T: Equatable>(_ found: T, _ wanted: T, _ what: String) throws {
    try require(found == wanted, "\(what): \("\(found)".prefix(100)) for \("\(wanted)".prefix(100))")
}

func near(_ found: [Float], _ wanted: [Double], _ bound: Double, _ what: String) throws {
    try same(found.count, wanted.count, what)
    for (one, other) in zip(found, wanted) {
        let off = abs(Double(one) - other)
        try require(off <= bound, "\(what): off by \(off) of \(bound)")
    }
}

/// A value of a golden file.
struct Golden {
    let value: Any

    static func read(_ path: String) throws -> Golden {
        Golden(value: try JSONSerialization.jsonObject(with: Data(contentsOf: URL(fileURLWithPath: path))))
    }

    func cast<T>(_ type: T.Type) throws -> T {
        guard let found = value as? T else { throw Wrong(description: "another value in the golden file than \(type)") }
        return found
    }

    func find(_ key: String) throws -> Golden? { try cast([String: Any].self)[key].map(Golden.init) }

    func at(_ key: String) throws -> Golden {
        guard let found = try find(key) else { throw Wrong(description: "no \(key) in the golden file") }
        return found
    }

    func pairs() throws -> [(String, Golden)] { try cast([String: Any].self).map { ($0, Golden(value: $1)) } }
    func list() throws -> [Golden] { try cast([Any].self).map(Golden.init) }
    func text() throws -> String { try cast(String.self) }
    func whole() throws -> Int64 { try cast(NSNumber.self).int64Value }
    func real() throws -> Double { try cast(NSNumber.self).doubleValue }
    func flag() throws -> Bool { try cast(Bool.self) }
    func wholes() throws -> [Int64] { try list().map { try $0.whole() } }
    func rows() throws -> [[Int64]] { try list().map { try $0.wholes() } }

    func array() throws -> Numbers {
        let made = Numbers(shape: try at("shape").wholes(), data: try at("data").list().map { try $0.real() })
        try same(made.data.count, made.shape.reduce(1) { $0 * Int($1) }, "the size of an array")
        return made
    }
}

/// An array of a golden file, row-major.
struct Numbers {
    let shape: [Int64]
    let data: [Double]
    var length: Int { Int(shape[1]) }

    /// One T of an array (B, T, N) or (B, T), rows concatenated.
    func column(_ t: Int) -> [Double] {
        let size = shape.count == 3 ? Int(shape[2]) : 1
        return (0..<Int(shape[0])).flatMap { data[(($0 * length + t) * size)..<(($0 * length + t + 1) * size)] }
    }

    /// Tokens (B, T) of a range of T: one list per sequence.
    func tokens(_ range: Range<Int>) -> [[Int64]] {
        (0..<Int(shape[0])).map { row in range.map { Int64(data[row * length + $0]) } }
    }
}

extension Decoder.Tensor {
    /// No golden file has an integer that Float rounds, nor states of float16.
    var numbers: [Float] {
        data.withUnsafeBytes { bytes in
            switch dtype {
            case "float32": return Array(bytes.bindMemory(to: Float.self))
            case "int32": return bytes.bindMemory(to: Int32.self).map(Float.init)
            default: return bytes.bindMemory(to: Int64.self).map(Float.init)
            }
        }
    }

    func with(_ golden: Numbers) -> Decoder.Tensor {
        let bytes: [[UInt8]] = golden.data.map { number in
            switch dtype {
            case "float32": return withUnsafeBytes(of: Float(number), Array.init)
            case "int32": return withUnsafeBytes(of: Int32(number), Array.init)
            default: return withUnsafeBytes(of: Int64(number), Array.init)
            }
        }
        return Decoder.Tensor(name: name, dtype: dtype, shape: golden.shape, data: bytes.flatMap { $0 })
    }
}

extension Decoder {
    /// Set the states to golden ones.
    func set(_ golden: Golden) throws {
        try setStates(try states().map { $0.with(try golden.at($0.name).array()) })
    }

    /// Compare states with golden ones.
    func compare(_ golden: Golden, _ relative: Double) throws {
        let found = Dictionary(uniqueKeysWithValues: try states().map { ($0.name, $0) })
        for (name, wanted) in try golden.pairs() {
            let wanted = try wanted.array(), largest = wanted.data.map(abs).max() ?? 0
            guard let state = found[name] else { throw Wrong(description: "no state \(name)") }
            try same(state.shape, wanted.shape, "the shape of \(name)")
            try near(state.numbers, wanted.data, relative * largest, name)
        }
    }
}
