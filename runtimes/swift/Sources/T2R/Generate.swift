import CT2R

/// A callback passed through C. An error must not propagate through C.
private final class Progress {
    let callback: (Int64) throws -> Bool
    var thrown: Error?

    init(_ callback: @escaping (Int64) throws -> Bool) { self.callback = callback }
}

extension Decoder {
    /// Read a prompt, and generate up to maxTokens tokens. The last is chosen but not read: begin the next call with it.
    /// callback gets each token as it is chosen; false ends the text there, and so does an error, which is rethrown.
    /// Without a callback, a generation graph, if there is one, generates all in one run.
    public func generate(
        _ prompt: [Int64], maxTokens: Int64, sampling: Sampling = Sampling(), callback: ((Int64) throws -> Bool)? = nil
    ) throws -> [Int64] {
        let progress = callback.map(Progress.init)
        let user = progress.map { Unmanaged.passUnretained($0).toOpaque() }
        let written = try withExtendedLifetime(progress) {
            try turn.use {
                try ((sampling.stopTokens ?? []) + [0]).withUnsafeBufferPointer { stops in
                    var given = try sampling.given(handle, stops.baseAddress!)
                    var tokens: UnsafePointer<Int64>?
                    var count = 0
                    let called: t2r_callback? = progress == nil ? nil : next
                    try check(t2r_generate(handle, prompt, prompt.count, maxTokens, &given, called, user, &tokens, &count))
                    return copied(tokens, count)
                }
            }
        }
        if let thrown = progress?.thrown { throw thrown }
        return written
    }
}

private func next(token: Int64, user: UnsafeMutableRawPointer?) -> Int32 {
    let progress = Unmanaged<Progress>.fromOpaque(user!).takeUnretainedValue()
    do {
        return try progress.callback(token) ? 1 : 0
    } catch {
        progress.thrown = error
        return 0
    }
}
