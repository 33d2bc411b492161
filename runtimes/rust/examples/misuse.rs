//! misuse FOLDER NAME: one misuse of the golden files of FOLDER, and its result. Use of a closed decoder, or of one in
//! two threads, is not among them: it does not compile (src/lib.rs).
use std::env::args;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use t2r::{Decoder, Options, Sampling};

fn misuse(folder: &str, name: &str) -> t2r::Result<()> {
    let open = |file: &str| Decoder::open(format!("{folder}/{file}"));
    match name {
        "no-file" => drop(open("nowhere.onnx")?),
        "prefill-graph" => drop(open("bad/role.onnx")?),
        "token" => drop(open("tiny.onnx")?.step(&[17])?),
        "batch" => drop(open("tiny.onnx")?.step(&[1, 2])?),
        "rows" => drop(open("tiny.onnx")?.prefill(&[&[1, 2][..], &[1]])?),
        "position" => {
            let mut decoder = open("ends.onnx")?;
            (0..41).try_for_each(|_| decoder.step(&[1, 2]).map(drop))?;
        }
        "other-model" => drop(open("tiny.onnx")?.load(format!("{folder}/packed.state"))?),
        "no-utf8" => drop(open("bytes.onnx")?.tokenizer()?.encode(b"\xFF")?),
        "zero-byte" => drop(open("tiny\0.onnx")?),
        "zero-byte-saved" => open("tiny.onnx")?.save("saved\0", None)?,
        "zero-byte-loaded" => drop(open("tiny.onnx")?.load(format!("{folder}/tiny.state\0"))?),
        "state-name" => {
            let mut decoder = open("tiny.onnx")?;
            let mut states = decoder.states()?;
            states[0].name.push('\0');
            decoder.set_states(&states, 0)?;
        }
        "provider" => drop(Decoder::open_with(
            format!("{folder}/tiny.onnx"),
            &Options {
                provider: Some("CPU".into()),
                provider_options: vec![("a".into(), "b".into())],
                ..Options::default()
            },
        )?),
        "late-threads" => {
            let _opened = open("tiny.onnx")?;
            t2r::share_threads(2)?;
        }
        "session-option" => drop(Decoder::open_with(
            format!("{folder}/tiny.onnx"),
            &Options {
                threads: 2,
                config: vec![("session.intra_op_thread_affinities".into(), "everywhere".into())],
                ..Options::default()
            },
        )?),
        "long-source" => {
            let options = Options { max_source: 2, ..Options::default() };
            Decoder::open_with(format!("{folder}/translator.onnx"), &options)?.encode_sources(&[[1, 2, 3]])?;
        }
        "no-graph-in-memory" => drop(Decoder::open_memory(&[("tiny.onnx", b"no graph")], &Options::default())?),
        "damaged-in-memory" => {
            let mut decoder = open("tiny.onnx")?;
            let saved = decoder.save_memory(None)?;
            decoder.load_memory(&saved[1..])?;
        }
        "empty-stop" => open("bytes.onnx")?.tokenizer()?.stream(&[])?.stop_at(&[""])?,
        "zero-byte-stop" => open("bytes.onnx")?.tokenizer()?.stream(&[])?.stop_at(&["\0"])?,
        "copied" => {
            let mut decoder = open("ends.onnx")?;
            (0..40).try_for_each(|_| decoder.step(&[1, 2]).map(drop))?;
            decoder.copy()?.step(&[1, 2]).map(drop)?;
        }
        "taken" => {
            let (mut decoder, stranger) = (open("tiny.onnx")?, open("tiny.onnx")?);
            decoder.step(&[1]).map(drop)?;
            let other = decoder.fork()?;
            decoder.take(&[(None, 0), (Some(&other), 0)])?;
            let logits = decoder.step(&[1, 2])?.to_vec();
            decoder.choose(&logits[logits.len() / 2..], 1, &Sampling::default(), 0)?;
            decoder.take(&[(Some(&stranger), 0)])?;
        }
        "cancelled" => {
            let mut decoder = open("tiny.onnx")?;
            let canceller = decoder.canceller();
            decoder.generate_with(&[1], 2, &Sampling::default(), |_| canceller.cancel().is_ok())?;
        }
        "callback" => {
            let mut decoder = open("tiny.onnx")?;
            let broken = |_| panic!("mine");
            let panic = catch_unwind(AssertUnwindSafe(|| decoder.generate_with(&[1], 5, &Sampling::default(), broken)));
            println!("{}", panic.unwrap_err().downcast_ref::<&str>().unwrap());
            decoder.step(&[1])?; // no longer in use
        }
        "vectors" => {
            let mut decoder = open("ear.onnx")?;
            decoder.reset(2)?;
            let given = [0.5, 1.0, -1.0, 2.0, 0.0, 1.0, 1.0, 0.0, 0.0, -2.0];
            let other = [3.0, 1.0, 0.0, 1.0, 1.0, 0.25, 1.0, 1.0, 2.0, 3.0];
            decoder.read_vectors(&[given, other])?.iter().for_each(|logit| println!("{logit}"));
            decoder.read_vectors(&[&given[..6], &other[..6]])?;
        }
        "log" => {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            t2r::set_log(t2r::Level::Verbose, |_, message| {
                COUNT.fetch_add(message.len(), Relaxed);
            })?;
            drop(open("tiny.onnx")?);
            t2r::clear_log()?;
            let heard = COUNT.load(Relaxed);
            drop(open("tiny.onnx")?);
            println!("{} {}", heard > 0, COUNT.load(Relaxed) == heard);
        }
        _ => eprintln!("no such misuse"),
    }
    Ok(())
}

fn main() -> ExitCode {
    let given: Vec<String> = args().skip(1).collect();
    match misuse(&given[0], &given[1]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
