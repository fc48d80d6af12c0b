//! What the command line asks a benchmark for.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Result;

/// How to run, and what of it.
pub struct Args {
    /// Whether a first look is enough.
    pub quick: bool,
    /// What was asked for by name.
    only: Vec<String>,
    /// Where the data is kept while it runs.
    pub dir: PathBuf,
}

/// What a benchmark says of itself.
pub struct Benchmark {
    /// Its help.
    pub usage: fn(&[&str]) -> String,
    /// What can be asked for by name.
    pub names: Vec<&'static str>,
    /// Measures, and prints the tables.
    pub run: fn(&Args) -> Result<()>,
}

/// What to do.
enum Asked {
    Run(Args),
    Help,
    /// Cargo is not benchmarking.
    Nothing,
}

impl Args {
    /// Whether this was asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

impl Benchmark {
    /// Runs it as the command line says.
    pub fn main(&self) -> ExitCode {
        let usage = || (self.usage)(&self.names);
        let args = match parse(std::env::args().skip(1), &self.names) {
            Ok(Asked::Run(args)) => args,
            Ok(Asked::Help) => {
                println!("{}", usage());
                return ExitCode::SUCCESS;
            }
            // `cargo test --all-targets` runs benches too, without `--bench`.
            Ok(Asked::Nothing) => return ExitCode::SUCCESS,
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

/// Reads the arguments, or says in words what is wrong with them.
fn parse(
    mut args: impl Iterator<Item = String>,
    names: &[&str],
) -> std::result::Result<Asked, String> {
    let (mut benching, mut quick, mut only, mut dir) = (false, false, Vec::new(), None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bench" => benching = true,
            "--quick" => quick = true,
            "--only" => only.push(known(args.next(), names)?),
            "--dir" => dir = Some(args.next().ok_or("--dir wants a directory")?),
            "--help" | "-h" => return Ok(Asked::Help),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    if !benching {
        return Ok(Asked::Nothing);
    }
    // Not the system's temporary directory: that is memory on many machines,
    // and a sync to memory costs nothing.
    let dir = dir.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").to_owned()).into();
    Ok(Asked::Run(Args { quick, only, dir }))
}

fn known(name: Option<String>, names: &[&str]) -> std::result::Result<String, String> {
    let name = name.ok_or("--only wants a name")?;
    if names.contains(&name.as_str()) {
        Ok(name)
    } else {
        Err(format!("nothing is called {name:?} (there are {})", names.join(", ")))
    }
}
