// story GRAPH PROMPT: a story as it is written, piece by piece.
import Foundation
import T2R

func story(_ graph: String, _ prompt: String) throws {
    let decoder = try Decoder(graph)
    let tokenizer = try decoder.tokenizer()
    let tokens = try tokenizer.encode(prompt)
    let stream = try tokenizer.stream(tokens)
    print(prompt, terminator: "")
    _ = try decoder.generate(tokens, maxTokens: 200, sampling: .greedy) { token in
        print(try stream.feed(token), terminator: "")
        return true
    }
    print(try stream.end())
}

do {
    guard CommandLine.arguments.count == 3 else {
        FileHandle.standardError.write(Data("usage: story GRAPH PROMPT\n".utf8))
        exit(2)
    }
    try story(CommandLine.arguments[1], CommandLine.arguments[2])
} catch {
    FileHandle.standardError.write(Data("\(error)\n".utf8))
    exit(2)
}
