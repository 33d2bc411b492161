//! The kinds of cases: runtimes/contract/conformance.md.

use std::fs;
use std::path::Path;

use t2r::{Beam, Decoder, EarlyStopping, Kind, Options, Sampling, Tokenizer};

use crate::compare::{logits_bound, near, numbers, require, same, set, states, Array};
use crate::json::Json;
use crate::Outcome;

pub type Case = fn(&Json, &Path) -> Outcome<()>;

pub const KINDS: [(&str, Case); 8] = [
    ("trace", trace),
    ("sampling", sampling),
    ("calls", calls),
    ("snapshot", snapshot),
    ("tokenizer", tokenizer),
    ("stream", stream),
    ("translator", translator),
    ("bad", bad),
];

fn open(golden: &Json, folder: &Path) -> Outcome<Decoder> {
    Ok(Decoder::open(folder.join(golden.at("graph")?.text()?))?)
}

fn trace(golden: &Json, folder: &Path) -> Outcome<()> {
    let decoder = &mut open(golden, folder)?;
    let length = Array::of(golden.at("ids")?)?.shape[1];
    pieces(decoder, golden, &vec![1; length])?;
    if let Some(cuts) = golden.get("cuts") {
        pieces(decoder, golden, &cuts.wholes()?)?;
    }
    if golden.get("top").is_some() {
        top(decoder, golden)?;
    }
    if let Some(greedy) = golden.get("greedy") {
        let wanted = greedy.at("tokens")?.wholes()?;
        let sampling = Sampling { stop_tokens: Some(vec![]), ..Sampling::greedy() };
        decoder.reset(1)?;
        let written = decoder.generate(&greedy.at("prompt")?.wholes()?, wanted.len() as i64, &sampling)?;
        same(written, wanted, "greedy tokens")?;
    }
    Ok(())
}

/// Read a trace in pieces of these lengths; check the logits after each, and the states after the last.
fn pieces(decoder: &mut Decoder, golden: &Json, lengths: &[i64]) -> Outcome<()> {
    let (ids, logits) = (Array::of(golden.at("ids")?)?, Array::of(golden.at("logits")?)?);
    set(decoder, golden.at("start")?)?;
    let mut read = 0;
    for &length in lengths {
        let piece = ids.tokens(read, read + length as usize);
        read += length as usize;
        let found = if length == 1 { decoder.step(&piece.concat())? } else { decoder.prefill(&piece)? };
        near(found, &logits.column(read - 1), logits_bound(golden)?, &format!("logits after {read} tokens"))?;
    }
    same(read, ids.shape[1], "tokens read")?;
    states(decoder, golden, golden.at("end")?)
}

fn top(decoder: &mut Decoder, golden: &Json) -> Outcome<()> {
    let (ids, wanted) = (Array::of(golden.at("ids")?)?, golden.at("top")?);
    let (logits, tokens) = (Array::of(wanted.at("logits")?)?, Array::of(wanted.at("tokens")?)?);
    set(decoder, golden.at("start")?)?;
    for t in 0..ids.shape[1] {
        let (largest, chosen) = decoder.top_k(&ids.tokens(t, t + 1))?;
        near(largest, &logits.column(t), logits_bound(golden)?, "largest logits")?;
        let wanted: Vec<i64> = tokens.column(t).iter().map(|&token| token as i64).collect();
        same(chosen, &wanted, "largest tokens")?;
    }
    Ok(())
}

