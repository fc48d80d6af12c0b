//! The directory `adapters.d` beside the config file: one file per tunnel, `{tunnel}.yaml`,
//! with the keys of that tunnel. `monoco tunnel add` writes such files.

use std::path::{Path, PathBuf};

use monoco_core::config::{ConfigFile, InvalidConfig};
use monoco_core::did::TunnelId;

use super::environment::{FileEnvironment, Variables};
use super::{Config, ConfigError, read, tunnel};

/// Name of the directory with one file per tunnel.
pub const ADAPTERS_DIR: &str = "adapters.d";

/// Name of the directory with the secrets that `monoco tunnel add` has stored.
pub const SECRETS_DIR: &str = "secrets";

/// Maximum number of files in the directory.
const MAX_FILES: usize = 1_000;

/// Lists the files of tunnels beside a config file, ordered by name. Hidden files and files
/// with other endings are left out, such as backups of editors.
///
/// # Errors
///
/// When the directory cannot be read, has too many files, or has one that ends with `.yml`,
/// which its author expects to be read.
pub fn adapter_files(config: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let dir = config.with_file_name(ADAPTERS_DIR);
    let failed = |error| ConfigError::Read { path: dir.clone(), error };
    let entries = match std::fs::read_dir(&dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml") if !hidden => files.push(path),
            Some("yml") if !hidden => {
                let why = "expected the ending .yaml; rename the file";
                return Err(invalid(&path, InvalidConfig::at("the file", why)));
            }
            _ => {}
        }
        if files.len() > MAX_FILES {
            let why = format!("more than {MAX_FILES} files");
            return Err(invalid(&dir, InvalidConfig::at("the directory", why)));
        }
    }
    files.sort();
    Ok(files)
}

impl Config {
    /// Adds the tunnels of the files beside the config file.
    pub(super) fn add_adapter_files(
        &mut self,
        config: &Path,
        env: Variables<'_>,
    ) -> Result<(), ConfigError> {
        for path in adapter_files(config)? {
            let text = read(&path, true)?;
            let added = self.add_tunnel(&path, &text, config, env);
            added.map_err(|error| invalid(&path, error))?;
        }
        Ok(())
    }

    fn add_tunnel(
        &mut self,
        path: &Path,
        text: &str,
        config: &Path,
        env: Variables<'_>,
    ) -> Result<(), InvalidConfig> {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let id: TunnelId = name.parse().map_err(|error| {
            InvalidConfig::at("the file", format!("its name is not that of a tunnel: {error}"))
        })?;
        if self.tunnels.contains_key(&id) {
            let why = format!(
                "the tunnel {id} is also in {}; remove it from one of them",
                config.display()
            );
            return Err(InvalidConfig::at("the file", why));
        }
        let (file, environment) = (ConfigFile::parse(text)?, FileEnvironment::new(env));
        let tunnel = tunnel::read_tunnel(name, file.root(&environment)?, self.debounce)?;
        self.tunnels.insert(id, tunnel);
        self.secret_files.append(&mut environment.secret_files.take());
        Ok(())
    }
}

