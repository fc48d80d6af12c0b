//! `monoco courier install`: writes a systemd user unit or a launchd agent.

use std::fs;
use std::path::{Path, PathBuf};

use monoco_fs::FileOptions;
use serde_json::json;

use crate::cli::CliContext;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, OutputFormat, note, print};

#[derive(Debug, clap::Args)]
pub struct InstallArgs {
    /// Print the unit file without writing it
    #[arg(long)]
    print: bool,
    /// Replace an existing unit file that differs
    #[arg(long)]
    force: bool,
    /// Enable the service: start it now and at every login
    #[arg(long, conflicts_with = "print")]
    now: bool,
}

/// Label of the launchd agent.
const LABEL: &str = "dev.monoco.courier";

pub fn run(context: &CliContext, args: &InstallArgs) -> Result<(), CliError> {
    let program = std::env::current_exe()?;
    let home = context.home.path();
    let (Some(program), Some(home)) = (program.to_str(), home.to_str()) else {
        return Err(CliError::new(
            CliExit::NotPossible,
            "cannot write a unit file: the path of the program or home directory is not UTF-8",
        ));
    };
    if let Some(path) = [program, home].into_iter().find(|path| path.contains(char::is_control)) {
        // A line break would end the line of the unit file and start another setting.
        let message = format!("cannot write a unit file: {path:?} has control characters");
        return Err(CliError::usage(message).hint("use a path without control characters"));
    }
    let macos = cfg!(target_os = "macos");
    let unit = if macos { launchd(program, home) } else { systemd(program, home) };
    if args.print {
        return print(unit.trim_end());
    }
    let path = if macos { launchd_path()? } else { systemd_path()? };
    write_unit(&path, &unit, args.force)?;
    let next = if macos { launchd_next(&path) } else { systemd_next() };
    if context.format == OutputFormat::Json {
        output::print_json(&json!({"unit": path, "commands": next, "enabled": args.now}))?;
    }
    if !args.now {
        note("run these commands to enable the service:");
        for command in &next {
            note(&format!("  {}", command.join(" ")));
        }
        if !macos {
            note("to keep it running while you are logged out: loginctl enable-linger");
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

/// Writes the unit file. Does not replace a different one without `force`.
fn write_unit(path: &Path, unit: &str, force: bool) -> Result<(), CliError> {
    match fs::read_to_string(path) {
        Ok(there) if there == unit => {
            note(&format!("{} is up to date", path.display()));
            return Ok(());
        }
        Ok(_) if !force => {
            let message = format!("{} exists with different content", path.display());
            return Err(CliError::new(CliExit::NotPossible, message)
                .hint("`--print` shows the new unit file, `--force` replaces the old one"));
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
    std::env::home_dir().filter(|home| home.is_absolute()).ok_or_else(|| {
        CliError::new(CliExit::NotPossible, "cannot find your home directory")
            .hint("set HOME to an absolute path")
    })
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
    // systemd parses EnvironmentFile as a path, without quotes.
    let env = home.replace('%', "%%");
    format!(
        "[Unit]
Description=Monoco courier: message hub of this user
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
# Already running, or permission denied: a restart cannot succeed.
RestartPreventExitStatus=2 3
# The courier gives running work 30 s.
TimeoutStopSec=40
KillMode=mixed
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"
    )
}

/// Quotes one argument for ExecStart of a systemd unit.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '%' | '$' => out.extend([c, c]),
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
    fn special_characters_in_paths_are_quoted() {
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
    fn different_unit_is_replaced_only_with_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("systemd/user/monoco.service");
        write_unit(&path, "one", false).unwrap();
        write_unit(&path, "one", false).unwrap();
        assert_eq!(write_unit(&path, "two", false).unwrap_err().exit, CliExit::NotPossible);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        write_unit(&path, "two", true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
    }
}
