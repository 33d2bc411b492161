import CT2R

/// An opened step graph and the states of the texts that it reads. What a call returns is a copy. It is used by one thread
/// at a time; concurrent use is an error.
public final class Decoder {
    let handle: OpaquePointer
    let turn = Turn("decoder")

    /// Properties of a graph, and the progress of its decoder.
    public struct Info {
        public let vocabSize: Int
        /// Current number of sequences.
        public let batch: Int
        /// The only batch that the graph takes; nil: any.
        public let fixedBatch: Int?
        /// Tokens read by the furthest sequence.
        public let position: Int64
        /// Position after which a step is refused; nil: no limit.
        public let maxPositions: Int64?
        public let bosToken: Int64?
        public let eosTokens: [Int64]
        /// How many logits topK returns; 0: the graph has no such outputs.
        public let topK: Int
        public let states: Int
        /// The checkpoint's SHA-256.
        public let checkpoint: String
        /// Whether there is a prefill graph.
        public let prefills: Bool
        /// Whether there is a generation graph.
        public let generates: Bool
    }

    /// A state.
    public struct Tensor {
        public var name: String
        /// float32, float16, int32 or int64.
        public var dtype: String
        public var shape: [Int64]
        /// Row-major, in native byte order.
        public var data: [UInt8]

        public init(name: String, dtype: String, shape: [Int64], data: [UInt8]) {
            (self.name, self.dtype, self.shape, self.data) = (name, dtype, shape, data)
        }
    }

    /// Open a step graph, at the start of a text.
    public init(_ path: String, options: Options = Options()) throws {
        var opened: OpaquePointer?
        var given = options.given
        try check(t2r_open(try whole(path), &given, &opened))
        handle = opened!
    }

    private init(handle: OpaquePointer) { self.handle = handle }

    deinit { t2r_close(handle) }

    /// Another decoder of the same opened graph, at the start of a text, for another thread: the weights are shared.
    public func fork() throws -> Decoder {
        try turn.use {
            var opened: OpaquePointer?
            try check(t2r_fork(handle, &opened))
            return Decoder(handle: opened!)
        }
    }

    public func info() throws -> Info { try turn.use { try found() } }

    private func found() throws -> Info {
        var found = t2r_info()
        try check(t2r_get_info(handle, &found, MemoryLayout<t2r_info>.size))
        return Info(
            vocabSize: Int(found.vocab_size), batch: Int(found.batch),
            fixedBatch: found.fixed_batch > 0 ? Int(found.fixed_batch) : nil, position: found.position,
            maxPositions: found.max_positions > 0 ? found.max_positions : nil,
            bosToken: found.bos_token >= 0 ? found.bos_token : nil, eosTokens: copied(found.eos_tokens, found.eos_count),
            topK: Int(found.top_k), states: found.states, checkpoint: String(cString: found.checkpoint),
            prefills: found.prefills != 0, generates: found.generates != 0)
    }

    /// Reset to the start of a text, for batch sequences; 0 keeps the batch.
    public func reset(batch: Int = 0) throws { try turn.use { try check(t2r_reset(handle, batch)) } }

    /// Read one token per sequence. Returns the logits of the next token, (batch, vocabSize), row-major.
    public func step(_ tokens: [Int64]) throws -> [Float] {
        try turn.use {
            var logits: UnsafePointer<Float>?
            try check(t2r_step(handle, tokens, tokens.count, &logits))
            return copied(logits, tokens.count * (try found().vocabSize))
        }
    }

    /// Read equally many tokens of each sequence, many per run if there is a prefill graph. Returns the logits of the
    /// next token, (batch, vocabSize).
    public func prefill(_ rows: [[Int64]]) throws -> [Float] {
        let tokens = try flat(rows)
        return try turn.use {
            var logits: UnsafePointer<Float>?
            let size = rows.count * (try found().vocabSize)
            try check(t2r_prefill(handle, tokens, rows.count, rows.first?.count ?? 0, &logits))
            return copied(logits, size)
        }
    }

    /// As `prefill`, but returns only the largest logits, (batch, topK), and their tokens.
    public func topK(_ rows: [[Int64]]) throws -> (logits: [Float], tokens: [Int64]) {
        let tokens = try flat(rows)
        return try turn.use {
            var logits: UnsafePointer<Float>?
            var chosen: UnsafePointer<Int64>?
            let size = rows.count * (try found().topK)
            try check(t2r_top_k(handle, tokens, rows.count, rows.first?.count ?? 0, &logits, &chosen))
            return (copied(logits, size), copied(chosen, size))
        }
    }

    /// Drop, repeat or reorder the sequences. The batch becomes the number of rows.
    public func reorder(_ rows: [Int64]) throws { try turn.use { try check(t2r_reorder(handle, rows, rows.count)) } }

    /// Copies of all states.
    public func states() throws -> [Tensor] {
        try turn.use {
            try (0..<(try found().states)).map { index in
                var state = t2r_tensor()
                try check(t2r_state(handle, index, &state))
                let data = UnsafeRawBufferPointer(start: state.data, count: state.bytes)
                return Tensor(
                    name: String(cString: state.name), dtype: String(cString: state.dtype),
                    shape: copied(state.shape, state.rank), data: Array(data))
            }
        }
    }

    /// Continue from a complete set of states; the batch becomes theirs. position: tokens read, if no state says it.
    public func setStates(_ states: [Tensor], position: Int64 = 0) throws {
        try turn.use { try pass(states[...], [], position) }
    }

    /// The states' pointers are valid only inside these nested closures.
    private func pass(_ rest: ArraySlice<Tensor>, _ given: [t2r_tensor], _ position: Int64) throws {
        guard let state = rest.first else {
            return try check(t2r_set_states(handle, given, given.count, position))
        }
        guard !(state.name + state.dtype).utf8.contains(0) else {
            throw Failure(
                kind: .snapshot,
                message: "expected a state's name and dtype; received a zero byte in it; see Decoder.states")
        }
        try state.name.withCString { name in
            try state.dtype.withCString { dtype in
                try state.shape.withUnsafeBufferPointer { shape in
                    try state.data.withUnsafeBytes { data in
                        let one = t2r_tensor(
                            name: name, dtype: dtype, rank: shape.count, shape: shape.baseAddress, data: data.baseAddress,
                            bytes: data.count)
                        try pass(rest.dropFirst(), given + [one], position)
                    }
                }
            }
        }
    }

    /// Write the states to a file, and a token that was chosen but not read.
    public func save(_ path: String, token: Int64? = nil) throws {
        try turn.use { try check(t2r_save(handle, try whole(path), token ?? -1)) }
    }

    /// Continue from such a file, of any language's runtime. Returns the saved token.
    public func load(_ path: String) throws -> Int64? {
        try turn.use {
            var token: Int64 = -1
            try check(t2r_load(handle, try whole(path), &token))
            return token < 0 ? nil : token
        }
    }
}

/// A path without zero bytes, at which C would cut it.
private func whole(_ path: String) throws -> String {
    guard !path.utf8.contains(0) else {
        throw Failure(kind: .file, message: "expected a path; received one with a zero byte in it; name a file")
    }
    return path
}

/// Rows of one length, concatenated.
func flat(_ rows: [[Int64]]) throws -> [Int64] {
    let length = rows.first?.count ?? 0
    if let other = rows.first(where: { $0.count != length }) {
        throw Failure(
            kind: .batch,
            message: "expected rows of one length; received \(length) and \(other.count) tokens; read them one by one")
    }
    return rows.flatMap { $0 }
}
