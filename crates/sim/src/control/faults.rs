//! Switches the faults of `POST /control/chaos`, and executes those that happen at once.

use std::time::Duration;

use serde_json::{Value, json};

use crate::chaos::{ChaosRequest, ChaosSwitches, DisconnectFrame, DropSocket};
use crate::connections::SocketCommand;
use crate::provider::PollFault;
use crate::world::{SimHub, World};

/// Switches faults on or off, and executes those that happen at once.
pub fn switch_chaos(hub: &SimHub, world: &mut World, request: ChaosRequest) -> Value {
    if request.reset {
        world.release_held();
        world.chaos = ChaosSwitches::default();
    }
    let chaos = &mut world.chaos;
    chaos.duplicate = request.duplicate.unwrap_or(chaos.duplicate);
    if let Some(fault) = request.wrong_signature {
        chaos.wrong_signature = fault.into();
    }
    if let Some(fault) = request.reject_handshake {
        chaos.reject_handshake = fault.into();
    }
    chaos.flow_control = request.flow_control.unwrap_or(chaos.flow_control);
    chaos.rate_limit = request.rate_limit.or(chaos.rate_limit.take());
    chaos.server_error = request.server_error.or(chaos.server_error.take());
    chaos.accept_then_timeout = request.accept_then_timeout.or(chaos.accept_then_timeout.take());
    if let Some(reorder) = request.reorder {
        chaos.reorder = reorder;
        world.release_held();
    }
    for (_, connection) in world.connections.iter_mut() {
        connection.is_silent = request.silent.unwrap_or(connection.is_silent);
        if let Some(is_on) = request.stop_pong {
            connection.drop_pongs(is_on);
        }
    }
    if let Some(is_on) = request.silent {
        hub.provider.disturb_polls(PollFault::Silence(is_on));
    }
    if request.expire_token {
        hub.provider.expire_tokens(world);
    }
    match request.drop_socket {
        Some(DropSocket::Every { every }) => world.chaos.drop_every = every,
        Some(DropSocket::Now(true)) => {
            drop_sockets(world);
            hub.provider.disturb_polls(PollFault::Drop);
        }
        Some(DropSocket::Now(false)) => world.chaos.drop_every = 0,
        None => {}
    }
    match request.disconnect_frame {
        Some(DisconnectFrame::Now(true)) => disconnect(hub, world, None),
        Some(DisconnectFrame::Because { reason }) => disconnect(hub, world, Some(&reason)),
        Some(DisconnectFrame::Now(false)) | None => {}
    }
    json!(world.chaos)
}

/// Ends all open connections without a close frame.
fn drop_sockets(world: &mut World) {
    let ids: Vec<_> = world.connections.iter().map(|(id, _)| id).collect();
    for id in ids {
        world.close_connection(id, SocketCommand::Abort);
    }
}

/// Announces the end of all open connections, and ends them after the grace time.
fn disconnect(hub: &SimHub, world: &mut World, reason: Option<&str>) {
    let frame = hub.provider.disconnect_frame(reason);
    for (_, connection) in world.connections.iter_mut() {
        connection.is_draining = true;
        match &frame {
            Some(frame) => connection.send(frame.clone()),
            None => {
                let _ = connection.commands.send(SocketCommand::Close);
                continue;
            }
        }
        let commands = connection.commands.clone();
        let grace = Duration::from_millis(world.settings.disconnect_grace_ms);
        let stop = hub.stop.clone();
        hub.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                // The bot may have closed the connection before.
                () = commands.closed() => {}
                () = tokio::time::sleep(grace) => {
                    let _ = commands.send(SocketCommand::Close);
                }
            }
        });
    }
}
