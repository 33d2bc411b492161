import CT2R

/// A translation that a search found.
public struct Translation {
    public let tokens: [Int64]
    public let score: Double
}

extension Decoder {
    /// Read sources; the start tokens of their translations come next. The batch becomes the number of sources.
    public func encodeSources(_ sources: [[Int64]]) throws {
        let longest = sources.map(\.count).max() ?? 0
        let tokens = sources.flatMap { $0 + [Int64](repeating: 0, count: longest - $0.count) }
        let lengths = sources.map { Int64($0.count) }
        try turn.use { try check(t2r_encode_sources(handle, tokens, lengths, sources.count, longest)) }
    }

    /// Translate a source by beam search, best first.
    public func translate(_ source: [Int64], beam: Beam = Beam()) throws -> [Translation] {
        try turn.use {
            var given = try beam.given(handle)
            var count = 0
            try check(t2r_translate(handle, source, source.count, &given, &count))
            return try (0..<count).map { index in
                var tokens: UnsafePointer<Int64>?
                var length = 0
                var score = 0.0
                try check(t2r_translation(handle, index, &tokens, &length, &score))
                return Translation(tokens: copied(tokens, length), score: score)
            }
        }
    }
}
