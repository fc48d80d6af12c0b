//! Command line of the benchmarks.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Result;

pub struct Args {
    pub quick: bool,
    /// Selected names; all when empty.
    only: Vec<String>,
    /// Parent directory of all data.
    pub dir: PathBuf,
}

pub struct Benchmark {
    /// What is measured, as the heading of the usage.
    pub about: &'static str,
    /// What the option `--quick` changes.
    pub quick: &'static str,
    /// Names that `--only` accepts.
    pub names: Vec<&'static str>,
    /// Measures and prints the tables.
    pub run: fn(&Args) -> Result<()>,
}

enum Action {
    Run(Args),
    Help,
    /// Started by `cargo test` without `--bench`.
    Nothing,
}

impl Args {
    pub fn wants(&self, name: &str) -> bool {
        self.wants_any(&[name])
    }

    /// Whether one of these names was selected; true when none was.
    pub fn wants_any(&self, names: &[&str]) -> bool {
        self.only.is_empty() || self.names_any(names)
    }

    /// Whether one of these names was selected. For what runs only on request.
    pub fn names_any(&self, names: &[&str]) -> bool {
        self.only.iter().any(|only| names.contains(&only.as_str()))
    }
}

impl Benchmark {
    /// Runs the benchmark with the arguments of the process.
    pub fn main(&self) -> ExitCode {
        let usage = || {
            format!(
                "Usage: ./bench [--quick] [--only NAME]... [--dir DIR]\n\n\
                 {}:\n\n\
                 --quick      {}\n\
                 --only NAME  run only NAME (may be repeated): {}\n\
                 --dir DIR    directory for the data, on the disk to measure",
                self.about,
                self.quick,
                self.names.join(", ")
            )
        };
        let args = match parse(std::env::args().skip(1), &self.names) {
            Ok(Action::Run(args)) => args,
            Ok(Action::Help) => {
                println!("{}", usage());
                return ExitCode::SUCCESS;
            }
            // `cargo test --all-targets` runs benches too, without `--bench`.
            Ok(Action::Nothing) => return ExitCode::SUCCESS,
            Err(words) => {
                eprintln!("{words}\n\n{}", usage());
                return ExitCode::from(2);
            }
        };
        let done = std::fs::create_dir_all(&args.dir).map_err(super::Error::from);
        match done.and_then(|()| (self.run)(&args)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(err) => {
                eprintln!("benchmark stopped: {err}");
                ExitCode::FAILURE
            }
        }
    }
}

/// Parses the arguments. The error is a message for the user.
fn parse(
    mut args: impl Iterator<Item = String>,
    names: &[&str],
) -> std::result::Result<Action, String> {
    let (mut benching, mut quick, mut only, mut dir) = (false, false, Vec::new(), None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bench" => benching = true,
            "--quick" => quick = true,
            "--only" => only.push(check_name(args.next(), names)?),
            "--dir" => dir = Some(args.next().ok_or("--dir needs a directory")?),
            "--help" | "-h" => return Ok(Action::Help),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    if !benching {
        return Ok(Action::Nothing);
    }
    // Not the temporary directory of the system: on many machines it is in memory, where a
    // sync costs nothing.
    let dir = dir.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").to_owned()).into();
    Ok(Action::Run(Args { quick, only, dir }))
}

fn check_name(name: Option<String>, names: &[&str]) -> std::result::Result<String, String> {
    let name = name.ok_or("--only needs a name")?;
    if names.contains(&name.as_str()) {
        Ok(name)
    } else {
        Err(format!("unknown name {name:?}; known names: {}", names.join(", ")))
    }
}
