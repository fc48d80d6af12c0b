//! Claims over HTTP: what the predecessor got wrong, and what it never had.

use serde_json::{Value, json};

use crate::common::Courier;
use crate::webhook_peer::{config, courier};

fn one_mail() -> (Courier, String) {
    let courier = courier(&config(50));
    let mail = courier.mail("room-1");
    (courier, mail)
}

fn by(agent: &str) -> Value {
    json!({"agent_id": agent})
}

/// P2: the second claimer got an internal error.
#[test]
fn a_second_agent_is_told_who_has_it() {
    let (courier, mail) = one_mail();
    let claim = courier.ask(&mail, "claim", json!({"agent_id": "ann", "timeout": 60})).ok();
    assert_eq!(claim["status"], "CLAIMED");
    assert_eq!((&claim["epoch"], &claim["agent_id"]), (&json!(1), &json!("ann")));
    let refused = courier.ask(&mail, "claim", by("bob"));
    assert_eq!(refused.refused(409), "claimed");
    assert_eq!(refused.json()["claimed_by"], "ann");
    assert_eq!(refused.json()["expires_at"], claim["expires_at"]);
    // Also not by herself: two shells of one person are two.
    assert_eq!(courier.ask(&mail, "claim", by("ann")).refused(409), "claimed");
    // Another workspace is not concerned.
    let other = courier.ask(&mail, "claim", json!({"agent_id": "bob", "workspace": "beta"}));
    assert_eq!(other.ok()["workspace"], "beta");
    for verb in ["complete", "fail", "renew"] {
        assert_eq!(courier.ask(&mail, verb, by("bob")).refused(409), "claimed", "{verb}");
    }
    assert_eq!(courier.ask(&mail, "complete", by("ann")).ok()["status"], "COMPLETED");
}

/// P1: leases never ended.
#[test]
fn a_lease_ends_and_the_late_holder_is_refused() {
    let (courier, mail) = one_mail();
    let first = courier.ask(&mail, "claim", json!({"agent_id": "ann", "timeout": 1})).ok();
    let second = courier.claim_at_last(&mail, &json!({"agent_id": "bob"}), "claimed");
    assert_eq!(second["attempts"], 2);
    let late = json!({"agent_id": "ann", "epoch": first["epoch"]});
    for verb in ["complete", "fail", "renew"] {
        assert_eq!(courier.ask(&mail, verb, late.clone()).refused(409), "lease_lost", "{verb}");
    }
    let done = json!({"agent_id": "bob", "epoch": second["epoch"]});
    courier.ask(&mail, "complete", done.clone()).ok();
    // An answer that was lost can be asked for again.
    assert_eq!(courier.ask(&mail, "complete", done).ok()["status"], "COMPLETED");
}

/// P3: each claim reset the count, so nothing ever died.
#[test]
fn the_fourth_failure_is_a_dead_letter_and_each_wait_is_told() {
    let (courier, mail) = one_mail();
    let mut waits = Vec::new();
    for attempt in 1..=4 {
        let claimed = courier.claim_at_last(&mail, &by("ann"), "not_due");
        assert_eq!(claimed["attempts"], attempt);
        let failed =
            courier.ask(&mail, "fail", json!({"agent_id": "ann", "reason": "no luck"})).ok();
        waits.push(failed["status"].as_str().unwrap().to_owned());
        assert_eq!(failed["retry_count"], attempt - 1);
    }
    assert_eq!(waits, ["NEW", "NEW", "NEW", "DEADLETTER"]);
    assert_eq!(courier.ask(&mail, "claim", by("ann")).refused(409), "dead");
    let shown = courier.get(&format!("/api/v1/messages/{mail}")).ok();
    assert_eq!(shown["location"], "deadletter");
    assert_eq!(shown["claims"][0]["reason"], "no luck");
    // Other workspaces are not concerned, and a person may put it back.
    let other = json!({"agent_id": "bob", "workspace": "beta"});
    courier.ask(&mail, "claim", other.clone()).ok();
    courier.ask(&mail, "complete", other).ok();
    assert_eq!(courier.get(&format!("/api/v1/messages/{mail}")).ok()["location"], "deadletter");
    let retry = format!("/api/v1/messages/{mail}/retry");
    let retry = |body: Value| courier.post(&retry, &body);
    assert_eq!(retry(json!({"workspace": "beta"})).refused(409), "completed");
    assert_eq!(retry(json!({"workspace": "gamma"})).refused(404), "not_found");
    assert_eq!(retry(json!({"workspce": "beta"})).status, 422);
    assert_eq!(retry(json!({})).ok()["status"], "NEW");
    assert_eq!(courier.ask(&mail, "claim", by("ann")).ok()["attempts"], 1);
}

