//! Messages in `monoco sim telegram`: kinds that people send, errors that bots get, and faults.

use serde_json::{Value, json};

use crate::reference_sdks::python;
use crate::sim_harness::Sim;
use crate::sim_telegram::api;

/// Reads all updates with both Python SDKs; shows what they found in each message.
const READ_ALL: &str = r#"
import asyncio, json, sys, urllib.request
from aiogram.types import Update as AiogramUpdate
from telegram import Update
sim = json.load(sys.stdin)
url = f"{sim['base_url']}/bot{sim['credentials']['token']}/getUpdates"
updates = json.load(urllib.request.urlopen(url))["result"]
found = []
for update in updates:
    other = AiogramUpdate.model_validate(update)
    message = other.message or other.channel_post
    first = Update.de_json(update, None).effective_message
    origin = first.forward_origin
    found.append({
        "kind": str(message.content_type.value if hasattr(message.content_type, "value") else message.content_type),
        "text": first.text or first.caption, "chat": first.chat.type,
        "entities": [entity.type for entity in first.entities or first.caption_entities],
        "from": first.from_user and first.from_user.username,
        "sender_chat": first.sender_chat and first.sender_chat.title,
        "reply": first.reply_to_message and first.reply_to_message.text,
        "quote": first.quote and [first.quote.text, first.quote.position],
        "origin": origin and origin.type, "thread": first.message_thread_id, "album": first.media_group_id,
        "migrate": [first.migrate_to_chat_id, first.migrate_from_chat_id],
    })
print(json.dumps(found))
"#;

fn read_all(sim: &Sim) -> Vec<Value> {
    serde_json::from_str(&python(READ_ALL, &sim.info)).unwrap()
}

#[test]
fn sdks_read_every_kind_of_message() {
    let sim = Sim::start("telegram");
    let by_type = [
        ("photo", "image/jpeg"),
        ("document", "application/pdf"),
        ("voice", "audio/ogg"),
        ("video", "video/mp4"),
        ("audio", "audio/mpeg"),
        ("animation", "image/gif"),
        ("sticker", "image/webp"),
    ];
    for (_, mime) in by_type {
        let file = json!({"name": "a", "mime_type": mime, "size": 10});
        sim.control("say", &json!({"chat": "ops", "files": [file]}));
    }
    let others = ["location", "venue", "contact", "poll", "dice", "new_chat_title"];
    for kind in others {
        sim.control("say", &json!({"chat": "ops", "kind": kind}));
    }
    let note = json!([{"name": "a.mp4", "mime_type": "video/mp4", "size": 10}]);
    sim.control("say", &json!({"chat": "ops", "kind": "video_note", "files": note}));
    let found: Vec<_> = read_all(&sim).iter().map(|found| found["kind"].clone()).collect();
    let files = by_type.iter().map(|(kind, _)| *kind);
    let expected: Vec<_> = files.chain(others).chain(["video_note"]).collect();
    assert_eq!(json!(found), json!(expected));
}

#[test]
fn sdks_read_replies_forwards_albums_topics_and_authors() {
    let sim = Sim::start("telegram");
    let say = |body: Value| sim.control("say", &body);
    let first = say(json!({"chat": "@ann", "text": "see @monoco0_bot and \u{1f600} more"}));
    let part = "\u{1f600} more";
    say(json!({"chat": "@ann", "text": "why?", "quote": first["id"], "quote_text": part}));
    let origins = ["user", "hidden_user", "chat", "channel"];
    for origin in origins {
        say(json!({"chat": "ops", "text": "x", "forward": origin}));
    }
    let photo = json!({"name": "a.jpg", "mime_type": "image/jpeg", "size": 10});
    let album = say(json!({"chat": "ops", "text": "two", "files": [photo, photo]}));
    assert_eq!(album["ids"].as_array().unwrap().len(), 2);
    say(json!({"chat": "ops", "text": "hidden", "anonymous": true}));
    let topic = sim.control("topic", &json!({"chat": "forum", "name": "News"}));
    say(json!({"chat": "forum", "text": "in a topic", "thread": topic["id"]}));
    let moved = sim.control("migrate", &json!({"chat": "general"}));
    let said = say(json!({"chat": "general", "text": "in the new chat"}));
    assert_eq!(said["chat"], moved["to"]);

    let found = read_all(&sim);
    assert_eq!(found.len(), 14, "{found:#?}");
    assert_eq!((&found[0]["entities"], &found[0]["from"]), (&json!(["mention"]), &json!("ann")));
    assert_eq!(found[1]["reply"], "see @monoco0_bot and \u{1f600} more");
    assert_eq!(found[1]["quote"], json!([part, 21]));
    let read: Vec<_> = found[2..6].iter().map(|found| found["origin"].clone()).collect();
    assert_eq!(read, origins);
    let [one, two] = &found[6..8] else { panic!("{found:#?}") };
    assert_eq!((&one["text"], &two["text"]), (&json!("two"), &Value::Null));
    assert!(one["album"].is_string() && one["album"] == two["album"], "{one:#} {two:#}");
    let author = (&found[8]["from"], &found[8]["sender_chat"]);
    assert_eq!(author, (&json!("GroupAnonymousBot"), &json!("ops")));
    assert_eq!(found[9]["kind"], "forum_topic_created");
    assert_eq!(found[10]["thread"].to_string(), topic["id"].as_str().unwrap());
    let number = |name: &str| json!(moved[name].as_str().unwrap().parse::<i64>().unwrap());
    assert_eq!(found[11]["migrate"], json!([number("to"), null]));
    assert_eq!(found[12]["migrate"], json!([null, number("from")]));
    assert_eq!(found[13]["text"], "in the new chat");
}

