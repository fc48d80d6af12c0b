//! Passes the store's hints about deliveries to the senders of the tunnel that they are for.
//!
//! The store has one channel for all hints. One task reads it, so that a delivery of one tunnel
//! does not wake the senders of all others.

use std::sync::Arc;

use monoco_core::record::BoxKind;
use monoco_store::BoxHint;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::tunnels::TunnelRegistry;

/// Passes hints on until `stop` is cancelled.
pub async fn run(
    mut hints: Receiver<BoxHint>,
    tunnels: Arc<TunnelRegistry>,
    stop: CancellationToken,
) {
    while let Some(hint) = stop.run_until_cancelled(hints.recv()).await {
        match hint {
            Ok(BoxHint { owner, box_kind: BoxKind::TunnelOutbox }) => {
                if let Some(tunnel) = tunnels.find(&owner) {
                    tunnel.hint_delivery();
                }
            }
            Ok(_) => {}
            // Lost hints may have been for any tunnel.
            Err(RecvError::Lagged(_)) => {
                tunnels.running().iter().for_each(|tunnel| tunnel.hint_delivery());
            }
            Err(RecvError::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use monoco_adapters::stub::Stub;
    use monoco_core::did::TunnelId;
    use monoco_core::merge::Debounce;
    use monoco_core::time::Timestamp;
    use monoco_store::TunnelLabels;
    use tokio::sync::broadcast;

    use super::*;
    use crate::courier::intake_quota::IntakeQuota;
    use crate::courier::tunnels::{RunningTunnel, TunnelSettings};

    fn tunnel(id: &str) -> Arc<RunningTunnel> {
        let debounce = Debounce { window: Duration::ZERO, max_wait: Duration::ZERO };
        let settings =
            TunnelSettings { debounce, labels: TunnelLabels::default(), max_file_bytes: 1 << 20 };
        let quota = IntakeQuota::new(0, Timestamp::from_ms(0));
        let adapter = Arc::new(Stub::new(id.parse().unwrap()));
        let stop = CancellationToken::new();
        Arc::new(RunningTunnel::new(adapter, settings, quota, stop.clone(), stop))
    }

    #[tokio::test]
    async fn hint_wakes_only_the_tunnel_that_it_is_for() {
        let (a, b) = (tunnel("a"), tunnel("b"));
        let tunnels = Arc::new(TunnelRegistry::default());
        tunnels.set(vec![Arc::clone(&a), Arc::clone(&b)], Vec::new());
        let (sender, hints) = broadcast::channel(2);
        let owner = "a".parse::<TunnelId>().unwrap().did();
        let hint = BoxHint { owner, box_kind: BoxKind::TunnelOutbox };
        sender.send(hint.clone()).unwrap();
        let woken = async {
            a.wait_for_delivery().await;
            assert!(b.wait_for_delivery().now_or_never().is_none());
            // More hints than the channel has room for may have been for any tunnel.
            for _ in 0..4 {
                sender.send(hint.clone()).unwrap();
            }
            b.wait_for_delivery().await;
            drop(sender);
        };
        tokio::join!(run(hints, tunnels, CancellationToken::new()), woken);
    }
}
