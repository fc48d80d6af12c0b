//! Checks credentials, permissions and the long connection without receiving or sending anything.

use monoco_core::retry::Failure;

use super::client::LarkRequest;
use super::config::LarkMode;
use super::failure::LarkFault;
use super::tenant::LarkTenant;
use super::wire::text;
use crate::ProbeReport;

/// Methods that need permissions, and what does not work without each.
const CHECKED: [(&str, &str); 1] = [(
    "im/v1/chats",
    "reading names of groups, and their histories after a gap (im:chat:readonly)",
)];

/// Checks the app of a tunnel and returns what was found.
pub(super) async fn probe(tenant: &LarkTenant, mode: LarkMode) -> Result<ProbeReport, Failure> {
    let client = &tenant.client;
    if client.app().is_err() {
        let found = "not checked: a custom robot can only be checked by a message";
        let lines = vec![("custom robot".to_owned(), found.to_owned())];
        return Ok(ProbeReport { lines, warnings: Vec::new() });
    }
    let mut report = ProbeReport::default();
    client.forget_token().await;
    client.token().await.map_err(LarkFault::into_failure)?;
    report.lines.push(("app".to_owned(), "ok, app_id and app_secret are valid".to_owned()));
    match client.call(LarkRequest::get("bot/v3/info", &[])).await {
        Ok(answer) => {
            let bot = &answer.body()["bot"];
            let (name, id) = (text(bot, "app_name"), text(bot, "open_id"));
            let found = format!("ok, {} ({})", name.unwrap_or("?"), id.unwrap_or("?"));
            report.lines.push(("bot".to_owned(), found));
        }
        Err(fault) if fault.is_rejection() => report.warnings.push(format!(
            "the app has no bot, so it receives and sends nothing: add the feature Bot in the \
             console and publish a version ({})",
            fault.into_failure().detail()
        )),
        Err(fault) => return Err(fault.into_failure()),
    }
    for (path, use_of) in CHECKED {
        match client.call(LarkRequest::get(path, &[("page_size", "1")])).await {
            Ok(_) => report.lines.push(("permissions".to_owned(), "ok".to_owned())),
            Err(fault) if fault.is_rejection() => report.warnings.push(format!(
                "missing permission for {use_of}: {}",
                fault.into_failure().detail()
            )),
            Err(fault) => return Err(fault.into_failure()),
        }
    }
    if mode == LarkMode::Stream {
        // The address is not used, but it shows that a connection can be opened.
        let endpoint = client.open_socket().await.map_err(LarkFault::into_failure)?;
        let found = format!(
            "ok, {}; when another process uses the same app, Lark sends each event to only one of \
             them",
            endpoint.target.host()
        );
        report.lines.push(("long connection".to_owned(), found));
    }
    Ok(report)
}