#[test]
fn what_is_done_or_unknown_can_not_be_claimed() {
    let (courier, mail) = one_mail();
    courier.ask(&mail, "claim", by("ann")).ok();
    courier.ask(&mail, "complete", by("ann")).ok();
    assert_eq!(courier.ask(&mail, "claim", by("ann")).refused(409), "completed");
    for unknown in [
        "webhook_000000000000000000000000",
        "webhook_1",
        "1",
        "*",
        "..%2F..%2Fetc%2Fpasswd",
        &mail[..11],
        &mail.to_uppercase(),
    ] {
        for verb in ["claim", "complete", "fail", "renew"] {
            let answer = courier.ask(unknown, verb, by("ann"));
            assert_eq!(answer.refused(404), "not_found", "{verb} {unknown}");
        }
    }
    let fresh = courier.mail("room-2");
    for verb in ["complete", "fail", "renew"] {
        assert_eq!(courier.ask(&fresh, verb, by("ann")).refused(409), "not_claimed", "{verb}");
    }
}

/// P7: completing id 1 archived message 12.
#[test]
fn only_the_mail_that_is_named_moves() {
    let courier = courier(&config(50));
    let mails: Vec<_> = ["1", "12", "121", "21"].map(|id| courier.mail(id)).into();
    courier.ask(&mails[0], "claim", by("ann")).ok();
    courier.ask(&mails[0], "complete", by("ann")).ok();
    for (at, mail) in mails.iter().enumerate() {
        let place = courier.get(&format!("/api/v1/messages/{mail}")).ok()["location"].clone();
        assert_eq!(place, if at == 0 { "archive" } else { "inbound" });
    }
}

#[test]
fn absurd_claims_are_refused() {
    let (courier, mail) = one_mail();
    let long = "x".repeat(1 << 20);
    for (body, code) in [
        (json!({}), "bad_field"),
        (json!({"agent_id": ""}), "bad_field"),
        (json!({"agent_id": long}), "bad_field"),
        (json!({"agent_id": "a\u{1b}b"}), "bad_field"),
        (json!({"agent_id": "ann", "timeout": 0}), "bad_field"),
        (json!({"agent_id": "ann", "timeout": -5}), "bad_field"),
        (json!({"agent_id": "ann", "timeout": 1_000_000_000_000_i64}), "bad_field"),
        (json!({"agent_id": "ann", "workspace": ""}), "bad_field"),
        (json!({"agent_id": "ann", "workspace": "a\nb"}), "bad_field"),
        (json!({"agent_id": "ann", "tiemout": 5}), "wrong_shape"),
    ] {
        assert_eq!(courier.ask(&mail, "claim", body.clone()).refused(422), code, "{body}");
    }
    let shown = courier.get(&format!("/api/v1/messages/{mail}")).ok();
    assert_eq!(shown["claims"], json!([]));
}

#[test]
fn a_mail_is_found_by_every_filter_that_fits_it() {
    let courier = courier(&config(50));
    let (new, held, done) = (courier.mail("new"), courier.mail("held"), courier.mail("done"));
    courier.ask(&held, "claim", by("ann")).ok();
    courier.ask(&done, "claim", by("ann")).ok();
    courier.ask(&done, "complete", by("ann")).ok();
    let ids = |query: &str| {
        let answer = courier.get(&format!("/api/v1/messages?order=oldest&{query}")).ok();
        let mails = answer["messages"].as_array().unwrap().clone();
        mails.iter().map(|mail| mail["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = [new.clone(), held.clone(), done.clone()];
    assert_eq!(ids(""), all);
    assert_eq!(ids("status=new"), std::slice::from_ref(&new));
    assert_eq!(ids("status=CLAIMED"), [held]);
    assert_eq!(ids("status=completed"), [done]);
    assert_eq!(ids("status=deadletter"), [""; 0]);
    assert_eq!(ids("workspace=beta&status=new"), all, "another workspace sees them all");
    assert_eq!(ids("provider=webhook"), all);
    assert_eq!(ids("provider=lark"), [""; 0]);
    assert_eq!(ids("q=ABOUT%20new"), [new]);
    assert_eq!(ids("since=2020-01-01T00:00:00Z"), all);
    assert_eq!(ids("since=2120-01-01T00:00:00Z"), [""; 0]);
    for bad in ["status=odd", "since=yesterday", "limit=0", "cursor=x", "order=up", "odd=1"] {
        let answer = courier.get(&format!("/api/v1/messages?{bad}"));
        assert_eq!(answer.status, 400, "{bad}: {}", answer.text());
    }
}