/// Calls that fail, and how python-telegram-bot names the failures.
const FAILING_CALLS: &str = r#"
import asyncio, json, sys, urllib.request
from telegram import Bot, MessageEntity, ReactionTypeEmoji, ReplyParameters
from telegram.error import ChatMigrated, RetryAfter, TelegramError
from telegram.request import HTTPXRequest
sim = json.load(sys.stdin)
def control(name, **body):
    request = urllib.request.Request(sim["control_url"] + "/" + name, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request))
def bot(token=sim["credentials"]["token"]):
    request = HTTPXRequest(read_timeout=2)
    return Bot(token, base_url=sim["base_url"] + "/bot", base_file_url=sim["base_url"] + "/file/bot", request=request)
async def code(call):
    try:
        await call
        return "ok"
    except ChatMigrated as error:
        return ["migrated", error.new_chat_id]
    except RetryAfter as error:
        return ["retry", error.retry_after if isinstance(error.retry_after, int) else error.retry_after.total_seconds()]
    except TelegramError as error:
        return [type(error).__name__, error.message]
async def main():
    found = {}
    async with bot() as me:
        send = lambda chat, text="x", **more: code(me.send_message(chat, text, **more))
        OPS, FORUM = -1001000000001, -1001000000002
        found["ok"] = await send(OPS)
        found["by username"] = await send("@sim_news")
        found["no chat"] = await send(99)
        found["no member"] = await send(-1001000000004)
        found["empty"] = await send(OPS, "  ")
        found["longest"] = await send(OPS, "\N{GRINNING FACE}" * 2048)
        found["too long"] = await send(OPS, "\N{GRINNING FACE}" * 2048 + "x")
        found["reply"] = await send(OPS, reply_parameters=ReplyParameters(5))
        found["reply to nothing"] = await send(OPS, reply_parameters=ReplyParameters(5, allow_sending_without_reply=True))
        found["topic"] = await send(FORUM, message_thread_id=2)
        found["no topic"] = await send(FORUM, message_thread_id=3)
        found["html"] = await send(OPS, "<x>", parse_mode="HTML")
        found["markdown"] = await send(OPS, "1.5", parse_mode="MarkdownV2")
        found["caption"] = await code(me.send_document(OPS, b"x", caption="x" * 1025))
        found["file"] = await code(me.get_file("none"))
        control("block", user="bob")
        found["blocked"] = await send(1002)
        moved = control("migrate", chat="general")
        found["migrated"] = (await send(-4001)) == ["migrated", int(moved["to"])]
        control("leave", chat="ops", user="monoco0_bot")
        found["kicked"] = await send(OPS)
        sent = await me.send_message(1001, "first")
        edit = lambda text: code(me.edit_message_text(text, 1001, sent.message_id))
        found["same"] = (await edit("first"))[1][:31]
        found["edit"] = await edit("second")
        react = lambda emoji: code(me.set_message_reaction(1001, sent.message_id, emoji))
        found["react"] = [await react("\N{EYES}"), await react("\N{WHITE HEAVY CHECK MARK}"), await react(None)]
        delete = lambda: code(me.delete_message(1001, sent.message_id))
        found["delete"] = [await delete(), await delete()]
        control("chaos", rate_limit={"count": 1, "retry_after": 7})
        found["limited"] = await send(1001)
        control("chaos", server_error={"count": 1, "status": 502})
        found["server error"] = (await send(1001))[0]
        control("chaos", accept_then_timeout={"count": 1, "hang_ms": 5000})
        found["timeout"] = (await send(1001, "sent anyway"))[0]
        control("settings", limits=True)
        found["pace"] = [await send(1001), await send(1001)]
        control("chaos", expire_token=True)
        found["revoked"] = (await send(1001))[0]
        control("token", revoked=False)
        member = await me.get_chat_member(FORUM, 1001)
        found["member"] = member.status
        chat = await me.get_chat(FORUM)
        found["chat"] = [chat.type, chat.is_forum, chat.title]
    found["unknown token"] = await code(bot("1:unknown").get_me())
    print(json.dumps(found))