fn sampling(golden: &Json, folder: &Path) -> Outcome<()> {
    let decoder = &mut open(golden, folder)?;
    for text in golden.at("texts")?.list()? {
        let (prompt, most) = (text.at("prompt")?.wholes()?, text.at("max_tokens")?.whole()?);
        let (options, wanted) = (options(text.at("options")?)?, text.at("tokens")?.wholes()?);
        decoder.reset(1)?;
        same(&decoder.generate(&prompt, most, &options)?, &wanted, "tokens without a callback")?;
        decoder.reset(1)?;
        same(&decoder.generate_with(&prompt, most, &options, |_| true)?, &wanted, "tokens with a callback")?;
        if wanted.len() > 1 {
            decoder.reset(1)?;
            let canceller = decoder.canceller();
            let ended = decoder.generate_with(&prompt, most, &options, |_| canceller.cancel().is_ok());
            same(ended.map_err(|error| error.kind), Err(Kind::Cancelled), "a text that is cancelled")?;
            same(decoder.written(), &wanted[..1], "tokens before it was cancelled")?;
        }
    }
    Ok(())
}

fn options(given: &Json) -> Outcome<Sampling> {
    let mut made = Sampling::default();
    for (name, value) in given.map()? {
        match name.as_str() {
            "temperature" => made.temperature = Some(value.real()?),
            "top_k" => made.top_k = Some(value.whole()?),
            "top_p" => made.top_p = Some(value.real()?),
            "min_p" => made.min_p = Some(value.real()?),
            "repetition_penalty" => made.repetition_penalty = Some(value.real()?),
            "no_repeat_ngram" => made.no_repeat_ngram = Some(value.whole()?),
            "seed" => made.seed = Some(value.whole()?),
            "stop_tokens" => made.stop_tokens = Some(value.wholes()?),
            _ => return Err(format!("an option that is not known, {name}").into()),
        }
    }
    Ok(made)
}

fn calls(golden: &Json, folder: &Path) -> Outcome<()> {
    let decoder = &mut open(golden, folder)?;
    for (n, operation) in golden.at("operations")?.list()?.iter().enumerate() {
        let wanted = operation.get("error").map(Json::text).transpose()?.map(str::to_string);
        let kind = match call(decoder, operation, golden, folder).map_err(|error| error.downcast::<t2r::Error>()) {
            Ok(()) => None,
            Err(Ok(error)) => Some(error.kind.to_string()),
            Err(Err(other)) => return Err(other),
        };
        same(kind, wanted, &format!("the error of call {n}"))?;
        if let Some(position) = operation.get("position") {
            same(decoder.info()?.position, position.whole()?, &format!("the position after call {n}"))?;
        }
    }
    states(decoder, golden, golden.at("end")?)
}

/// One call of a decoder, by the key that names it.
fn call(decoder: &mut Decoder, call: &Json, golden: &Json, folder: &Path) -> Outcome<()> {
    if let Some(tokens) = call.get("step") {
        compare_logits(decoder.step(&tokens.wholes()?)?, call, golden)
    } else if let Some(rows) = call.get("prefill") {
        compare_logits(decoder.prefill(&rows.rows()?)?, call, golden)
    } else if let Some(rows) = call.get("top_k") {
        decoder.top_k(&rows.rows()?)?;
        Ok(())
    } else if let Some(rows) = call.get("reset") {
        Ok(decoder.reset(rows.whole()? as usize)?)
    } else if let Some(names) = call.get("adapt") {
        let names: Vec<_> = names.list()?.iter().map(|name| name.text().ok()).collect();
        Ok(decoder.adapt(&names)?)
    } else if let Some(rows) = call.get("reorder") {
        Ok(decoder.reorder(&rows.wholes()?)?)
    } else if let Some(file) = call.get("load") {
        decoder.load(&folder.join(file.text()?))?;
        Ok(())
    } else {
        generate(decoder, call)
    }
}

fn compare_logits(found: &[f32], call: &Json, golden: &Json) -> Outcome<()> {
    match call.get("logits") {
        Some(wanted) => near(found, &Array::of(wanted)?.data, logits_bound(golden)?, "logits"),
        None => Ok(()),
    }
}

fn generate(decoder: &mut Decoder, call: &Json) -> Outcome<()> {
    let (prompt, most) = (call.at("generate")?.wholes()?, call.at("max_tokens")?.whole()?);
    let options = options(call.at("options")?)?;
    let found = match call.get("ends_at") {
        None => decoder.generate(&prompt, most, &options)?,
        Some(end) => {
            let (mut seen, end) = (0, end.whole()?);
            let watch = |_| {
                seen += 1;
                seen < end
            };
            decoder.generate_with(&prompt, most, &options, watch)?
        }
    };
    same(found, call.at("tokens")?.wholes()?, "tokens")
}

