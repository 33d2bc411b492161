// The kinds of cases: runtimes/contract/conformance.md.
import Foundation
import T2R

private func open(_ golden: Golden, _ folder: String) throws -> Decoder { try Decoder("\(folder)/\(try golden.at("graph").text())") }

private func logitsBound(_ golden: Golden) throws -> Double { try golden.at("tolerance").at("logits_absolute").real() }

private func stateBound(_ golden: Golden) throws -> Double {
    try golden.at("tolerance").at("state_relative_to_its_largest").real()
}

func trace(_ golden: Golden, _ folder: String) throws {
    let decoder = try open(golden, folder)
    try pieces(decoder, golden, Array(repeating: 1, count: try golden.at("ids").array().length))
    if let cuts = try golden.find("cuts") { try pieces(decoder, golden, try cuts.wholes()) }
    if let wanted = try golden.find("top") { try top(decoder, golden, wanted) }
    if let greedy = try golden.find("greedy") {
        let wanted = try greedy.at("tokens").wholes()
        var sampling = Sampling.greedy
        sampling.stopTokens = []
        try decoder.reset(batch: 1)
        let found = try decoder.generate(try greedy.at("prompt").wholes(), maxTokens: Int64(wanted.count), sampling: sampling)
        try same(found, wanted, "greedy tokens")
    }
}

/// Read a trace in pieces of these lengths; check the logits after each, and the states after the last.
private func pieces(_ decoder: Decoder, _ golden: Golden, _ lengths: [Int64]) throws {
    let ids = try golden.at("ids").array(), logits = try golden.at("logits").array()
    try decoder.set(try golden.at("start"))
    var read = 0
    for length in lengths {
        let piece = ids.tokens(read..<(read + Int(length)))
        read += Int(length)
        let found = length == 1 ? try decoder.step(piece.flatMap { $0 }) : try decoder.prefill(piece)
        try near(found, logits.column(read - 1), try logitsBound(golden), "logits after \(read) tokens")
    }
    try same(read, ids.length, "tokens read")
    try decoder.compare(try golden.at("end"), try stateBound(golden))
}

private func top(_ decoder: Decoder, _ golden: Golden, _ wanted: Golden) throws {
    let ids = try golden.at("ids").array()
    let logits = try wanted.at("logits").array(), tokens = try wanted.at("tokens").array()
    try decoder.set(try golden.at("start"))
    for t in 0..<ids.length {
        let found = try decoder.topK(ids.tokens(t..<(t + 1)))
        try near(found.logits, logits.column(t), try logitsBound(golden), "largest logits")
        try same(found.tokens, tokens.column(t).map { Int64($0) }, "largest tokens")
    }
}

func sampling(_ golden: Golden, _ folder: String) throws {
    let decoder = try open(golden, folder)
    for text in try golden.at("texts").list() {
        let options = try options(text.at("options"))
        for callback in [nil, { _ in true }] as [((Int64) -> Bool)?] {
            try decoder.reset(batch: 1)
            let found = try decoder.generate(
                try text.at("prompt").wholes(), maxTokens: try text.at("max_tokens").whole(), sampling: options,
                callback: callback)
            try same(found, try text.at("tokens").wholes(), "tokens")
        }
    }
}

private func options(_ given: Golden) throws -> Sampling {
    var made = Sampling()
    for (name, value) in try given.pairs() {
        switch name {
        case "temperature": made.temperature = try value.real()
        case "top_k": made.topK = try value.whole()
        case "top_p": made.topP = try value.real()
        case "min_p": made.minP = try value.real()
        case "repetition_penalty": made.repetitionPenalty = try value.real()
        case "no_repeat_ngram": made.noRepeatNgram = try value.whole()
        case "seed": made.seed = try value.whole()
        case "stop_tokens": made.stopTokens = try value.wholes()
        default: throw Wrong(description: "an option that is not known, \(name)")
        }
    }
    return made
}

func calls(_ golden: Golden, _ folder: String) throws {
    let decoder = try open(golden, folder)
    for (n, operation) in try golden.at("operations").list().enumerated() {
        var kind = ""
        do {
            let found = try call(decoder, operation, folder)
            if let wanted = try operation.find("logits") {
                try near(found, try wanted.array().data, try logitsBound(golden), "logits of call \(n)")
            }
        } catch let failure as Failure {
            kind = "\(failure.kind)"
        }
        try same(kind, try operation.find("error")?.text() ?? "", "the error of call \(n)")
        if let position = try operation.find("position") {
            try same(try decoder.info().position, try position.whole(), "the position after call \(n)")
        }
    }
    try decoder.compare(try golden.at("end"), try stateBound(golden))
}

/// One call of a decoder, by the key that names it: its logits, if it has any.
private func call(_ decoder: Decoder, _ call: Golden, _ folder: String) throws -> [Float] {
    if let tokens = try call.find("step") { return try decoder.step(try tokens.wholes()) }
    if let rows = try call.find("prefill") { return try decoder.prefill(try rows.rows()) }
    if let rows = try call.find("top_k") {
        _ = try decoder.topK(try rows.rows())
    } else if let rows = try call.find("reset") {
        try decoder.reset(batch: Int(try rows.whole()))
    } else if let rows = try call.find("reorder") {
        try decoder.reorder(try rows.wholes())
    } else if let file = try call.find("load") {
        _ = try decoder.load("\(folder)/\(try file.text())")
    } else {
        try generate(decoder, call)
    }
    return []
}

