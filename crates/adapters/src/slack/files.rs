//! The files of a message: what the Mail says about them, and how they are fetched later.

use monoco_core::inbound::Artifact;
use monoco_core::retry::Failure;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::wire::{list, text};
use crate::FileDownload;

const DEFAULT_MIME_TYPE: &str = "application/octet-stream";

/// How a file is fetched later. Its JSON is the handle of the artifact.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlackFileHandle {
    pub id: String,
    /// The private link; without it the link is looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    pub mime_type: String,
}

impl SlackFileHandle {
    /// Parses the handle of an artifact.
    pub fn parse(handle: &str) -> Result<Self, Failure> {
        serde_json::from_str(handle)
            .map_err(|error| permanent(format!("not a handle of a Slack file: {error}")))
    }

    /// Rejects a web page in place of a file: Slack answers with its login page, and status 200,
    /// when the token lacks the scope `files:read`.
    pub fn check(&self, download: &FileDownload) -> Result<(), Failure> {
        let is_page = download.mime_type.as_deref() == Some("text/html");
        match is_page && self.mime_type != "text/html" {
            true => Err(permanent(
                "Slack answered with a web page; add the scope files:read and install the app again"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }
}

/// Returns the private link in an answer of files.info.
pub(super) fn private_url(file: &Value) -> Result<String, Failure> {
    let url = text(file, "url_private_download").or(text(file, "url_private"));
    url.map(str::to_owned).ok_or_else(|| permanent("Slack has no link to the file".to_owned()))
}

fn permanent(detail: String) -> Failure {
    Failure::Permanent { detail, error_code: None }
}

/// Returns the files of a message as artifacts.
pub(super) fn artifacts(message: &Value) -> Vec<Artifact> {
    list(message, "files").iter().map(artifact).collect()
}

fn artifact(file: &Value) -> Artifact {
    let mime_type = text(file, "mimetype").unwrap_or(DEFAULT_MIME_TYPE).to_owned();
    let mut artifact = Artifact {
        name: name(file),
        mime_type: mime_type.clone(),
        size: file["size"].as_u64(),
        hash: None,
        url: None,
        fetch: None,
        missing: None,
    };
    let is_external =
        file["is_external"].as_bool() == Some(true) || text(file, "mode") == Some("external");
    match (text(file, "mode"), text(file, "id")) {
        (Some("tombstone"), _) => artifact.missing = Some("the file was deleted".to_owned()),
        (Some("hidden_by_limit"), _) => {
            artifact.missing =
                Some("the plan of the workspace does not show files of this age".to_owned());
        }
        // Slack has only a link to it. The hub follows no links of a sender.
        _ if is_external => {
            artifact.url =
                text(file, "external_url").or(text(file, "url_private")).map(str::to_owned);
        }
        (_, Some(id)) => {
            let url = text(file, "url_private_download").or(text(file, "url_private"));
            let handle =
                SlackFileHandle { id: id.to_owned(), url: url.map(str::to_owned), mime_type };
            artifact.fetch = serde_json::to_string(&handle).ok();
        }
        (_, None) => artifact.missing = Some("Slack has sent no id of the file".to_owned()),
    }
    artifact
}

fn name(file: &Value) -> String {
    let name = text(file, "name").or(text(file, "title")).or(text(file, "id")).unwrap_or("file");
    name.to_owned()
}

#[cfg(test)]
mod tests;