asyncio.run(main())
"#;

#[test]
fn python_telegram_bot_meets_the_errors_of_the_server() {
    let sim = Sim::start("telegram");
    let found: Value = serde_json::from_str(&python(FAILING_CALLS, &sim.info)).unwrap();
    let bad = |reason: &str| json!(["BadRequest", reason]);
    let expected = json!({
        "ok": "ok", "by username": "ok", "no chat": bad("Chat not found"),
        "no member": ["Forbidden", "Forbidden: bot is not a member of the supergroup chat"],
        "empty": bad("Message text is empty"), "longest": "ok",
        "too long": bad("Message is too long"), "reply": bad("Message to be replied not found"),
        "reply to nothing": "ok", "topic": "ok", "no topic": bad("Message thread not found"),
        "html": bad("Can't parse entities: unsupported start tag \"x\" at byte offset 0"),
        "markdown": bad("Can't parse entities: character '.' is reserved and must be escaped with the preceding '\\'"),
        "caption": bad("Message caption is too long"), "file": bad("Invalid file_id"),
        "blocked": ["Forbidden", "Forbidden: bot was blocked by the user"], "migrated": true,
        "kicked": ["Forbidden", "Forbidden: bot was kicked from the supergroup chat"],
        "same": "Message is not modified: specif", "edit": "ok",
        "react": ["ok", bad("Reaction_invalid"), "ok"],
        "delete": ["ok", bad("Message to delete not found")],
        "limited": ["retry", 7], "server error": "NetworkError", "timeout": "TimedOut",
        "pace": ["ok", ["retry", 1]], "revoked": "InvalidToken", "member": "member",
        "chat": ["supergroup", true, "forum"], "unknown token": ["InvalidToken", "Unauthorized"],
    });
    assert_eq!(found, expected, "{found:#}");
    let texts: Vec<_> = sim.sent().iter().map(|sent| sent["text"].clone()).collect();
    assert_eq!(texts.iter().filter(|text| **text == "sent anyway").count(), 1, "{texts:?}");
}

#[test]
fn files_over_20_mb_and_unknown_paths_cannot_be_downloaded() {
    let sim = Sim::start("telegram");
    let found = api(
        &sim,
        r#"
def file(size):
    control("say", chat="ops", files=[{"name": "a.bin", "size": size}])
    document = call("getUpdates")[-1]["message"]["document"]
    return call("getFile", file_id=document["file_id"])
def download(path):
    url = root.replace("/bot", "/file/bot", 1) + path
    try:
        return len(urllib.request.urlopen(url).read())
    except urllib.error.HTTPError as error:
        return error.code
path = file(20 << 20)["file_path"]
found["largest"] = download(path)
found["missing"] = download(path.replace("file_F", "file_X"))
time.sleep(0.6)
found["too big"] = file((20 << 20) + 1)
found["other"] = [call(method) for method in ("getme", "nothing")][1]
found["malformed"] = call("getMe", token_root=sim["base_url"] + "/botnothing/")
"#,
    );
    let expected = json!({
        "largest": 20 << 20, "missing": 404, "too big": [400, "Bad Request: file is too big"],
        "other": [404, "Not Found: method not found"], "malformed": [404, "Not Found"],
    });
    assert_eq!(found, expected);
}

#[test]
fn with_privacy_the_bot_sees_only_messages_of_groups_that_are_for_it() {
    let sim = Sim::start("telegram");
    sim.control("privacy", &json!({"on": true}));
    sim.say("among us");
    sim.control("say", &json!({"chat": "ops", "text": "hello", "mention": true}));
    sim.control("say", &json!({"chat": "ops", "text": "/help"}));
    sim.control("say", &json!({"chat": "@ann", "text": "private"}));
    sim.control("join", &json!({"chat": "ops", "user": "dan"}));
    let texts: Vec<_> = read_all(&sim).iter().map(|found| found["text"].clone()).collect();
    assert_eq!(json!(texts), json!(["@monoco0_bot hello", "/help", "private", null]));
}
