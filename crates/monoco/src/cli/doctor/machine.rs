//! Checks of the machine: home directory, token, config, disk, ports and clock.

use std::fs;
use std::net::{IpAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::{DoctorCheck, MAX_DIR_ENTRIES};
use monoco_courier::api::views::health::HealthView;
use monoco_courier::clock::wall_now;
use monoco_courier::config::{Config, ConfigError, ConfigSource, RemoteConfig, adapter_files};
use monoco_courier::home::Home;
use monoco_courier::tls::ServerCertificate;

/// Largest accepted difference between the clocks of machine and courier, in milliseconds.
const MAX_DRIFT_MS: i64 = 60_000;

/// 2026-01-01 in milliseconds: an earlier time means that the clock is not set.
const MIN_CLOCK_MS: i64 = 1_767_225_600_000;

/// Checks that the home directory exists, belongs to the user and is closed to others.
pub(super) fn home_dir(home: &Home) -> DoctorCheck {
    let (name, path) = ("home", home.path());
    let Ok(found) = fs::metadata(path) else {
        let detail = format!("{} does not exist", path.display());
        return DoctorCheck::warn(name, detail, "`monoco courier start` creates it");
    };
    if !found.is_dir() {
        let detail = format!("{} is not a directory", path.display());
        return DoctorCheck::fail(name, detail, "move the file, or set MONOCO_HOME to a directory");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        let detail = format!("{} belongs to another user", path.display());
        return DoctorCheck::fail(name, detail, "set MONOCO_HOME to a directory that you own");
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let detail =
            format!("other users can access {} (mode {mode:o}, expected 700)", path.display());
        return DoctorCheck::fail(name, detail, format!("chmod 700 {}", path.display()));
    }
    DoctorCheck::ok(name, path.display().to_string())
}

pub(super) fn token(home: &Home) -> DoctorCheck {
    let (name, path) = ("token", home.token_path());
    let Ok(found) = fs::metadata(&path) else {
        return DoctorCheck::ok(name, "none yet; the courier creates it at the first start");
    };
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let detail = format!("other users can read the token (mode {mode:o}, expected 600)");
        let hint = format!("remove {} and restart the courier", path.display());
        return DoctorCheck::fail(name, detail, hint);
    }
    match home.token() {
        Ok(_) => DoctorCheck::ok(name, path.display().to_string()),
        Err(error) => {
            let hint = format!("remove {} and restart the courier", path.display());
            DoctorCheck::fail(name, error.to_string(), hint)
        }
    }
}

pub(super) fn config_checks(
    source: &ConfigSource,
    config: &Result<Config, ConfigError>,
    running: bool,
) -> Vec<DoctorCheck> {
    let (name, path) = ("config", source.path.display());
    let mut checks = Vec::new();
    checks.push(match config {
        Ok(_) if !source.path.exists() => {
            DoctorCheck::ok(name, "no config file; using the defaults")
        }
        Ok(config) => {
            let tunnels: Vec<_> = config.running().map(|(id, _)| id.as_str()).collect();
            DoctorCheck::ok(name, format!("{path}: tunnels {}", tunnels.join(", ")))
        }
        Err(error) => {
            let unset = matches!(error, ConfigError::Invalid { error, .. } if error.unset);
            if unset && running {
                let hint = "the variable may be set for the running courier; \
                            a reload or restart fails without it";
                DoctorCheck::warn(name, error.to_string(), hint)
            } else {
                let hint = "fix the config; until then `courier start` and `courier reload` fail";
                DoctorCheck::fail(name, error.to_string(), hint)
            }
        }
    });
    let files = adapter_files(&source.path).unwrap_or_default();
    let config_files = [&source.path].into_iter().chain(&files).map(|path| (path, true));
    let secret_files = config.as_ref().map_or(&[][..], |config| &config.secret_files);
    let secret_files = secret_files.iter().map(|path| (path, false));
    for (path, is_config) in config_files.chain(secret_files) {
        let mode = fs::metadata(path).map_or(0, |found| found.permissions().mode() & 0o777);
        if mode & 0o077 != 0 {
            let path = path.display();
            let detail = format!("other users can read {path} (mode {mode:o})");
            let condition = if is_config { " if it contains secrets" } else { "" };
            let hint = format!("chmod 600 {path}{condition}");
            checks.push(DoctorCheck::warn(name, detail, hint));
        }
    }
    checks
}

