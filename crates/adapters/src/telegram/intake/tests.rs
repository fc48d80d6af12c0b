//! Tests of pages of updates: albums and migrations.

use super::super::tests::testdata;
use super::*;

fn files(message: &InboundMessage) -> Vec<&str> {
    message.artifacts.iter().map(|artifact| artifact.name.as_str()).collect()
}

#[test]
fn album_in_one_page_is_one_message_and_an_edit_that_changes_nothing() {
    let updates = ["album_1", "text_mention", "album_2", "album_3"].map(testdata);
    let page = UpdateIntake::default().read(&updates);
    assert_eq!(page.sources, [0, 1, 2]);
    let InboundEvent::Message { message, .. } = &page.events[0] else { panic!("{page:?}") };
    assert_eq!((message.id.as_str(), message.text.as_str()), ("-1001234567890:60", "our trip"));
    assert_eq!(files(message), ["photo-60.jpg", "photo-61.jpg", "photo-62.jpg"]);
    let InboundEvent::Edit(edit) = &page.events[2] else { panic!("{page:?}") };
    assert_eq!((edit.edit_id.as_str(), &edit.message), ("-1001234567890:62", message));
}

#[test]
fn album_in_several_requests_grows_by_edits() {
    let intake = UpdateIntake::default();
    let mut pages = ["album_1", "album_2", "album_3"].map(|name| intake.read(&[testdata(name)]));
    let InboundEvent::Message { message, .. } = &pages[0].events[0] else { panic!("{pages:?}") };
    assert_eq!(files(message), ["photo-60.jpg"]);
    let InboundEvent::Edit(edit) = pages[2].events.remove(0) else { panic!("{pages:?}") };
    assert_eq!(edit.message.id, "-1001234567890:60");
    assert_eq!(files(&edit.message), ["photo-60.jpg", "photo-61.jpg", "photo-62.jpg"]);
}

#[test]
fn migration_keeps_the_session_of_the_group() {
    for update in ["migrate_to", "migrate_from"] {
        let intake = UpdateIntake::default();
        let mut page = intake.read(&[testdata(update), testdata("text_mention")]);
        intake.migrations.set_sessions(&mut page.events);
        let InboundEvent::Notice(notice) = &page.events[0] else { panic!("{page:?}") };
        assert_eq!(notice.kind, "chat_migrated");
        let InboundEvent::Message { message, .. } = &page.events[1] else { panic!("{page:?}") };
        assert_eq!(message.session.id, "-5");
        assert_eq!(message.id, "-1001234567890:55", "the id of a message is not changed");
        assert_eq!(intake.migrations.current(-5), -1001234567890);
    }
}