fn snapshot(golden: &Json, folder: &Path) -> Outcome<()> {
    let graph = golden.at("graph")?.text()?;
    let decoder = &mut Decoder::open_memory(&[(graph, fs::read(folder.join(graph))?)], &Options::default())?;
    let path = folder.join(golden.at("snapshot")?.text()?);
    let token = decoder.load(&path)?;
    same(token, golden.at("token")?.whole().ok(), "the token")?;
    same(decoder.info()?.position, golden.at("position")?.whole()?, "the position")?;
    for state in decoder.states()? {
        let wanted = Array::of(golden.at("states")?.at(&state.name)?)?;
        let wanted: Vec<f32> = wanted.data.iter().map(|&number| number as f32).collect();
        same(numbers(&state), wanted, &state.name)?;
    }
    let copy = std::env::temp_dir().join(format!("t2r-conformance-{}", std::process::id()));
    decoder.save(&copy, token)?;
    let again = fs::read(&copy)?;
    fs::remove_file(&copy)?;
    require(again == fs::read(&path)?, "other bytes when it is saved again")?;
    require(again == decoder.save_memory(token)?, "other bytes in memory")?;
    decoder.reset(0)?;
    same(decoder.load_memory(&again)?, token, "the token in memory")?;
    let (ids, logits) = (Array::of(golden.at("ids")?)?, Array::of(golden.at("logits")?)?);
    for t in 0..ids.shape[1] {
        let found = decoder.step(&ids.tokens(t, t + 1).concat())?;
        near(found, &logits.column(t), logits_bound(golden)?, "logits")?;
    }
    Ok(())
}

fn tokenizer(golden: &Json, folder: &Path) -> Outcome<()> {
    let mut tokenizer = open(golden, folder)?.tokenizer()?;
    for case in golden.at("texts")?.list()? {
        let [text, tokens, decoded] = case.list()? else { return Err("a text of other parts than three".into()) };
        let tokens = tokens.wholes()?;
        same(&tokenizer.encode(text.text()?)?, &tokens, &format!("tokens of {:?}", text.text()?))?;
        same(tokenizer.decode(&tokens)?.as_str(), decoded.text()?, "text of tokens")?;
    }
    Ok(())
}

fn stream(golden: &Json, folder: &Path) -> Outcome<()> {
    let mut tokenizer = open(golden, folder)?.tokenizer()?;
    for text in golden.at("texts")?.list()? {
        let (tokens, pieces) = (text.at("tokens")?.wholes()?, text.at("pieces")?.list()?);
        same(tokens.len(), pieces.len(), "pieces of the golden file")?;
        let mut stream = tokenizer.stream(&text.at("prompt")?.wholes()?)?;
        for (token, piece) in tokens.into_iter().zip(pieces) {
            same(stream.feed(token)?.as_str(), piece.text()?, "a piece")?;
        }
        same(stream.end()?.as_str(), text.at("end")?.text()?, "the end")?;
        stops(&mut tokenizer, text)?;
    }
    Ok(())
}

/// A stream that stops at all of its text gives none of it.
fn stops(tokenizer: &mut Tokenizer, text: &Json) -> Outcome<()> {
    let mut whole = text.at("pieces")?.list()?.iter().map(Json::text).collect::<Outcome<String>>()?;
    whole.push_str(text.at("end")?.text()?);
    let mut stream = tokenizer.stream(&text.at("prompt")?.wholes()?)?;
    stream.stop_at(&[whole])?;
    for token in text.at("tokens")?.wholes()? {
        same(stream.feed(token)?.as_str(), "", "a piece before a stop")?;
    }
    same(stream.end()?.as_str(), "", "the end before a stop")?;
    require(stream.stopped()?, "a stream that does not stop")
}

