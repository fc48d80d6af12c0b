//! Addresses that entries of `block` match, and addresses that they do not match.

use monoco_core::letter::{Letter, Verdict};

use super::*;

const SHADOW: &str = "did:msgtunnel:Bad%40Example%2Ecom.addr.work-mail";

fn letter(from: &str, to: &[&str]) -> Letter {
    let to = to.iter().map(|to| (*to).to_owned()).collect();
    Letter { from: from.to_owned(), to, ..Letter::default() }
}

fn senders(entry: &str) -> BlockConfig {
    BlockConfig { senders: vec![entry.to_owned()], recipients: Vec::new() }
}

#[test]
fn entries_match_addresses_domains_and_accounts() {
    for (entry, address) in [
        ("bad@example.com", "bad@example.com"),
        ("Bad@Example.com", "bad@EXAMPLE.com"),
        ("bad@example.com", SHADOW),
        ("@example.com", "bad@example.com"),
        ("@EXAMPLE.com", "bad@Example.COM"),
        ("@example.com", SHADOW),
        ("@BÜCHER.example", "ann@bücher.example"),
        ("@[192.0.2.1]", "ann@[192.0.2.1]"),
        ("did:monoco:eve", "did:monoco:eve"),
        (SHADOW, SHADOW),
        ("did:msgtunnel:ou_7.user.lark-main", "did:msgtunnel:ou_7.user.lark-main"),
    ] {
        let result = senders(entry).apply(&letter(address, &["ann@example.org"]));
        assert_eq!(result.verdict, Verdict::Trash, "{entry} is {address}");
        assert_eq!(result.note, Some(format!("its sender is blocked ({entry})")));
    }
}

#[test]
fn entries_do_not_match_other_addresses() {
    for (entry, address) in [
        ("bad@example.com", "notbad@example.com"),
        ("bad@example.com", "bad@example.com.example.org"),
        ("bad@example.com", "did:monoco:bad"),
        ("@example.com", "bad@sub.example.com"),
        ("@example.com", "bad@notexample.com"),
        ("@sub.example.com", "bad@example.com"),
        ("example.com", "bad@example.com"),
        ("@", "bad@example.com"),
        ("", "bad@example.com"),
        // DIDs are case-sensitive.
        ("did:monoco:Eve", "did:monoco:eve"),
        // Tunnels and DID methods are not domains.
        ("@lark-main", "did:msgtunnel:ou_7.user.lark-main"),
        ("@did", "did:monoco:eve"),
        ("ou_7", "did:msgtunnel:ou_7.user.lark-main"),
    ] {
        let result = senders(entry).apply(&letter(address, &["ann@example.org"]));
        assert_eq!(result, WorkerResult::PASS, "{entry} is not {address}");
    }
}

#[test]
fn one_blocked_recipient_trashes_the_letter() {
    let block = BlockConfig { senders: Vec::new(), recipients: vec!["@example.com".to_owned()] };
    let result = block.apply(&letter("eve@example.com", &["ann@example.org", "bob@example.com"]));
    assert_eq!(result, WorkerResult::trash("bob@example.com is blocked (@example.com)"));
    assert_eq!(block.apply(&letter("eve@example.com", &["ann@example.org"])), WorkerResult::PASS);
}

#[test]
fn empty_lists_block_no_address() {
    assert!(!BlockConfig::default().is_needed());
    assert!(senders("@example.com").is_needed());
    assert_eq!(
        BlockConfig::default().apply(&letter("eve@example.com", &[SHADOW])),
        WorkerResult::PASS
    );
}
