//! What the command line asks for.

use std::path::PathBuf;
use std::time::Duration;

use crate::drive::Bounds;

/// How to run, and whom.
pub struct Flags {
    only: Vec<String>,
    /// Where the contenders keep their data.
    pub dir: PathBuf,
    /// The larger of the two backlogs.
    pub deep_backlog: u64,
    /// How often each cell is measured.
    pub repeats: usize,
    /// How long each measurement may take.
    pub bounds: Bounds,
    /// How long a server is watched doing nothing.
    pub rest: Duration,
}

impl Flags {
    /// Whether this contender was asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

/// What to do.
pub enum Asked {
    Run(Flags),
    Help,
    /// Cargo is not benchmarking.
    Nothing,
}

/// Reads the arguments, or says in words what is wrong with them.
pub fn parse(args: impl Iterator<Item = String>, names: &[&str]) -> Result<Asked, String> {
    let mut args = args;
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
    Ok(Asked::Run(if quick { self::quick(only, dir) } else { full(only, dir) }))
}

/// The help.
pub fn usage(names: &[&str]) -> String {
    format!(
        "Usage: ./bench [--quick] [--only NAME]... [--dir DIR]\n\n\
         --quick      one short round per cell, and 100,000 waiting for 1,000,000\n\
         --only NAME  only this contender (may be repeated): {}\n\
         --dir DIR    keep the data here, on the disk to be measured",
        names.join(", ")
    )
}

fn full(only: Vec<String>, dir: PathBuf) -> Flags {
    Flags {
        only,
        dir,
        deep_backlog: 1_000_000,
        repeats: 3,
        bounds: Bounds {
            warm_up: Duration::from_millis(500),
            measure: Duration::from_secs(5),
            calls: 1_000_000,
        },
        rest: Duration::from_secs(30),
    }
}

fn quick(only: Vec<String>, dir: PathBuf) -> Flags {
    Flags {
        deep_backlog: 100_000,
        repeats: 1,
        bounds: Bounds {
            warm_up: Duration::from_millis(300),
            measure: Duration::from_secs(2),
            calls: 1_000_000,
        },
        rest: Duration::from_secs(5),
        ..full(only, dir)
    }
}

fn known(name: Option<String>, names: &[&str]) -> Result<String, String> {
    let name = name.ok_or("--only wants a name")?;
    if names.contains(&name.as_str()) {
        Ok(name)
    } else {
        Err(format!("no contender {name:?} (there are {})", names.join(", ")))
    }
}
