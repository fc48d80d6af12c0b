//! `monoco courier install`: the courier as a service of the user.

use std::fs;
use std::path::{Path, PathBuf};

use monoco_fs::FileOptions;

use crate::cli::CliContext;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{note, print};

#[derive(Debug, clap::Args)]
pub struct InstallArgs {
    /// Print the unit and change nothing
    #[arg(long)]
    print: bool,
    /// Put it in the place of a different one that is there
    #[arg(long)]
    force: bool,
    /// Have it started now and at every login
    #[arg(long, conflicts_with = "print")]
    now: bool,
}

/// The label that launchd knows it by.
const LABEL: &str = "dev.monoco.courier";

pub fn run(context: &CliContext, args: &InstallArgs) -> Result<(), CliError> {
    let program = std::env::current_exe()?;
    let home = context.home.path();
    let (Some(program), Some(home)) = (program.to_str(), home.to_str()) else {
        return Err(CliError::new(
            CliExit::NotPossible,
            "a path that is not UTF-8 fits into no unit",
        ));
    };
    let macos = cfg!(target_os = "macos");
    let unit = if macos { launchd(program, home) } else { systemd(program, home) };
    if args.print {
        return print(unit.trim_end());
    }
    let path = if macos { launchd_path()? } else { systemd_path()? };
    put(&path, &unit, args.force)?;
    let next = if macos { launchd_next(&path) } else { systemd_next() };
    if !args.now {
        note("next:");
        for command in &next {
            note(&format!("  {}", command.join(" ")));
        }
        if !macos {
            note("to have it run while you are not logged in: loginctl enable-linger");
        }
        return Ok(());
    }
    for command in &next {
        note(&format!("$ {}", command.join(" ")));
        let [program, rest @ ..] = &command[..] else { continue };
        let status = std::process::Command::new(program).args(rest).status()?;
        if !status.success() {
            let message = format!("`{}` failed ({status})", command.join(" "));
            return Err(CliError::new(CliExit::NotPossible, message));
        }
    }
    Ok(())
}

/// Writes the unit, unless there is another one.
fn put(path: &Path, unit: &str, force: bool) -> Result<(), CliError> {
    match fs::read_to_string(path) {
        Ok(there) if there == unit => {
            note(&format!("{} is there already", path.display()));
            return Ok(());
        }
        Ok(_) if !force => {
            let message = format!("{} is there and different", path.display());
            return Err(CliError::new(CliExit::NotPossible, message)
                .hint("`--print` shows the new one, `--force` puts it in its place"));
        }
        _ => {}
    }
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let options = FileOptions { mode: 0o644, ..FileOptions::PRIVATE_SYNCED };
    monoco_fs::write(path, unit.as_bytes(), options).map_err(std::io::Error::from)?;
    note(&format!("wrote {}", path.display()));
    Ok(())
}

fn systemd_path() -> Result<PathBuf, CliError> {
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = match config.filter(|path| path.is_absolute()) {
        Some(config) => config,
        None => user_home()?.join(".config"),
    };
    Ok(config.join("systemd/user/monoco.service"))
}

fn launchd_path() -> Result<PathBuf, CliError> {
    Ok(user_home()?.join(format!("Library/LaunchAgents/{LABEL}.plist")))
}

fn user_home() -> Result<PathBuf, CliError> {
    std::env::home_dir()
        .filter(|home| home.is_absolute())
        .ok_or_else(|| CliError::new(CliExit::NotPossible, "there is no home directory"))
}

fn systemd_next() -> Vec<Vec<String>> {
    let words = |command: &str| command.split(' ').map(str::to_owned).collect();
    vec![
        words("systemctl --user daemon-reload"),
        words("systemctl --user enable --now monoco.service"),
    ]
}

fn launchd_next(path: &Path) -> Vec<Vec<String>> {
    let words = ["launchctl", "load", "-w"].map(str::to_owned);
    vec![[&words[..], &[path.display().to_string()]].concat()]
}

fn systemd(program: &str, home: &str) -> String {
    let (program, place) = (quoted(program), quoted(home));
    // systemd reads this one as a path and not as words.
    let env = home.replace('%', "%%");
    format!(
        "[Unit]
Description=Monoco courier, the post office of this user
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
ExecStart={program} --home {place} courier start --foreground
ExecReload=/bin/kill -HUP $MAINPID
# Variables for the config, such as secrets: NAME=VALUE on each line.
EnvironmentFile=-{env}/courier/env
Restart=on-failure
RestartSec=2
# Another one runs, or the directory is not ours: trying again does not help.
RestartPreventExitStatus=2 3
# What is under way has 30 s.
TimeoutStopSec=40
KillMode=mixed
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"
    )
}

/// A word of a command in a unit.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '%' | '$' => out.extend([c, c]),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn launchd(program: &str, home: &str) -> String {
    let args = [program, "--home", home, "courier", "start", "--foreground"];
    let args: String =
        args.iter().map(|arg| format!("        <string>{}</string>\n", xml(arg))).collect();
    let log = xml(&format!("{home}/log/launchd.log"));
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">
<plist version=\"1.0\">
<dict>
    <key>Label</key>
    <string>{LABEL}</string>
    <key>ProgramArguments</key>
    <array>
{args}    </array>
    <key>RunAtLoad</key>
    <true/>
    <key>KeepAlive</key>
    <dict>
        <key>SuccessfulExit</key>
        <false/>
    </dict>
    <key>ExitTimeOut</key>
    <integer>40</integer>
    <key>Umask</key>
    <integer>63</integer>
    <key>StandardErrorPath</key>
    <string>{log}</string>
</dict>
</plist>
"
    )
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_words_whatever_is_in_them() {
        let unit = systemd("/opt/my tools/50%/mo\"no", "/home/a$b/.monoco");
        assert!(
            unit.contains(
                "ExecStart=\"/opt/my tools/50%%/mo\\\"no\" --home \"/home/a$$b/.monoco\" \
                 courier start --foreground\n"
            ),
            "{unit}"
        );
        assert!(unit.contains("EnvironmentFile=-/home/a$b/.monoco/courier/env\n"), "{unit}");
        let plist = launchd("/opt/a&b", "/Users/<ann>");
        assert!(plist.contains("<string>/opt/a&amp;b</string>"), "{plist}");
        assert!(plist.contains("<string>/Users/&lt;ann&gt;</string>"), "{plist}");
    }

    #[test]
    fn another_unit_is_left_alone_unless_forced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("systemd/user/monoco.service");
        put(&path, "one", false).unwrap();
        put(&path, "one", false).unwrap();
        assert_eq!(put(&path, "two", false).unwrap_err().exit, CliExit::NotPossible);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        put(&path, "two", true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
    }
}
