//! greedy GRAPH THREADS TOKEN: a greedy text, asked as ../protocol.hpp says.
use std::error::Error;
use std::io::stdin;
use std::time::Instant;

const DISCARDED: usize = 5; // turns that do not count

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, graph, threads, first] = &arguments[..] else { return Err("usage: greedy GRAPH THREADS TOKEN".into()) };
    let options = t2r::Options { threads: threads.parse()?, ..Default::default() };
    let mut decoder = t2r::Decoder::open_with(graph, &options)?;
    println!("ready");
    for line in stdin().lines() {
        let line = line?;
        let (word, count) = line.split_once(' ').ok_or("a word and a number")?;
        let (timed, count): (bool, usize) = (word == "time", count.parse()?);
        decoder.reset(1)?;
        let mut token: i64 = first.parse()?;
        let mut found = Vec::new();
        for turn in 0..count + if timed { DISCARDED } else { 0 } {
            let before = Instant::now();
            token = largest(decoder.step(&[token])?);
            let milliseconds = before.elapsed().as_secs_f64() * 1e3;
            if !timed {
                found.push(token.to_string());
            } else if turn >= DISCARDED {
                found.push(milliseconds.to_string());
            }
        }
        println!("{}", found.join(" "));
    }
    Ok(())
}

fn largest(logits: &[f32]) -> i64 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as i64
}
