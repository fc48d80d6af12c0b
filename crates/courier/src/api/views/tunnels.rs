//! Tunnels, their health, and the result of their connection test.

use std::borrow::Cow;

use monoco_adapters::ProbeReport;
use monoco_core::contact::TunnelInfo;
use monoco_core::retry::Failure;
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

use super::health::AdapterHealth;

/// A connection to an outside network.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Tunnel))]
pub struct TunnelView {
    pub id: String,
    pub did: String,
    pub provider: String,
    /// `accept`, `hold` or `drop`
    pub strangers: Cow<'static, str>,
    /// Whether the provider recognises a second copy by its idempotency key
    pub idempotent: bool,
    /// Health of the tunnel; missing when another program runs it
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<AdapterHealth>,
}

/// All tunnels of the hub.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct TunnelList {
    pub tunnels: Vec<TunnelView>,
}

/// The result of a connection test.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = TunnelTest))]
pub struct TunnelTestView {
    pub ok: bool,
    /// What was checked, and what was found
    pub checks: Vec<TunnelCheckView>,
    /// What does not keep the tunnel from working, but should be fixed
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Kind of the error: `temporary`, `permanent` or `unknown`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<Cow<'static, str>>,
}

/// One step of a connection test.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = TunnelCheck))]
pub struct TunnelCheckView {
    pub name: String,
    pub result: String,
}

impl TunnelView {
    /// The view of a tunnel. `health` is `None` when another program runs it.
    pub fn new(tunnel: TunnelInfo, health: Option<AdapterHealth>) -> Self {
        Self {
            did: tunnel.id.did().into(),
            id: tunnel.id.into(),
            provider: tunnel.provider,
            strangers: tunnel.strangers.as_str().into(),
            idempotent: tunnel.idempotent,
            health,
        }
    }
}

impl From<Result<ProbeReport, Failure>> for TunnelTestView {
    fn from(probe: Result<ProbeReport, Failure>) -> Self {
        let (report, failure) = match probe {
            Ok(report) => (report, None),
            Err(failure) => (ProbeReport::default(), Some(failure)),
        };
        let ProbeReport { lines, warnings } = report;
        let checks = lines.into_iter().map(|(name, result)| TunnelCheckView { name, result });
        let error_kind = failure.as_ref().map(|failure| match failure {
            Failure::Temporary { .. } => "temporary",
            Failure::Permanent { .. } => "permanent",
            Failure::Unknown { .. } => "unknown",
        });
        Self {
            ok: failure.is_none(),
            checks: checks.collect(),
            warnings,
            error: failure.map(|failure| failure.detail().to_owned()),
            error_kind: error_kind.map(Into::into),
        }
    }
}
