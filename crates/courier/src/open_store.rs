//! Opens the store that the config names.

use std::sync::Arc;

use monoco_adapters::secret_command::get_secret;
use monoco_core::config::Secret;
use monoco_core::courier::CourierId;
use monoco_store::postgres::{ObjectLocation, PostgresOptions, PostgresStore, ServerFacts};
use monoco_store::sqlite::SqliteStore;
use monoco_store::{SharedStore, SqlStore, StoreError, StoreLocation, StoreResult};

use crate::config::{PostgresConfig, StoreConfig};
use crate::home::Home;

/// Opens the store, and creates it when it does not exist.
///
/// # Errors
///
/// When it cannot be opened, or the command that prints its URL fails.
pub async fn open_store(
    home: &Home,
    courier: CourierId,
    config: &StoreConfig,
) -> StoreResult<SharedStore> {
    let dir = home.store();
    let store: SqlStore = match config {
        StoreConfig::Sqlite => blocking(move || SqliteStore::open(&dir)).await?,
        StoreConfig::Postgres(config) => {
            // Differs between two starts of one courier, also when its home was copied.
            let boot = getrandom::u64().map_err(|error| {
                StoreError::Unavailable(format!("no random bytes for the start: {error}"))
            })?;
            let options = PostgresOptions {
                url: url(config).await?.expose().trim().to_owned(),
                schema: config.schema.clone(),
                courier: courier.to_string(),
                boot: format!("{boot:016x}"),
                durability: config.durability,
                objects: ObjectLocation::Database { spool: home.spool() },
            };
            blocking(move || PostgresStore::open(&options)).await?
        }
    };
    Ok(Arc::new(store))
}

/// Returns where the store is, for a copy of it.
///
/// # Errors
///
/// When the command that prints its URL fails.
pub async fn location(home: &Home, config: &StoreConfig) -> StoreResult<StoreLocation> {
    Ok(match config {
        StoreConfig::Sqlite => StoreLocation::Directory(home.store()),
        StoreConfig::Postgres(config) => StoreLocation::Postgres {
            url: url(config).await?.expose().trim().to_owned(),
            schema: config.schema.clone(),
            spool: home.spool(),
        },
    })
}

/// Connects to the database server and reads its state, without a change.
///
/// # Errors
///
/// When it cannot be reached, or the command that prints its URL fails.
pub async fn check_server(config: &PostgresConfig) -> StoreResult<ServerFacts> {
    let (url, schema) = (url(config).await?, config.schema.clone());
    blocking(move || PostgresStore::check(url.expose().trim(), &schema)).await
}

async fn url(config: &PostgresConfig) -> StoreResult<Secret> {
    let url = get_secret(&config.url).await;
    url.map_err(|failure| StoreError::Unavailable(format!("store_command: {}", failure.detail())))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> StoreResult<T> + Send + 'static,
) -> StoreResult<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))
}
