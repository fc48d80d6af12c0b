//! Open WebSocket connections of the bots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio_tungstenite::tungstenite::Message;

use crate::random::random_below;

/// A command for the task of a socket.
#[derive(Debug)]
pub enum SocketCommand {
    Frame(Message),
    /// Send a close frame and end.
    Close,
    /// End without a close frame.
    Abort,
}

/// One open connection of a bot.
#[derive(Debug)]
pub struct SimConnection {
    pub app: usize,
    pub opened_ms: u64,
    /// The number of frames that wait here is limited by `max_in_flight`.
    pub commands: UnboundedSender<SocketCommand>,
    /// Nothing is sent any more, but the connection stays open.
    pub is_silent: bool,
    /// A disconnect frame was sent: no further events.
    pub is_draining: bool,
    /// Shared with the filter that swallows the answers to pings.
    pub drops_pongs: Arc<AtomicBool>,
    pub frames_sent: u64,
    pub acks: u64,
}

impl SimConnection {
    /// Sends a frame, unless the connection is silent.
    pub fn send(&self, frame: Message) {
        if !self.is_silent {
            let _ = self.commands.send(SocketCommand::Frame(frame));
        }
    }

    /// Answers a ping of the network, unless the connection answers none.
    pub fn send_pong(&self, frame: Message) {
        if !self.drops_pongs.load(Ordering::Relaxed) {
            self.send(frame);
        }
    }

    pub fn drop_pongs(&self, is_on: bool) {
        self.drops_pongs.store(is_on, Ordering::Relaxed);
    }

    pub fn describe(&self, id: u64, in_flight: usize) -> Value {
        json!({
            "id": id, "app": self.app, "opened_ms": self.opened_ms, "in_flight": in_flight,
            "frames_sent": self.frames_sent, "acks": self.acks, "silent": self.is_silent,
            "draining": self.is_draining,
            "stop_pong": self.drops_pongs.load(Ordering::Relaxed),
        })
    }
}

/// The open connections of all apps, by number.
#[derive(Debug, Default)]
pub struct ConnectionSet {
    next_id: u64,
    open: BTreeMap<u64, SimConnection>,
    by_app: BTreeMap<usize, Vec<u64>>,
}

impl ConnectionSet {
    pub fn insert(&mut self, connection: SimConnection) -> u64 {
        self.next_id += 1;
        self.by_app.entry(connection.app).or_default().push(self.next_id);
        self.open.insert(self.next_id, connection);
        self.next_id
    }

    pub fn remove(&mut self, id: u64) -> Option<SimConnection> {
        let connection = self.open.remove(&id)?;
        if let Some(ids) = self.by_app.get_mut(&connection.app) {
            ids.retain(|other| *other != id);
        }
        Some(connection)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut SimConnection> {
        self.open.get_mut(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &SimConnection)> {
        self.open.iter().map(|(id, connection)| (*id, connection))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut SimConnection)> {
        self.open.iter_mut().map(|(id, connection)| (*id, connection))
    }

    pub fn count(&self, app: usize) -> usize {
        self.by_app.get(&app).map_or(0, Vec::len)
    }

    /// Selects one of the app's connections that can take an event, at random.
    pub fn choose(&self, app: usize, can_take: impl Fn(u64) -> bool) -> Option<u64> {
        let ids = self.by_app.get(&app)?;
        let is_usable = |id: &&u64| {
            self.open.get(id).is_some_and(|connection| !connection.is_draining) && can_take(**id)
        };
        let usable: Vec<_> = ids.iter().filter(is_usable).collect();
        usable.get(random_below(usable.len())).map(|id| **id)
    }
}
