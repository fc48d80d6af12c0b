//! Users and chats: how they are shown, which chats a bot may use, and the methods that show them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::api::{SimTelegramCall, SimTelegramFailure, SimTelegramResult};
use super::{TelegramSim, bot_id, bot_name};
use crate::store::{SimChat, SimChatKind, SimUser};
use crate::world::World;

/// Kinds of chats in Telegram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SimTelegramChatKind {
    Private,
    Group,
    #[default]
    Supergroup,
    Channel,
}

impl SimTelegramChatKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Group => "group",
            Self::Supergroup => "supergroup",
            Self::Channel => "channel",
        }
    }
}

/// A topic of a forum.
#[derive(Clone, Debug)]
pub struct SimForumTopic {
    pub name: String,
    pub is_closed: bool,
}

/// What only Telegram knows about a chat.
#[derive(Clone, Debug, Default)]
pub struct SimChatFacts {
    pub kind: SimTelegramChatKind,
    pub is_forum: bool,
    /// Topics by the id of the message that opened them.
    pub topics: BTreeMap<u64, SimForumTopic>,
    pub username: Option<String>,
    /// Id of the supergroup that the group has become.
    pub migrated_to: Option<String>,
    /// Apps whose bots were removed by an administrator.
    pub kicked: BTreeSet<usize>,
    /// The last message id of a supergroup or channel.
    pub last_message: u64,
}

impl SimChatFacts {
    pub fn describe(&self) -> Value {
        let topics: BTreeMap<_, _> =
            self.topics.iter().map(|(id, topic)| (id.to_string(), &topic.name)).collect();
        json!({
            "type": self.kind.name(), "is_forum": self.is_forum, "topics": topics,
            "username": self.username, "migrated_to": self.migrated_to,
        })
    }
}

/// A number from an id, which is always a number.
pub fn number(id: &str) -> i64 {
    id.parse().unwrap_or(0)
}

/// Creates the people and chats that exist at the start.
pub fn populate(sim: &TelegramSim, world: &mut World) {
    let people = [("1001", "ann"), ("1002", "bob"), ("1003", "cem")];
    for (id, name) in people {
        world.store.add_user(SimUser { id: id.into(), name: name.into(), is_bot: false });
    }
    for app in 0..world.apps {
        let (id, name) = (bot_id(app).to_string(), bot_name(app));
        world.store.add_user(SimUser { id, name, is_bot: true });
    }
    for (id, _) in people {
        private_chat(sim, world, id);
    }
    let group = |kind, is_forum| SimChatFacts { kind, is_forum, ..SimChatFacts::default() };
    let (basic, large) = (SimTelegramChatKind::Group, SimTelegramChatKind::Supergroup);
    add_chat(sim, world, "-1001000000001", "ops", group(large, false));
    add_chat(sim, world, "-4001", "general", group(basic, false));
    let mut forum = group(large, true);
    let topic = SimForumTopic { name: "Builds".to_owned(), is_closed: false };
    forum.topics.insert(2, topic);
    add_chat(sim, world, "-1001000000002", "forum", forum);
    let mut news = group(SimTelegramChatKind::Channel, false);
    news.username = Some("sim_news".to_owned());
    add_chat(sim, world, "-1001000000003", "news", news);
    // A group without the bot.
    add_chat(sim, world, "-1001000000004", "random", group(large, false));
    if let Some(chat) = world.store.chats.get_mut("-1001000000004") {
        let bots: Vec<_> = (0..world.apps).map(|app| bot_id(app).to_string()).collect();
        chat.members.retain(|member| !bots.contains(member));
    }
}

/// Adds a chat with all people and bots that exist.
pub fn add_chat(sim: &TelegramSim, world: &mut World, id: &str, name: &str, facts: SimChatFacts) {
    let members: Vec<_> = match facts.kind {
        SimTelegramChatKind::Private => {
            let bots = (0..world.apps).map(|app| bot_id(app).to_string());
            bots.chain([id.to_owned()]).collect()
        }
        _ => world.store.users.keys().cloned().collect(),
    };
    let members: Vec<_> = members.iter().map(String::as_str).collect();
    let kind = match facts.kind {
        SimTelegramChatKind::Private => SimChatKind::Direct,
        _ => SimChatKind::Group,
    };
    world.store.add_chat(SimChat::new(id, name, kind, &members));
    let mut state = sim.state();
    let last_message = state.last_message;
    state.chats.insert(id.to_owned(), SimChatFacts { last_message, ..facts });
}

