//! Tests of the handles of files and of downloads.

use serde_json::json;

use super::*;

#[test]
fn handle_is_parsed_again() {
    let file =
        json!({"id": "F1", "mimetype": "image/png", "url_private": "https://files.slack.com/x"});
    let handle = artifact(&file).fetch.unwrap();
    let parsed = SlackFileHandle::parse(&handle).unwrap();
    assert_eq!((parsed.id.as_str(), parsed.mime_type.as_str()), ("F1", "image/png"));
    assert_eq!(parsed.url.as_deref(), Some("https://files.slack.com/x"));
    assert!(matches!(SlackFileHandle::parse("x"), Err(Failure::Permanent { .. })));
    assert!(private_url(&json!({})).is_err());
}

#[test]
fn login_page_in_place_of_a_file_is_rejected() {
    let download = |mime_type: &str| FileDownload {
        name: None,
        mime_type: Some(mime_type.to_owned()),
        size: None,
        bytes: Box::pin(std::io::Cursor::new(Vec::new())),
    };
    let handle = |mime_type: &str| SlackFileHandle {
        id: "F1".to_owned(),
        url: None,
        mime_type: mime_type.to_owned(),
    };
    assert!(handle("image/png").check(&download("image/png")).is_ok());
    assert!(handle("text/html").check(&download("text/html")).is_ok());
    let failure = handle("image/png").check(&download("text/html")).unwrap_err();
    assert!(failure.detail().contains("files:read"), "{failure:?}");
}
