//! Keys that several chat providers have.

use std::net::IpAddr;
use std::time::Duration;

use monoco_core::config::{ConfigSection, InvalidConfig};
use reqwest::Url;

use crate::egress::EgressTarget;

/// How far back the history is read after a gap, without the key `catch_up`.
pub(crate) const DEFAULT_CATCH_UP: Duration = Duration::from_secs(24 * 3600);

/// Reads `base_url`, the address of the provider's API. Only an emulator on this machine may use
/// http.
pub(crate) fn read_base_url(
    section: &ConfigSection<'_>,
    default: &str,
) -> Result<EgressTarget, InvalidConfig> {
    let text = section.text("base_url")?.unwrap_or_else(|| default.to_owned());
    let parsed = EgressTarget::parse(&text, is_loopback_url(&text));
    parsed.map_err(|error| section.invalid_key("base_url", error.to_string()))
}

/// Tells whether a URL names this machine.
pub(crate) fn is_loopback_url(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Reads `catch_up`: a duration such as `24h`, or `off`.
pub(crate) fn read_catch_up(
    section: &ConfigSection<'_>,
) -> Result<Option<Duration>, InvalidConfig> {
    let Some(value) = section.value("catch_up")? else { return Ok(Some(DEFAULT_CATCH_UP)) };
    value.checked(|text| {
        if text == "off" {
            return Ok(None);
        }
        let unit = text.chars().last();
        let seconds = unit.and_then(|unit| match unit {
            's' => Some(1),
            'm' => Some(60),
            'h' => Some(3_600),
            'd' => Some(86_400),
            _ => None,
        });
        let count = text.get(..text.len().saturating_sub(1)).and_then(|text| text.parse().ok());
        let length =
            seconds.zip(count).and_then(|(unit, count): (u64, u64)| unit.checked_mul(count));
        match length.filter(|length| (1..=30 * 86_400).contains(length)) {
            Some(length) => Ok(Some(Duration::from_secs(length))),
            None => {
                Err(format!("found {}, expected `off` or 1s to 30d, such as 24h", value.quoted()))
            }
        }
    })
}