private func generate(_ decoder: Decoder, _ call: Golden) throws {
    var seen: Int64 = 0, callback: ((Int64) -> Bool)?
    if let end = try call.find("ends_at")?.whole() {
        callback = { _ in
            seen += 1
            return seen < end
        }
    }
    let found = try decoder.generate(
        try call.at("generate").wholes(), maxTokens: try call.at("max_tokens").whole(),
        sampling: try options(call.at("options")), callback: callback)
    try same(found, try call.at("tokens").wholes(), "tokens")
}

func snapshot(_ golden: Golden, _ folder: String) throws {
    let decoder = try open(golden, folder), path = "\(folder)/\(try golden.at("snapshot").text())"
    let token = try decoder.load(path)
    try same(token, try? golden.at("token").whole(), "the token")
    try same(try decoder.info().position, try golden.at("position").whole(), "the position")
    for state in try decoder.states() {
        let wanted = try golden.at("states").at(state.name).array().data.map(Float.init)
        try same(state.numbers, wanted, state.name)
    }
    let again = NSTemporaryDirectory() + "t2r-conformance-\(ProcessInfo.processInfo.processIdentifier)"
    try decoder.save(again, token: token)
    let (saved, wanted) = (FileManager.default.contents(atPath: again), FileManager.default.contents(atPath: path))
    try FileManager.default.removeItem(atPath: again)
    try require(saved == wanted, "other bytes when it is saved again")
    let ids = try golden.at("ids").array(), logits = try golden.at("logits").array()
    for t in 0..<ids.length {
        let found = try decoder.step(ids.tokens(t..<(t + 1)).flatMap { $0 })
        try near(found, logits.column(t), try logitsBound(golden), "logits")
    }
}

// Swift's == compares canonically equivalent characters as equal, so texts are compared by their bytes.

func tokenizer(_ golden: Golden, _ folder: String) throws {
    let tokenizer = try open(golden, folder).tokenizer()
    for one in try golden.at("texts").list().map({ try $0.list() }) {
        let text = try one[0].text(), tokens = try one[1].wholes()
        try same(try tokenizer.encode(text), tokens, "tokens of \(text)")
        try same(Array(try tokenizer.decode(tokens).utf8), Array(try one[2].text().utf8), "text of \(tokens)")
    }
}

func stream(_ golden: Golden, _ folder: String) throws {
    let tokenizer = try open(golden, folder).tokenizer()
    for text in try golden.at("texts").list() {
        let stream = try tokenizer.stream(try text.at("prompt").wholes())
        let pieces = try text.at("tokens").wholes().map { Array(try stream.feed($0).utf8) }
        try same(pieces, try text.at("pieces").list().map { Array(try $0.text().utf8) }, "pieces")
        try same(Array(try stream.end().utf8), Array(try text.at("end").text().utf8), "the end")
    }
}

/// With and without companions: the encoder exists in both cases.
func translator(_ golden: Golden, _ folder: String) throws {
    var options = Options()
    for companions in [false, true] {
        options.companions = companions
        let decoder = try Decoder("\(folder)/\(try golden.at("graph").text())", options: options)
        try decoder.encodeSources(try golden.at("sources").rows())
        try decoder.compare(try golden.at("states"), try stateBound(golden))
        for search in try golden.at("searches").list() {
            let found = try decoder.translate(try search.at("source").wholes(), beam: try beam(search.at("beam")))
            let wanted = try search.at("translations").list()
            try same(found.map(\.tokens), try wanted.map { try $0.at("tokens").wholes() }, "translations")
            for (one, other) in zip(found, wanted) {
                try require(abs(one.score - (try other.at("score").real())) <= 1e-4, "another score")
            }
        }
    }
}

private func beam(_ given: Golden) throws -> Beam {
    var made = Beam()
    for (name, value) in try given.pairs() {
        switch name {
        case "width": made.width = try value.whole()
        case "max_tokens": made.maxTokens = try value.whole()
        case "min_tokens": made.minTokens = try value.whole()
        case "early_stopping": made.earlyStopping = value.value is String ? .never : try value.flag() ? .yes : .no
        case "forced_end": made.forcedEnd = try value.flag()
        case "n_best": made.nBest = try value.whole()
        case "length_penalty": made.lengthPenalty = try value.real()
        case "repetition_penalty": made.repetitionPenalty = try value.real()
        case "no_repeat_ngram": made.noRepeatNgram = try value.whole()
        case "copy": made.copy = try value.flag()
        default: throw Wrong(description: "an option that is not known, \(name)")
        }
    }
    return made
}

func bad(_ golden: Golden, _ folder: String) throws {
    for file in try golden.at("files").list() {
        let name = try file.at("file").text()
        do {
            try attempt(file, name, folder)
        } catch let failure as Failure {
            try same("\(failure.kind)", try file.at("kind").text(), "\(name) (\(failure))")
            try require(failure.message.hasPrefix("expected ") && !failure.message.contains("\n"), "no message of one line")
            continue
        }
        throw Wrong(description: "\(name) is taken")
    }
}

/// Make the call that must fail on a bad file.
private func attempt(_ file: Golden, _ name: String, _ folder: String) throws {
    let call = try file.at("call").text(), path = "\(folder)/\(name)"
    let decoder = call == "snapshot" ? try open(file, folder) : try Decoder(path)
    switch call {
    case "open": break
    case "tokenizer": _ = try decoder.tokenizer()
    case "encode": _ = try decoder.tokenizer().encode(file.at("text").text())
    case "snapshot": _ = try decoder.load(path)
    case "generate": _ = try decoder.generate([1], maxTokens: 3)
    case "prefill": _ = try decoder.prefill(try file.at("tokens").rows())
    case "translate": _ = try decoder.translate(try file.at("source").wholes(), beam: try beam(file.at("beam")))
    default: throw Wrong(description: "a call that is not known, \(call)")
    }
}
