//! The file of a tunnel in `adapters.d`: parsed and tested before it is written, and removed with
//! the secrets that belong to it.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use monoco_adapters::Adapter;
use monoco_adapters::egress::Egress;
use monoco_adapters::registry::AdapterResources;
use monoco_core::config::{ConfigFile, InvalidConfig};
use monoco_core::did::TunnelId;
use monoco_core::merge::Debounce;
use monoco_fs::FileOptions;

use super::answers::{SecretDir, TunnelAnswers};
use crate::cli::CliContext;
use crate::cli::courier::control;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{escape_line, note};
use monoco_courier::api::views::tunnels::TunnelTestView;
use monoco_courier::config::{
    ADAPTERS_DIR, ConfigError, ConfigSource, SECRETS_DIR, TunnelConfig, read_tunnel,
};
use monoco_courier::home::Home;

/// How long a connection test may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Which config a command changes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfigFileArgs {
    /// Path of the config file beside which the file of the tunnel is [default: that of the
    /// running courier, or courier/config.yaml in the courier's directory]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFileArgs {
    /// The config that the command changes.
    pub fn source(&self, home: &Home) -> Result<ConfigSource, CliError> {
        let running = home.courier().and_then(|courier| courier.config);
        let source = running.unwrap_or_else(|| ConfigSource::of(home));
        match &self.config {
            Some(path) => Ok(ConfigSource { path: std::path::absolute(path)?, ..source }),
            None => Ok(source),
        }
    }
}

/// The file of one tunnel, which need not exist yet.
#[derive(Debug)]
pub struct TunnelFile {
    pub id: TunnelId,
    pub path: PathBuf,
    secrets: PathBuf,
    source: ConfigSource,
}

impl TunnelFile {
    pub fn new(home: &Home, name: &str, config: &ConfigFileArgs) -> Result<Self, CliError> {
        let id: TunnelId = name.parse().map_err(|error| CliError::usage(format!("{error}")))?;
        let source = config.source(home)?;
        let path = source.path.with_file_name(ADAPTERS_DIR).join(format!("{id}.yaml"));
        let secrets = source.path.with_file_name(SECRETS_DIR);
        Ok(Self { id, path, secrets, source })
    }

