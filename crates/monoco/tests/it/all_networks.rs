//! One conversation across all chat networks and e-mail, in one workspace: every question is pulled,
//! claimed, answered where it was asked, and completed.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::chat_harness::{ChatSim, chat_config, tunnel_section};
use crate::common::wait_for;
use crate::email::{account, mail};
use crate::end_to_end::User;
use crate::mail_servers::{Dovecot, SmtpServer};
use crate::{dingtalk, lark, slack, telegram};

/// The tunnels of the test, which receive by four kinds of connection.
const TUNNELS: [&str; 5] = ["slack", "ding", "lark", "tele", "work"];

/// Waits until every tunnel has a connection.
fn wait_for_tunnels(user: &User) {
    wait_for(|| {
        let status = user.types(&user.home(), "courier status --json").stdout;
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let state = |tunnel: &str| status["adapters"][tunnel]["status"].as_str().unwrap_or("");
        let all = TUNNELS.iter().all(|tunnel| ["hearing", "quiet"].contains(&state(tunnel)));
        if all { Ok(()) } else { Err(format!("{:#}", status["adapters"])) }
    });
}

/// The Mails of the workspace by the tunnel that received them.
fn mails_by_tunnel(list: &str) -> BTreeMap<String, Value> {
    let list: Value = serde_json::from_str(list).unwrap_or_default();
    let mails = list["messages"].as_array().or(list.as_array()).cloned().unwrap_or_default();
    mails.into_iter().map(|mail| (mail["tunnel"].as_str().unwrap().to_owned(), mail)).collect()
}

#[test]
fn one_workspace_answers_every_network_where_it_was_asked() {
    let sims = ["slack", "dingtalk", "lark", "telegram"].map(ChatSim::start);
    let [slack, ding, lark, tele] = &sims;
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let mut config = chat_config("slack", 50, &slack::socket_keys(slack));
    config += &tunnel_section("ding", &dingtalk::stream_keys(ding, &[]));
    config += &tunnel_section("lark", &lark::stream_keys(lark));
    config += &tunnel_section("tele", &telegram::keys(tele, &[]));
    config += &format!("    work: {}\n", account("team", &dovecot, &smtp, "binding: alpha"));
    let user = User::new(&config);
    user.types(&user.home(), "courier start").ok();
    wait_for_tunnels(&user);

    for (sim, place) in sims.iter().zip(["general", "general", "general", "ops"]) {
        sim.say(place, "@monoco::alpha what is the status?");
        sim.say(place, "anybody else?");
    }
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "status", "and by mail?"));

    let alpha = user.workspace("alpha", "");
    user.until(&alpha, "mailbox sync", |_| {
        mails_by_tunnel(&user.types(&alpha, "mailbox list --format json").stdout).len() == 5
    });
    let mails = mails_by_tunnel(&user.types(&alpha, "mailbox list --format json").ok());
    assert_eq!(mails.keys().map(String::as_str).collect::<Vec<_>>(), {
        let mut tunnels = TUNNELS;
        tunnels.sort_unstable();
        tunnels
    });
    for (tunnel, mail) in &mails {
        let id = mail["id"].as_str().unwrap();
        user.runs(&alpha, &["mailbox", "claim", id]).ok();
        let text = format!("green, asked by {tunnel}");
        user.runs(&alpha, &["mailbox", "reply", id, "-m", &text, "--wait"]).ok();
        user.runs(&alpha, &["mailbox", "done", id]).ok();
    }

    for (sim, tunnel) in sims.iter().zip(TUNNELS) {
        let sent = sim.wait_for_sent(1);
        let texts: Vec<_> = sent.iter().map(|sent| sent["text"].to_string()).collect();
        assert_eq!(sent.len(), 1, "{tunnel}: {sent:#?}");
        assert!(texts[0].contains(&format!("green, asked by {tunnel}")), "{texts:?}");
    }
    let answers = smtp.wait_for(1);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].recipients(), ["joe@example.org"]);
    assert!(String::from_utf8_lossy(&answers[0].bytes).contains("green, asked by work"));
    let left = user.types(&alpha, "mailbox list --format json").ok();
    let open = |mail: &&Value| mail["status"] != "COMPLETED";
    assert_eq!(mails_by_tunnel(&left).values().filter(open).count(), 0, "{left}");
}
