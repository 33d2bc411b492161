//! Finds libt2r: in the folder that T2R_DIR names, or by pkg-config. Build scripts of programs get its folder in DEP_T2R_LIB.
use std::env::{consts, var, var_os};
use std::path::{Path, PathBuf};
use std::process::{exit, Command};

/// Ends the build with one line.
fn refuse(expected: &str, received: &str, what: &str) -> ! {
    eprintln!("expected {expected}; received {received}; {what}");
    exit(1);
}

fn main() {
    for name in ["T2R_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    let release = format!("{}.{}", var("CARGO_PKG_VERSION_MAJOR").unwrap(), var("CARGO_PKG_VERSION_MINOR").unwrap());
    let found = match var_os("T2R_DIR") {
        Some(folder) => in_folder(Path::new(&folder)),
        None => by_pkg_config(&release),
    };
    println!("cargo:rustc-link-search=native={}", found.display());
    println!("cargo:lib={}", found.display());
}

/// The folder of libt2r in its installation.
fn in_folder(folder: &Path) -> PathBuf {
    let shared = format!("{}t2r{}", consts::DLL_PREFIX, consts::DLL_SUFFIX);
    let holds = |place: &PathBuf| [&shared, "libt2r.a", "t2r.lib"].iter().any(|name| place.join(name).exists());
    ["lib", "lib64"].iter().map(|name| folder.join(name)).find(holds).unwrap_or_else(|| {
        let expected = format!("{shared} in the folder lib of T2R_DIR={}", folder.display());
        refuse(&expected, "none", "set T2R_DIR to the folder where libt2r is installed")
    })
}

fn by_pkg_config(release: &str) -> PathBuf {
    let program = var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let ask = |option: &str| {
        let done = Command::new(&program).args([option, "t2r"]).output().ok().filter(|done| done.status.success())?;
        Some(String::from_utf8_lossy(&done.stdout).trim().to_string())
    };
    let (Some(version), Some(folder)) = (ask("--modversion"), ask("--variable=libdir")) else {
        let what = "install it and set T2R_DIR to its folder, or PKG_CONFIG_PATH to lib/pkgconfig in that";
        refuse(&format!("libt2r {release}, the C library of t2r-export"), &format!("none from {program}"), what);
    };
    if !version.starts_with(&format!("{release}.")) {
        refuse(&format!("libt2r {release}"), &version, "install the release of this crate, and set T2R_DIR to its folder");
    }
    PathBuf::from(folder)
}