/// With and without companions: the encoder exists in both cases.
fn translator(golden: &Json, folder: &Path) -> Outcome<()> {
    for companions in [false, true] {
        let path = folder.join(golden.at("graph")?.text()?);
        let decoder = &mut Decoder::open_with(path, &Options { companions, ..Options::default() })?;
        decoder.encode_sources(&golden.at("sources")?.rows()?)?;
        states(decoder, golden, golden.at("states")?)?;
        for search in golden.at("searches")?.list()? {
            let found = decoder.translate(&search.at("source")?.wholes()?, &beam(search.at("beam")?)?)?;
            let wanted = search.at("translations")?.list()?;
            same(found.len(), wanted.len(), "translations found")?;
            for (found, wanted) in found.iter().zip(wanted) {
                same(&found.tokens, &wanted.at("tokens")?.wholes()?, "a translation")?;
                require((found.score - wanted.at("score")?.real()?).abs() <= 1e-4, "another score")?;
            }
        }
    }
    Ok(())
}

fn beam(given: &Json) -> Outcome<Beam> {
    let mut made = Beam::default();
    for (name, value) in given.map()? {
        match name.as_str() {
            "width" => made.width = Some(value.whole()?),
            "max_tokens" => made.max_tokens = Some(value.whole()?),
            "min_tokens" => made.min_tokens = Some(value.whole()?),
            "early_stopping" => made.early_stopping = Some(early(value)?),
            "forced_end" => made.forced_end = Some(value.flag()?),
            "n_best" => made.n_best = Some(value.whole()?),
            "length_penalty" => made.length_penalty = Some(value.real()?),
            "repetition_penalty" => made.repetition_penalty = Some(value.real()?),
            "no_repeat_ngram" => made.no_repeat_ngram = Some(value.whole()?),
            "copy" => made.copy = Some(value.flag()?),
            _ => return Err(format!("an option that is not known, {name}").into()),
        }
    }
    Ok(made)
}

fn early(value: &Json) -> Outcome<EarlyStopping> {
    Ok(match value {
        Json::Text(_) => EarlyStopping::Never,
        _ if value.flag()? => EarlyStopping::Yes,
        _ => EarlyStopping::No,
    })
}

fn bad(golden: &Json, folder: &Path) -> Outcome<()> {
    for case in golden.at("files")?.list()? {
        let (file, kind) = (case.at("file")?.text()?, case.at("kind")?.text()?);
        match attempt(case, folder).map_err(|error| error.downcast::<t2r::Error>()) {
            Ok(()) => return Err(format!("{file} is taken").into()),
            Err(Err(other)) => return Err(other),
            Err(Ok(error)) => {
                same(error.kind.to_string().as_str(), kind, &format!("{file} ({error})"))?;
                require(error.message.starts_with("expected ") && !error.message.contains('\n'), "no message")?;
            }
        }
    }
    Ok(())
}

/// Make the call that must fail on a bad file.
fn attempt(case: &Json, folder: &Path) -> Outcome<()> {
    let file = folder.join(case.at("file")?.text()?);
    match case.at("call")?.text()? {
        "open" => drop(Decoder::open(file)?),
        "tokenizer" => drop(Decoder::open(file)?.tokenizer()?),
        "encode" => drop(Decoder::open(file)?.tokenizer()?.encode(case.at("text")?.text()?)?),
        "snapshot" => drop(open(case, folder)?.load(file)?),
        "generate" => drop(Decoder::open(file)?.generate(&[1], 3, &Sampling::default())?),
        "prefill" => {
            Decoder::open(file)?.prefill(&case.at("tokens")?.rows()?)?;
        }
        "translate" => {
            Decoder::open(file)?.translate(&case.at("source")?.wholes()?, &beam(case.at("beam")?)?)?;
        }
        call => return Err(format!("a call that is not known, {call}").into()),
    }
    Ok(())
}