/// Returns the nearest existing ancestor of `path`.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

pub(super) fn disk(home: &Path) -> Vec<DoctorCheck> {
    let Ok(stat) = rustix::fs::statvfs(existing(home)) else {
        return vec![DoctorCheck::warn("disk", "cannot read the free space", "check it with `df`")];
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize) >> 20;
    let (detail, hint) =
        (format!("{free} MiB free"), "free disk space: received messages cannot be stored");
    let space = match free {
        0..64 => DoctorCheck::fail("disk", detail, hint),
        64..1024 => DoctorCheck::warn("disk", detail, "free disk space before the disk is full"),
        _ => DoctorCheck::ok("disk", detail),
    };
    // File systems that allocate inodes on demand report zero.
    if stat.f_files == 0 {
        return vec![space];
    }
    let (free, hint) = (stat.f_favail, "remove files: each Mail needs one inode");
    let detail = format!("{free} inodes free");
    let files = match free {
        0..1_000 => DoctorCheck::fail("inodes", detail, hint),
        1_000..50_000 => DoctorCheck::warn("inodes", detail, hint),
        _ => DoctorCheck::ok("inodes", detail),
    };
    vec![space, files]
}

/// Checks the type of the file system: file locks and shared memory are not safe on network
/// file systems.
#[cfg(target_os = "linux")]
pub(super) fn file_system(home: &Path) -> DoctorCheck {
    let name = "file system";
    let Ok(stat) = rustix::fs::statfs(existing(home)) else {
        return DoctorCheck::warn(
            name,
            "cannot read its type",
            "use a home directory on a local disk",
        );
    };
    // Magic numbers of statfs(2); f_type is signed on some platforms.
    #[expect(clippy::cast_possible_truncation, reason = "the numbers have 32 bits")]
    let remote = match stat.f_type as u32 {
        0x6969 => "NFS",
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => "SMB",
        0x0102_1997 => "9p",
        0x0102_1994 => {
            let hint = "all data is lost when the machine is turned off; use a local disk";
            return DoctorCheck::warn(name, "in memory (tmpfs)", hint);
        }
        _ => return DoctorCheck::ok(name, "local"),
    };
    let hint = "file locks and the shared memory of the store are not safe there; use a local disk";
    DoctorCheck::warn(name, remote, hint)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn file_system(_home: &Path) -> DoctorCheck {
    DoctorCheck::ok("file system", "not checked on this system")
}

pub(super) fn port(name: &'static str, host: IpAddr, port: u16) -> DoctorCheck {
    match TcpListener::bind((host, port)) {
        Ok(_) => DoctorCheck::ok(name, format!("{port} is free")),
        Err(error) => {
            let detail = format!("{port}: {error}");
            let hint = "stop the program that uses the port, or set another port in courier.service of the config";
            DoctorCheck::fail(name, detail, hint)
        }
    }
}

/// Checks the certificate of the listener for other machines. `health` is that of a running
/// courier.
pub(super) fn certificate(remote: &RemoteConfig, health: Option<&HealthView>) -> DoctorCheck {
    let (name, now) = ("certificate", wall_now());
    let loaded = match ServerCertificate::load(remote, now) {
        Ok(loaded) => loaded,
        Err(error) => {
            let hint = "fix it: the courier then uses it by itself; clients on other machines \
                        cannot connect without it";
            return DoctorCheck::fail(name, error.to_string(), hint);
        }
    };
    let expires_at = loaded.validity.not_after.rfc3339();
    let Some(health) = health else {
        return ending(name, remote, &loaded)
            .unwrap_or_else(|| DoctorCheck::ok(name, format!("valid until {expires_at}")));
    };
    let Some(used) = &health.remote else {
        let detail = "the courier was started without `courier.remote`";
        return DoctorCheck::warn(name, detail, "run `monoco courier restart`");
    };
    if let Some(problem) = used.problem.as_ref().filter(|_| !used.served) {
        let detail = format!("{} is not served: {problem}", used.address);
        let hint = "the courier tries again every 2 s; `monoco courier reload` does so at once";
        return DoctorCheck::fail(name, detail, hint);
    }
    if let Some(ending) = ending(name, remote, &loaded) {
        return ending;
    }
    if let Some(used) = used.certificate_expires_at.as_ref().filter(|used| **used != expires_at) {
        let detail = format!("the courier uses an older certificate, which expires at {used}");
        let hint = "the courier uses the new one within 10 s; `monoco courier reload` does so at \
                    once";
        return DoctorCheck::warn(name, detail, hint);
    }
    DoctorCheck::ok(name, format!("valid until {expires_at}"))
}

/// The warning about a certificate that should have been renewed.
fn ending(
    name: &'static str,
    remote: &RemoteConfig,
    certificate: &ServerCertificate,
) -> Option<DoctorCheck> {
    let validity = certificate.validity;
    let expires_at = validity.not_after.rfc3339();
    let detail = format!("{} expires at {expires_at}", remote.certificate.display());
    let hint = "renew it, or check why the ACME client has not done so";
    validity.is_ending(wall_now()).then(|| DoctorCheck::warn(name, detail, hint))
}

/// Compares the machine's clock with the newest file of the store and with the courier's
/// clock. `shared` is what a courier that shares its store says about the clocks.
pub(super) fn clock(store: &Path, drift: Option<i64>, shared: Option<&str>) -> DoctorCheck {
    let (name, now) = ("clock", wall_now());
    if now.ms() < MIN_CLOCK_MS {
        let detail = format!("the clock shows {}", now.rfc3339());
        return DoctorCheck::fail(
            name,
            detail,
            "set the clock of the machine, then restart the courier",
        );
    }
    if let Some((detail, hint)) = shared.and_then(|problem| problem.split_once("; ")) {
        return DoctorCheck::warn(name, detail, hint);
    }
    if let Some(drift) = drift
        && drift.abs() > MAX_DRIFT_MS
    {
        let detail = format!("changed by {} s since the courier started", drift / 1000);
        let hint = "the courier ignores clock steps; when the clock is right, run \
                    `monoco courier restart`";
        return DoctorCheck::warn(name, detail, hint);
    }
    let ahead = newest(store).map_or(Duration::ZERO, |noted| {
        let now = Duration::from_millis(u64::try_from(now.ms()).unwrap_or(0));
        noted.saturating_sub(now)
    });
    if ahead > Duration::from_secs(60) {
        let detail = format!("the store was written {} s in the future", ahead.as_secs());
        return DoctorCheck::warn(
            name,
            detail,
            "the clock was ahead then or is behind now; set the clock",
        );
    }
    DoctorCheck::ok(name, now.rfc3339())
}

/// Returns the newest modification time of the files in `dir`, since 1970.
fn newest(dir: &Path) -> Option<Duration> {
    let times = fs::read_dir(dir).ok()?.flatten().take(MAX_DIR_ENTRIES).filter_map(|entry| {
        entry.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()
    });
    times.max()
}

#[cfg(test)]
mod tests {
    use super::super::CheckState;
    use super::*;

    #[test]
    fn clock_step_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(clock(dir.path(), None, None).state, CheckState::Ok);
        assert_eq!(clock(dir.path(), Some(-59_000), None).state, CheckState::Ok);
        assert_eq!(clock(dir.path(), Some(-61_000), None).state, CheckState::Warn);
        let file = fs::File::create(dir.path().join("monoco.db")).unwrap();
        assert_eq!(clock(dir.path(), None, None).state, CheckState::Ok);
        let later = u64::try_from(wall_now().ms()).unwrap() + 3_600_000;
        file.set_modified(UNIX_EPOCH + Duration::from_millis(later)).unwrap();
        assert_eq!(clock(dir.path(), None, None).state, CheckState::Warn);
    }

    #[test]
    fn home_that_other_users_can_access_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path().join("home"));
        assert_eq!(home_dir(&home).state, CheckState::Warn);
        home.create().unwrap();
        home.replace_token().unwrap();
        assert_eq!((home_dir(&home).state, token(&home).state), (CheckState::Ok, CheckState::Ok));
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(home.token_path(), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(
            (home_dir(&home).state, token(&home).state),
            (CheckState::Fail, CheckState::Fail)
        );
    }
}
