//! `monoco open`: opens the web page in the browser and logs it in.
//!
//! The code of the login is written to a file that only the user can read, and the browser opens
//! that file. So the code is in no process list, and after the login in no history.

use std::process::{Command, Stdio};

use monoco_courier::api::page::{LoginCode, RevokedLogins};
use monoco_courier::home::Home;
use monoco_fs::FileOptions;
use serde_json::json;

use super::CliContext;
use super::failure::{CliError, CliExit};
use super::output::{self, OutputFormat, note, print, print_json};

/// Programs that open a file in the browser of the user, in the order they are tried.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

#[derive(Debug, clap::Args)]
pub struct OpenArgs {
    /// Print the link instead of opening it, for a browser on another machine
    ///
    /// The link logs in one browser, once, within 60 s. Over SSH, forward the port first:
    /// ssh -L 8644:localhost:8644 HOST
    #[arg(long, conflicts_with = "revoke")]
    print: bool,
    /// Log out all browsers
    #[arg(long)]
    revoke: bool,
    /// Use localhost instead of the page's own host name
    ///
    /// For browsers that do not find names below localhost. The cookie of the login is then also
    /// sent to other servers on localhost, which must be trusted.
    #[arg(long, conflicts_with = "revoke")]
    localhost: bool,
}

pub async fn run(context: &CliContext, args: OpenArgs) -> Result<(), CliError> {
    if args.revoke {
        return revoke(context).await;
    }
    let link = new_link(context, args.localhost).await?;
    if args.print {
        return match context.format {
            OutputFormat::Json => print_json(&json!({"link": link})),
            _ => print(&link),
        };
    }
    write_file(&context.home, &link)?;
    let path = context.home.open_path();
    if start_browser(&path) {
        return output::done(context.format, "opened in the browser", &json!({"opened": true}));
    }
    note("no program found to open a browser; open this link within 60 s:");
    print(&link)
}

async fn new_link(context: &CliContext, is_localhost: bool) -> Result<String, CliError> {
    let running = context.home.running().ok_or_else(|| {
        CliError::new(CliExit::NoCourier, "no courier is running")
            .hint("start one with `monoco courier start`")
    })?;
    let client = context.client()?;
    let LoginCode { code, host, .. } = client.post("/api/v1/login/codes", &json!({})).await?;
    let host = if is_localhost { "localhost" } else { &host };
    Ok(format!("http://{host}:{}/#login={code}", running.port))
}

async fn revoke(context: &CliContext) -> Result<(), CliError> {
    let client = context.client()?;
    let RevokedLogins { revoked } = client.post("/api/v1/login/revoke", &json!({})).await?;
    let message = format!("browsers logged out: {revoked}");
    output::done(context.format, &message, &json!({"revoked": revoked}))
}

/// Writes the file that leads the browser to the link.
fn write_file(home: &Home, link: &str) -> Result<(), CliError> {
    let html = format!(
        "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
         <meta http-equiv=\"refresh\" content=\"0;url={link}\"><title>Monoco</title>\
         <p><a href=\"{link}\">Monoco</a></p>\n"
    );
    monoco_fs::write(&home.open_path(), html.as_bytes(), FileOptions::PRIVATE)
        .map_err(|error| CliError::from(std::io::Error::from(error)))
}

fn start_browser(path: &std::path::Path) -> bool {
    OPENERS.iter().any(|program| {
        let mut command = Command::new(program);
        command.arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}
