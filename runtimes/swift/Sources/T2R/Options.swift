import CT2R

/// How a graph is opened. A new one has the library's defaults.
public struct Options {
    /// Inside an operator; 0: one a core.
    public var threads: Int32
    /// Whether the prefill, generation and beam graphs that lie beside are used.
    public var companions: Bool
    /// What a graph may ask for, at batch 1.
    public var maxStateBytes: Int64

    public init() {
        let made = t2r_defaults()
        (threads, companions, maxStateBytes) = (made.threads, made.companions != 0, made.max_state_bytes)
    }

    var given: t2r_options {
        var made = t2r_defaults()
        (made.threads, made.companions, made.max_state_bytes) = (threads, companions ? 1 : 0, maxStateBytes)
        return made
    }
}

/// How tokens are chosen. A new one has the library's defaults.
public struct Sampling {
    /// 0: the largest logit, of equals the lowest token.
    public var temperature: Double
    /// 0: all.
    public var topK: Int64
    /// 1: all.
    public var topP: Double
    /// 0: all.
    public var minP: Double
    /// 1: none.
    public var repetitionPenalty: Double
    /// 0: no limit.
    public var noRepeatNgram: Int64
    /// The same seed gives the same text; -1: a new one for each.
    public var seed: Int64
    /// The text ends with the first of them; nil: the graph's own.
    public var stopTokens: [Int64]?

    public init() {
        let made = t2r_sampling_defaults()
        (temperature, topK, topP, minP) = (made.temperature, made.top_k, made.top_p, made.min_p)
        (repetitionPenalty, noRepeatNgram, seed) = (made.repetition_penalty, made.no_repeat_ngram, made.seed)
    }

    /// The likeliest token each time.
    public static var greedy: Sampling {
        var made = Sampling()
        made.temperature = 0
        return made
    }

    /// The stop tokens lie at `stops` for as long as the call lasts; it is not nil.
    func given(_ stops: UnsafePointer<Int64>) -> t2r_sampling {
        var made = t2r_sampling_defaults()
        (made.temperature, made.top_k, made.top_p, made.min_p) = (temperature, topK, topP, minP)
        (made.repetition_penalty, made.no_repeat_ngram, made.seed) = (repetitionPenalty, noRepeatNgram, seed)
        if let stopTokens {
            (made.stop_tokens, made.stop_count) = (stops, stopTokens.count)
        }
        return made
    }
}

/// How translations are searched for. A new one has the library's defaults.
public struct Beam {
    /// When a search ends before its maxTokens.
    public enum EarlyStopping: Int32 {
        /// When width hypotheses are finished, and none that goes on looks better.
        case no
        /// When width hypotheses are finished.
        case yes
        /// Not before none can become better.
        case never
    }

    /// 1 is greedy.
    public var width: Int64
    /// 0: 256, or fewer where positions end before.
    public var maxTokens: Int64
    public var minTokens: Int64
    public var earlyStopping = EarlyStopping.no
    /// Whether the last of maxTokens is an end.
    public var forcedEnd: Bool
    public var nBest: Int64
    public var lengthPenalty: Double
    /// 1: none.
    public var repetitionPenalty: Double
    /// 0: no limit.
    public var noRepeatNgram: Int64

    public init() {
        let made = t2r_beam_defaults()
        (width, maxTokens, minTokens, forcedEnd) = (made.width, made.max_tokens, made.min_tokens, made.forced_end != 0)
        (nBest, lengthPenalty) = (made.n_best, made.length_penalty)
        (repetitionPenalty, noRepeatNgram) = (made.repetition_penalty, made.no_repeat_ngram)
    }

    var given: t2r_beam {
        var made = t2r_beam_defaults()
        (made.width, made.max_tokens, made.min_tokens) = (width, maxTokens, minTokens)
        (made.early_stopping, made.forced_end) = (earlyStopping.rawValue, forcedEnd ? 1 : 0)
        (made.n_best, made.length_penalty) = (nBest, lengthPenalty)
        (made.repetition_penalty, made.no_repeat_ngram) = (repetitionPenalty, noRepeatNgram)
        return made
    }
}