/// The private chat with a person, whose id it has; created when it does not exist.
pub fn private_chat(sim: &TelegramSim, world: &mut World, user: &str) -> String {
    if !world.store.chats.contains_key(user) {
        let name = world.store.users.get(user).map_or(user, |user| user.name.as_str());
        let (name, kind) = (format!("@{name}"), SimTelegramChatKind::Private);
        add_chat(sim, world, user, &name, SimChatFacts { kind, ..SimChatFacts::default() });
    }
    user.to_owned()
}

/// Finds a chat by id, or by `@username` of a public one.
pub fn resolve(sim: &TelegramSim, world: &World, name: &str) -> Option<String> {
    if let Some(username) = name.strip_prefix('@') {
        let state = sim.state();
        let is_named = |facts: &SimChatFacts| {
            facts.username.as_ref().is_some_and(|name| name.eq_ignore_ascii_case(username))
        };
        let found = state.chats.iter().find(|(_, facts)| is_named(facts));
        return found.map(|(id, _)| id.clone());
    }
    let id = name.trim().parse::<i64>().ok()?.to_string();
    world.store.chats.contains_key(&id).then_some(id)
}

/// What Telegram knows about a chat; a chat that does not exist is a supergroup.
pub fn facts(sim: &TelegramSim, chat: &str) -> SimChatFacts {
    sim.state().chats.get(chat).cloned().unwrap_or_default()
}

/// Takes the next message id of a chat.
pub fn next_message_id(sim: &TelegramSim, chat: &str) -> u64 {
    let mut state = sim.state();
    let state = &mut *state;
    let facts = state.chats.get_mut(chat).filter(|facts| {
        matches!(facts.kind, SimTelegramChatKind::Supergroup | SimTelegramChatKind::Channel)
    });
    let last = facts.map_or(&mut state.last_message, |facts| &mut facts.last_message);
    *last += 1;
    *last
}

/// A user as messages show it.
pub fn user_json(user: &SimUser) -> Value {
    let mut letters = user.name.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    let mut shown = json!({
        "id": number(&user.id), "is_bot": user.is_bot,
        "first_name": first + letters.as_str(), "username": user.name,
    });
    if !user.is_bot {
        shown["language_code"] = json!("en");
    }
    shown
}

pub fn bot_json(app: usize) -> Value {
    let name = format!("Monoco {app}");
    json!({"id": bot_id(app), "is_bot": true, "first_name": name, "username": bot_name(app)})
}

/// A chat as messages show it.
pub fn chat_json(sim: &TelegramSim, world: &World, id: &str) -> Value {
    let facts = facts(sim, id);
    let mut shown = json!({"id": number(id), "type": facts.kind.name()});
    if facts.kind == SimTelegramChatKind::Private {
        if let Some(user) = world.store.users.get(id) {
            let user = user_json(user);
            shown["first_name"] = user["first_name"].clone();
            shown["username"] = user["username"].clone();
        }
        return shown;
    }
    shown["title"] = json!(world.store.chats.get(id).map(|chat| &chat.name));
    if let Some(username) = &facts.username {
        shown["username"] = json!(username);
    }
    if facts.is_forum {
        shown["is_forum"] = json!(true);
    }
    if facts.kind == SimTelegramChatKind::Group {
        shown["all_members_are_administrators"] = json!(false);
    }
    shown
}

/// The chat of a call, if the bot may read it; with `writes` also send to it.
pub fn target(
    world: &World,
    call: &SimTelegramCall<'_>,
    key: &str,
    writes: bool,
) -> Result<String, SimTelegramFailure> {
    let given = call.params.text(key);
    if given.is_empty() {
        return Err(SimTelegramFailure::bad(&format!("{key} is empty")));
    }
    let Some(id) = resolve(call.sim, world, &given) else {
        let user = world.store.users.get(given.trim());
        return Err(match user {
            Some(user) if user.is_bot => {
                SimTelegramFailure::forbidden("bot can't send messages to bots")
            }
            Some(_) => SimTelegramFailure::forbidden("bot can't initiate conversation with a user"),
            None => SimTelegramFailure::bad("chat not found"),
        });
    };
    check_access(world, call, &id, writes)?;
    Ok(id)
}

