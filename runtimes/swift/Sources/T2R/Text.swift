import CT2R

/// Text to tokens and back. It may outlive its decoder.
public final class Tokenizer {
    private let handle: OpaquePointer
    private let turn = Turn("tokenizer")

    fileprivate init(handle: OpaquePointer) { self.handle = handle }

    /// A tokenizer from the text of a tokenizer.json. bosToken: what an empty text becomes.
    public init(json: String, bosToken: Int64? = nil) throws {
        var opened: OpaquePointer?
        try check(t2r_make_tokenizer(json, json.utf8.count, bosToken ?? -1, &opened))
        handle = opened!
    }

    deinit { t2r_close_tokenizer(handle) }

    /// The tokens of a text; special: with the tokenizer's special tokens around it.
    public func encode(_ text: String, special: Bool = true) throws -> [Int64] {
        try turn.use {
            var tokens: UnsafePointer<Int64>?
            var count = 0
            try check(t2r_encode(handle, text, text.utf8.count, special ? 1 : 0, &tokens, &count))
            return copied(tokens, count)
        }
    }

    /// The text of tokens, without special ones.
    public func decode(_ tokens: [Int64]) throws -> String {
        try turn.use { try written { t2r_decode(handle, tokens, tokens.count, &$0, &$1) } }
    }

    /// Streams the text of tokens that follow a prompt, without the prompt's text.
    public func stream(_ prompt: [Int64] = []) throws -> TextStream {
        try turn.use {
            var opened: OpaquePointer?
            try check(t2r_open_stream(handle, prompt, prompt.count, &opened))
            return TextStream(handle: opened!)
        }
    }
}

/// Streams text token by token, never half a character. It may outlive its tokenizer.
public final class TextStream {
    private let handle: OpaquePointer
    private let turn = Turn("stream")

    fileprivate init(handle: OpaquePointer) { self.handle = handle }

    deinit { t2r_close_stream(handle) }

    /// The text that this token completes, perhaps empty.
    public func feed(_ token: Int64) throws -> String {
        try turn.use { try written { t2r_feed(handle, token, &$0, &$1) } }
    }

    /// The text held back for the rest of a character.
    public func end() throws -> String { try turn.use { try written { t2r_end_stream(handle, &$0, &$1) } } }
}

extension Decoder {
    /// The tokenizer in the graph's metadata.
    public func tokenizer() throws -> Tokenizer {
        try turn.use {
            var opened: OpaquePointer?
            try check(t2r_open_tokenizer(handle, &opened))
            return Tokenizer(handle: opened!)
        }
    }

    /// The tokenizer of a translator's sources; the graph's own if there is no other.
    public func sourceTokenizer() throws -> Tokenizer {
        try turn.use {
            var opened: OpaquePointer?
            try check(t2r_open_source_tokenizer(handle, &opened))
            return Tokenizer(handle: opened!)
        }
    }
}

private func written(_ call: (inout UnsafePointer<CChar>?, inout Int) -> t2r_kind) throws -> String {
    var found: UnsafePointer<CChar>?
    var size = 0
    try check(call(&found, &size))
    return text(found, size)
}
