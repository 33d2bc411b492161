import CT2R

/// How a graph is opened. A new one has the library's defaults.
public struct Options {
    /// Threads in an operator; 0: one per core.
    public var threads: Int32
    /// Whether to use the prefill and generation graphs beside the graph.
    public var companions: Bool
    /// Limit of a graph's state bytes, at batch 1.
    public var maxStateBytes: Int64
    /// Maximum tokens of a translator's source, besides the graph's own limit.
    public var maxSource: Int64

    public init() {
        var made = t2r_options()
        t2r_defaults(&made, MemoryLayout<t2r_options>.size)
        (threads, companions, maxStateBytes) = (made.threads, made.companions != 0, made.max_state_bytes)
        maxSource = made.max_source
    }

    var given: t2r_options {
        var made = t2r_options()
        t2r_defaults(&made, MemoryLayout<t2r_options>.size)
        (made.threads, made.companions, made.max_state_bytes) = (threads, companions ? 1 : 0, maxStateBytes)
        made.max_source = maxSource
        return made
    }
}

/// Overwrite with a value that is not nil.
private func set<T>(_ to: inout T, _ value: T?) {
    if let value { to = value }
}

/// How tokens are chosen. nil means the graph's value.
public struct Sampling {
    /// 0: the largest logit, the lowest token on ties.
    public var temperature: Double?
    /// 0: all.
    public var topK: Int64?
    /// 1: all.
    public var topP: Double?
    /// 0: all.
    public var minP: Double?
    /// 1: none.
    public var repetitionPenalty: Double?
    /// 0: no limit.
    public var noRepeatNgram: Int64?
    /// The same seed gives the same text; nil: a new seed for each.
    public var seed: Int64?
    /// The text ends with the first of them; nil: the graph's own.
    public var stopTokens: [Int64]?

    public init() {}

    /// The likeliest token each time.
    public static var greedy: Sampling {
        var made = Sampling()
        made.temperature = 0
        return made
    }

    /// `stops` holds the stop tokens for the duration of the call; it is not nil.
    func given(_ decoder: OpaquePointer, _ stops: UnsafePointer<Int64>) throws -> t2r_sampling {
        var made = t2r_sampling()
        try check(t2r_sampling_defaults(decoder, &made, MemoryLayout<t2r_sampling>.size))
        set(&made.temperature, temperature)
        set(&made.top_k, topK)
        set(&made.top_p, topP)
        set(&made.min_p, minP)
        set(&made.repetition_penalty, repetitionPenalty)
        set(&made.no_repeat_ngram, noRepeatNgram)
        set(&made.seed, seed)
        if let stopTokens {
            (made.stop_tokens, made.stop_count) = (stops, stopTokens.count)
        }
        return made
    }
}

/// Options of beam search. nil means the graph's value.
public struct Beam {
    /// When a search ends before its maxTokens.
    public enum EarlyStopping: Int32 {
        /// When width hypotheses are finished, and no unfinished one looks better.
        case no
        /// When width hypotheses are finished.
        case yes
        /// When no unfinished hypothesis can become better.
        case never
    }

    /// 1 is greedy.
    public var width: Int64?
    /// nil: the graph's, capped at the model's positions.
    public var maxTokens: Int64?
    public var minTokens: Int64?
    public var earlyStopping: EarlyStopping?
    /// Whether the last of maxTokens is forced to be an end token.
    public var forcedEnd: Bool?
    public var nBest: Int64?
    public var lengthPenalty: Double?
    /// 1: none.
    public var repetitionPenalty: Double?
    /// 0: no limit.
    public var noRepeatNgram: Int64?
    /// Whether numbers and unknown names of the source are copied.
    public var copy: Bool?

    public init() {}

    func given(_ decoder: OpaquePointer) throws -> t2r_beam {
        var made = t2r_beam()
        try check(t2r_beam_defaults(decoder, &made, MemoryLayout<t2r_beam>.size))
        set(&made.width, width)
        set(&made.max_tokens, maxTokens)
        set(&made.min_tokens, minTokens)
        set(&made.early_stopping, earlyStopping?.rawValue)
        set(&made.forced_end, forcedEnd.map { $0 ? 1 : 0 })
        set(&made.n_best, nBest)
        set(&made.length_penalty, lengthPenalty)
        set(&made.repetition_penalty, repetitionPenalty)
        set(&made.no_repeat_ngram, noRepeatNgram)
        set(&made.copy, copy.map { $0 ? 1 : 0 })
        return made
    }
}
