//! story GRAPH PROMPT: a story as it is written, piece by piece.
use std::env::args_os;
use std::io::{stdout, Write};
use std::process::ExitCode;

fn story(graph: &str, prompt: &[u8]) -> t2r::Result<()> {
    let mut decoder = t2r::Decoder::open(graph)?;
    let mut tokenizer = decoder.tokenizer()?;
    let tokens = tokenizer.encode(prompt)?;
    let mut stream = tokenizer.stream(&tokens)?;
    print!("{}", String::from_utf8_lossy(prompt));
    decoder.generate_with(&tokens, 200, &t2r::Sampling::greedy(), |token| {
        print!("{}", stream.feed(token).unwrap_or_default());
        stdout().flush().is_ok()
    })?;
    println!("{}", stream.end()?);
    Ok(())
}

fn main() -> ExitCode {
    let [_, graph, prompt] = &args_os().collect::<Vec<_>>()[..] else {
        eprintln!("usage: story GRAPH PROMPT");
        return ExitCode::from(2);
    };
    match story(&graph.to_string_lossy(), prompt.as_encoded_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}"); // one line: its kind, what was expected, what was received, what to do
            ExitCode::from(2)
        }
    }
}