    pub fn secret_dir(&self) -> SecretDir<'_> {
        SecretDir { path: &self.secrets, tunnel: self.id.as_str() }
    }

    /// Fails when the tunnel has a file already. `remove` is the command that removes it.
    pub fn check_new(&self, remove: &str) -> Result<(), CliError> {
        if !self.path.exists() {
            return Ok(());
        }
        let (id, path) = (&self.id, self.path.display());
        let message = format!("there is a tunnel {id} already: {path}");
        Err(CliError::new(CliExit::NotPossible, message)
            .hint(format!("edit the file, or remove it with `{remove} {id}`")))
    }

    /// Reads the answers as the courier will read the file. `help` is the command that describes
    /// the options.
    pub fn parse(&self, answers: &TunnelAnswers, help: &str) -> Result<TunnelConfig, CliError> {
        let parsed = ConfigFile::parse(&answers.yaml())
            .and_then(|file| read_tunnel(self.id.as_str(), file.root(answers)?, Debounce::DEFAULT));
        parsed.map_err(|error| match error.unset {
            true => {
                let message =
                    format!("{error}; set it in this shell, too, to test the connections");
                CliError::usage(message).hint("--no-test writes the file without a test")
            }
            false => invalid(&error, help),
        })
    }

    /// Tests connections and login with the config of the tunnel.
    pub async fn probe(&self, config: &TunnelConfig) -> Result<TunnelTestView, CliError> {
        probe(build(self.id.clone(), config)?.as_ref()).await
    }

    /// Writes the secrets that were entered and then the file, both readable only by the user.
    pub fn write(&self, context: &CliContext, answers: &TunnelAnswers) -> Result<(), CliError> {
        context.home.create()?;
        if !answers.secret_files().is_empty() {
            create_private_dir(&self.secrets)?;
        }
        for (path, secret) in answers.secret_files() {
            write_private(path, format!("{}\n", secret.expose()).as_bytes())?;
            note(&format!("stored a secret in {}", path.display()));
        }
        create_private_dir(self.path.parent().unwrap_or(&self.path))?;
        write_private(&self.path, answers.yaml().as_bytes())?;
        note(&format!("wrote {}", self.path.display()));
        Ok(())
    }

    /// Reloads a running courier that reads this config. When the courier or the config reader
    /// rejects the file, the file is removed again, unless it was not to be tested.
    pub fn activate(&self, context: &CliContext, keep: bool) -> Result<(), CliError> {
        let result = self.check_config().and_then(|()| reload(&context.home, &self.source));
        if result.is_err() && !keep {
            self.remove_files()?;
            note(&format!("removed {} again", self.path.display()));
        }
        result
    }

    /// Fails when the config is invalid because of this file.
    fn check_config(&self) -> Result<(), CliError> {
        match self.source.load() {
            Err(ConfigError::Invalid { path, error }) if path == self.path && !error.unset => {
                Err(CliError::new(CliExit::NotPossible, format!("{}: {error}", path.display())))
            }
            _ => Ok(()),
        }
    }

    /// Removes the file and the secrets that were entered for it.
    pub fn remove(&self, context: &CliContext) -> Result<(), CliError> {
        if !self.path.exists() {
            let message = format!("there is no file {}", self.path.display());
            let config = self.source.path.display();
            return Err(CliError::new(CliExit::NotPossible, message)
                .hint(format!("a tunnel of {config} is removed there")));
        }
        self.remove_files()?;
        reload(&context.home, &self.source)
    }

    fn remove_files(&self) -> Result<(), CliError> {
        std::fs::remove_file(&self.path)?;
        let Ok(entries) = std::fs::read_dir(&self.secrets) else { return Ok(()) };
        let prefix = format!("{}.", self.id);
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Builds the adapter of a tunnel in this process, for a test of its connections.
pub fn build(id: TunnelId, config: &TunnelConfig) -> Result<Arc<dyn Adapter>, CliError> {
    let egress = Egress::new().map_err(|error| error.to_string());
    let resources = AdapterResources { egress, envelope_key: None };
    let built = config.adapter.build(id, &resources);
    built.map_err(|why| CliError::new(CliExit::NotPossible, escape_line(&why)))
}

/// Tests the connections of an adapter, for a limited time.
pub async fn probe(adapter: &dyn Adapter) -> Result<TunnelTestView, CliError> {
    let probe = tokio::time::timeout(TEST_TIMEOUT, adapter.probe()).await;
    probe.map(Into::into).map_err(|_| {
        let message = format!("the test did not end within {} s", TEST_TIMEOUT.as_secs());
        CliError::new(CliExit::NotPossible, message)
            .hint("--no-test writes the file without a test")
    })
}

/// Reloads a running courier if it reads this config.
fn reload(home: &Home, source: &ConfigSource) -> Result<(), CliError> {
    let Some(running) = home.running() else {
        note("start the courier with `monoco courier start`");
        return Ok(());
    };
    let config = running.config.map_or_else(|| home.config(), |config| config.path);
    if config != source.path {
        note(&format!("the running courier reads another config: {}", config.display()));
        return Ok(());
    }
    note(&control::describe_reload(&control::reload(home)?));
    Ok(())
}

fn invalid(error: &InvalidConfig, help: &str) -> CliError {
    CliError::usage(error.to_string()).hint(format!("`{help} --help` describes all options"))
}

fn create_private_dir(dir: &Path) -> Result<(), CliError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| local_file(dir, &error))
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let written = monoco_fs::write(path, bytes, FileOptions::PRIVATE_SYNCED);
    written.map_err(|error| local_file(path, &error))
}

fn local_file(path: &Path, error: &dyn std::fmt::Display) -> CliError {
    CliError::new(CliExit::LocalFile, format!("cannot write {}: {error}", path.display()))
}
