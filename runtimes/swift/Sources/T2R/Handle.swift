import CT2R
import Foundation

/// Every failure: a kind, and one line that says what was expected, what was received, what to do.
public struct Failure: Error, CustomStringConvertible {
    public let kind: Kind
    public let message: String
    public var description: String { "\(kind): \(message)" }
}

/// Error kinds, with the same names in every language's runtime.
public enum Kind: UInt32 {
    case file = 1, graph, version, metadata, interface, weights, tokenizer, token, position, batch, snapshot, sampling, provider
    case argument, state, memory, runtime, cancelled
}

/// The message is thread-local, so it is read at once.
func check(_ kind: t2r_kind) throws {
    if kind != T2R_OK {
        throw Failure(kind: Kind(rawValue: UInt32(kind.rawValue)) ?? .runtime, message: String(cString: t2r_error()))
    }
}

/// Lets one thread at a time use a handle, until a call's results have been copied.
final class Turn {
    private let name: String
    private let lock = NSLock()

    init(_ name: String) { self.name = name }

    func use<T>(_ body: () throws -> T) throws -> T {
        guard lock.try() else {
            throw Failure(
                kind: .state,
                message: "expected one call at a time in a \(name); received another, from a second thread or a callback; "
                    + "give each thread one of its own")
        }
        defer { lock.unlock() }
        return try body()
    }
}

func copied<T>(_ pointer: UnsafePointer<T>?, _ count: Int) -> [T] {
    Array(UnsafeBufferPointer(start: pointer, count: count))
}

func text(_ pointer: UnsafePointer<CChar>?, _ size: Int) -> String {
    let bytes = UnsafeRawBufferPointer(start: pointer, count: size)
    return String(decoding: bytes, as: UTF8.self)
}