fn invalid(path: &Path, error: InvalidConfig) -> ConfigError {
    ConfigError::Invalid { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{ConfigChange, ConfigSource};

    struct ConfigFiles(tempfile::TempDir);

    impl ConfigFiles {
        fn new(config: &str, files: &[(&str, &str)]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("config.yaml"), config).unwrap();
            fs::create_dir(dir.path().join(ADAPTERS_DIR)).unwrap();
            for (name, text) in files {
                fs::write(dir.path().join(ADAPTERS_DIR).join(name), text).unwrap();
            }
            Self(dir)
        }

        fn load(&self) -> Result<Config, String> {
            let env = |name: &str| (name == "TOKEN").then(|| "s3cret".to_owned());
            Config::load(&self.0.path().join("config.yaml"), true, &env).map_err(|error| {
                let dir = format!("{}/", self.0.path().display());
                error.to_string().replace(&dir, "")
            })
        }
    }

    const HOOK: &str = "provider: webhook\nverify: bearer\nsecret: '${TOKEN}'\n";

    #[test]
    fn each_file_is_a_tunnel() {
        let config = "courier: {debounce: {window_ms: 1}, adapters: {ci: {provider: stub}}}";
        let files = ConfigFiles::new(
            config,
            &[
                ("work.yaml", HOOK),
                ("stub.yaml", "enabled: false"),
                ("webhook.yaml", "{verify: bearer, secret: a, enabled: false}"),
                (".hidden.yaml", "not: [a tunnel"),
                ("work.yaml~", "not: [a tunnel"),
                ("README", "not: [a tunnel"),
            ],
        );
        let loaded = files.load().unwrap();
        let tunnels: Vec<_> = loaded.tunnels.keys().map(TunnelId::as_str).collect();
        assert_eq!(tunnels, ["ci", "stub", "webhook", "work"]);
        let work = &loaded.tunnels[&"work".parse().unwrap()];
        assert_eq!((work.provider, work.enabled), ("webhook", true));
        assert_eq!(work.debounce.window.as_millis(), 1, "the default of config.yaml");
        assert!(!loaded.tunnels[&"stub".parse().unwrap()].enabled);

        fs::remove_file(files.0.path().join("adapters.d/work.yaml")).unwrap();
        let changes = loaded.changes(&files.load().unwrap());
        let changes: Vec<_> = changes.iter().map(ConfigChange::to_string).collect();
        assert_eq!(changes, ["tunnel work: removed"]);
        let source = ConfigSource::of(&crate::home::Home::new(files.0.path().join("none")));
        assert!(source.load().is_ok(), "without a directory there are no files");
    }

    #[test]
    fn errors_name_the_file() {
        let config = "courier: {adapters: {ci: {provider: stub}}}";
        for (name, text, error) in [
            ("ci.yaml", "provider: stub", "the file: the tunnel ci is also in config.yaml; remove"),
            ("Work.yaml", HOOK, "the file: its name is not that of a tunnel: "),
            ("a b.yaml", HOOK, "the file: its name is not that of a tunnel: "),
            ("work.yml", HOOK, "the file: expected the ending .yaml; rename the file"),
            ("work.yaml", "", "the file: `provider` is missing; expected "),
            ("work.yaml", "provider: webhok", "provider: unknown provider \"webhok\""),
            ("work.yaml", "provider: webhook\nsecrt: a", "line 2, column 1: unknown key `secrt`"),
            ("work.yaml", "provider: webhook\nsecret: '${NONE}'", "secret: the variable NONE"),
            ("work.yaml", "- provider: webhook", "line 1, column 1: expected keys and values"),
            ("work.yaml", "a: [", "line 1, column "),
        ] {
            let found = ConfigFiles::new(config, &[(name, text)]).load().unwrap_err();
            let expected = format!("adapters.d/{name}: {error}");
            assert!(found.starts_with(&expected), "found:    {found}\nexpected: {expected}");
        }
        let missing = ConfigFiles::new("", &[]);
        fs::remove_dir(missing.0.path().join(ADAPTERS_DIR)).unwrap();
        fs::write(missing.0.path().join(ADAPTERS_DIR), "").unwrap();
        assert!(missing.load().unwrap_err().starts_with("cannot read adapters.d: "));
    }

    #[test]
    fn symbolic_link_is_followed_like_that_of_the_config() {
        let files = ConfigFiles::new("", &[]);
        fs::write(files.0.path().join("elsewhere"), HOOK).unwrap();
        let link = files.0.path().join("adapters.d/work.yaml");
        std::os::unix::fs::symlink(files.0.path().join("elsewhere"), &link).unwrap();
        assert!(files.load().unwrap().tunnels.contains_key(&"work".parse().unwrap()));
        fs::remove_file(files.0.path().join("elsewhere")).unwrap();
        assert!(files.load().unwrap_err().starts_with("cannot read adapters.d/work.yaml: "));
    }
}