fn check_access(
    world: &World,
    call: &SimTelegramCall<'_>,
    id: &str,
    writes: bool,
) -> Result<(), SimTelegramFailure> {
    let facts = facts(call.sim, id);
    if let Some(new) = facts.migrated_to.as_ref().filter(|_| writes) {
        let failure = SimTelegramFailure::bad("group chat was upgraded to a supergroup chat");
        return Err(failure.with("migrate_to_chat_id", json!(number(new))));
    }
    let is_blocked = call.sim.state().blocked.contains(&(call.app, id.to_owned()));
    if is_blocked && writes {
        return Err(SimTelegramFailure::forbidden("bot was blocked by the user"));
    }
    let kind = facts.kind.name();
    if facts.kicked.contains(&call.app) {
        return Err(SimTelegramFailure::forbidden(&format!("bot was kicked from the {kind} chat")));
    }
    let bot = bot_id(call.app).to_string();
    if world.store.chats.get(id).is_some_and(|chat| chat.members.contains(&bot)) {
        return Ok(());
    }
    Err(SimTelegramFailure::forbidden(&format!("bot is not a member of the {kind} chat")))
}

pub fn get_me(_: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let mut me = bot_json(call.app);
    let sees_all = !call.sim.state().has_privacy;
    for (name, value) in [
        ("can_join_groups", true),
        ("can_read_all_group_messages", sees_all),
        ("supports_inline_queries", false),
        ("can_connect_to_business", false),
        ("has_main_web_app", false),
    ] {
        me[name] = json!(value);
    }
    Ok(me)
}

pub fn get_chat(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let id = target(world, call, "chat_id", false)?;
    let mut chat = chat_json(call.sim, world, &id);
    chat["accent_color_id"] = json!(2);
    chat["max_reaction_count"] = json!(11);
    chat["accepted_gift_types"] = json!({
        "unlimited_gifts": false, "limited_gifts": false, "unique_gifts": false,
        "premium_subscription": false, "gifts_from_channels": false,
    });
    if facts(call.sim, &id).kind != SimTelegramChatKind::Private {
        chat["permissions"] = json!({"can_send_messages": true});
    }
    Ok(chat)
}

pub fn get_chat_member(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let id = target(world, call, "chat_id", false)?;
    let user = call.params.integer("user_id").map(|id| id.to_string());
    let user = user.ok_or_else(|| SimTelegramFailure::bad("invalid user_id specified"))?;
    let user = world.store.users.get(&user);
    let user = user.ok_or_else(|| SimTelegramFailure::bad("user not found"))?;
    let is_member = world.store.chats.get(&id).is_some_and(|chat| chat.members.contains(&user.id));
    Ok(member_json(user, if is_member { "member" } else { "left" }))
}

/// The membership of a user, by its status.
pub fn member_json(user: &SimUser, status: &str) -> Value {
    let mut member = json!({"user": user_json(user), "status": status});
    if status == "kicked" {
        member["until_date"] = json!(0);
    }
    member
}

pub fn get_chat_member_count(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let id = target(world, call, "chat_id", false)?;
    Ok(json!(world.store.chats.get(&id).map_or(0, |chat| chat.members.len())))
}

pub fn get_my_commands(_: &mut World, _: &SimTelegramCall<'_>) -> SimTelegramResult {
    Ok(json!([]))
}

pub fn accept(_: &mut World, _: &SimTelegramCall<'_>) -> SimTelegramResult {
    Ok(json!(true))
}

pub fn send_chat_action(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    target(world, call, "chat_id", true)?;
    if call.params.text("action").is_empty() {
        return Err(SimTelegramFailure::bad("wrong parameter action in request"));
    }
    Ok(json!(true))
}
