//! Opens the store that the config names.

use std::sync::Arc;

use monoco_adapters::secret_command::get_secret;
use monoco_core::config::{Secret, SecretSource};
use monoco_core::courier::CourierId;
use monoco_core::retry::Failure;
use monoco_store::postgres::{ObjectLocation, PostgresOptions, PostgresStore, ServerFacts};
use monoco_store::sqlite::SqliteStore;
use monoco_store::{
    RemoteObjects as _, SharedStore, SqlStore, StoreError, StoreLocation, StoreResult,
};

use crate::config::{PostgresConfig, StoreConfig};
use crate::home::Home;
use crate::s3::S3Objects;
use crate::s3::location::S3Location;

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
                objects: objects(home, config.objects.as_ref(), true).await?,
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
            objects: objects(home, config.objects.as_ref(), false).await?,
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

/// Opens the bucket for large objects, if the config names one.
///
/// # Errors
///
/// When the server rejects the keys or the bucket. A courier can start while the server is down
/// (`is_lenient`): messages without large objects do not need it.
pub async fn objects(
    home: &Home,
    source: Option<&SecretSource>,
    is_lenient: bool,
) -> StoreResult<ObjectLocation> {
    let spool = home.spool();
    let Some(source) = source else { return Ok(ObjectLocation::database(spool)) };
    let bucket = bucket(source).await?;
    match bucket.test_access().await {
        Err(failure) if !is_lenient || matches!(failure, Failure::Permanent { .. }) => {
            Err(unusable(failure.detail()))
        }
        _ => Ok(ObjectLocation { spool, remote: Some(Arc::new(bucket)) }),
    }
}

/// Writes, reads and deletes a small object in the bucket of the config. Returns where it is.
///
/// # Errors
///
/// When the bucket cannot be used, or the command that prints its URL fails.
pub async fn check_bucket(source: &SecretSource) -> StoreResult<String> {
    let bucket = bucket(source).await?;
    bucket.test_access().await.map_err(|failure| unusable(failure.detail()))?;
    Ok(bucket.place().to_owned())
}

async fn bucket(source: &SecretSource) -> StoreResult<S3Objects> {
    let url = get_secret(source).await;
    let url = url.map_err(|failure| unusable(&format!("objects_command: {}", failure.detail())))?;
    let location = S3Location::parse(url.expose()).map_err(|why| unusable(&why))?;
    S3Objects::new(location).map_err(|why| unusable(&why))
}

fn unusable(why: &str) -> StoreError {
    StoreError::Unavailable(format!("the place of large objects cannot be used: {why}"))
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
