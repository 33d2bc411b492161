//! conformance FOLDER: runs all cases of FOLDER/index.json. One line per case, then `N passed, N failed`; exit 1 if any failed.

mod cases;
mod compare;
mod json;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use json::Json;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let folder = env::args_os().nth(1).map(PathBuf::from).unwrap_or_default();
    match conform(&folder) {
        Ok(failed) => ExitCode::from(failed),
        Err(error) => {
            eprintln!("file: expected a folder of golden files; received {error}; conformance models/tiny");
            ExitCode::from(2)
        }
    }
}

fn conform(folder: &Path) -> Outcome<u8> {
    let index = read(&folder.join("index.json"))?;
    if index.at("golden")?.whole()? != 1 {
        return Err("golden files of another version".into());
    }
    let (mut passed, mut failed) = (0, 0);
    for case in index.at("cases")?.list()? {
        let name = case.at("case")?.text()?;
        match run(case, folder) {
            Ok(()) => {
                println!("ok {name}");
                passed += 1;
            }
            Err(error) => {
                println!("FAILED {name}: {error}");
                failed += 1;
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok((failed > 0 || passed == 0).into())
}

fn run(case: &Json, folder: &Path) -> Outcome<()> {
    let kind = case.at("kind")?.text()?;
    let (_, run) = cases::KINDS
        .iter()
        .find(|(name, _)| *name == kind)
        .ok_or_else(|| format!("a kind of case that is not known, {kind}"))?;
    run(&read(&folder.join(case.at("file")?.text()?))?, folder)
}

fn read(path: &Path) -> Outcome<Json> {
    let text =
        fs::read_to_string(path).map_err(|error| format!("{}, which cannot be read: {error}", path.display()))?;
    Json::parse(&text)
}
