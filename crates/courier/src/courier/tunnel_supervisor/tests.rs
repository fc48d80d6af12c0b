//! Reloads, lost connections and crashes of a tunnel whose adapter follows a script.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use monoco_adapters::registry::{AdapterConfig, ProviderConfig};
use monoco_adapters::{ConnectionEvent, DeliveryRequest, InboundSink};
use monoco_core::config::{ConfigSection, InvalidConfig};
use monoco_core::contact::StrangerPolicy;
use monoco_core::courier::{CourierId, CourierRun};
use monoco_core::delivery::{DeliveryOutcome, SendState, SendStateData};
use monoco_core::inbound::{ChatSession, InboundMessage, Participant};
use monoco_core::merge::Debounce;
use monoco_core::object::MsgObject;
use monoco_core::record::RecordId;
use monoco_core::retry::Failure;
use monoco_core::tunnel_health::TunnelStatus;
use monoco_store::{SendRequest, SendResult};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::courier::duties::{DutyLoop, enabled_tunnels};
use crate::courier::test_hub::TestHub;

const TUNNEL: &str = "play";

const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(660);

/// What the adapters of a test did, and what they do next.
#[derive(Debug, Default)]
struct Script {
    open: AtomicUsize,
    most_open: AtomicUsize,
    opened: AtomicUsize,
    /// Number of calls of `deliver`.
    attempts: AtomicUsize,
    /// Values of `rules` that were applied live.
    applied: Mutex<Vec<String>>,
    /// What the next calls of `listen` do.
    acts: Mutex<Vec<Act>>,
    /// Continues an act that waits.
    go_on: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// Receives messages until it is stopped, and needs 100 ms to close the connection.
    Receive,
    Panic,
    /// Ends without being asked.
    End,
    /// Reports that another attempt cannot help.
    Fail,
    /// Loses its connection, and opens it again when the test says so.
    Lose,
    /// Does not stop when it is asked.
    Ignore,
}

#[derive(Clone, Debug)]
struct ScriptedConfig {
    /// A key that needs a new connection.
    url: String,
    /// A key that applies live.
    rules: String,
    script: Arc<Script>,
}

impl ProviderConfig for ScriptedConfig {
    const PROVIDER: &'static str = "scripted";
    const LIVE_KEYS: &'static [&'static str] = &["rules"];

    fn parse(section: &ConfigSection<'_>, _enabled: bool) -> Result<Self, InvalidConfig> {
        Err(section.invalid("the provider is not in the registry"))
    }

    fn mode(&self) -> &'static str {
        "stream"
    }

    fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        let keys = [("url", self.url != new.url), ("rules", self.rules != new.rules)];
        keys.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
    }

    fn build(&self, id: TunnelId, _: &AdapterResources) -> Result<Arc<dyn Adapter>, String> {
        Ok(Arc::new(Scripted { id, script: Arc::clone(&self.script) }))
    }
}

struct Scripted {
    id: TunnelId,
    script: Arc<Script>,
}

/// Counts a connection as open until it is dropped.
struct OpenConnection<'a>(&'a Script);

impl<'a> OpenConnection<'a> {
    fn new(script: &'a Script) -> Self {
        let open = script.open.fetch_add(1, Ordering::SeqCst) + 1;
        script.most_open.fetch_max(open, Ordering::SeqCst);
        script.opened.fetch_add(1, Ordering::SeqCst);
        Self(script)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Adapter for Scripted {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        ScriptedConfig::PROVIDER
    }

    fn mode(&self) -> &'static str {
        "stream"
    }

    fn accepts_idempotency_keys(&self) -> bool {
        false
    }

    fn opens_connection(&self) -> bool {
        true
    }

    fn apply_live(&self, config: &dyn AdapterConfig) {
        let config = (config as &dyn std::any::Any).downcast_ref::<ScriptedConfig>().unwrap();
        self.script.applied.lock().unwrap().push(config.rules.clone());
    }

    async fn listen(&self, sink: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure> {
        let script = &self.script;
        let act = Some(script.acts.lock().unwrap()).filter(|acts| !acts.is_empty());
        let act = act.map_or(Act::Receive, |mut acts| acts.remove(0));
        let _open = OpenConnection::new(script);
        match act {
            Act::Panic => panic!("a bug of the adapter"),
            Act::End => return Ok(()),
            Act::Fail => {
                let detail = "the password is wrong".to_owned();
                return Err(Failure::Permanent { detail, error_code: None });
            }
            Act::Ignore => std::future::pending().await,
            Act::Lose => {
                sink.report(ConnectionEvent::Connected);
                sink.report(ConnectionEvent::Lost("connection reset".to_owned()));
                script.go_on.notified().await;
            }
            Act::Receive => {}
        }
        sink.report(ConnectionEvent::Connected);
        let mut number = 0;
        while !stop.is_cancelled() {
            number += 1;
            let id = format!("{}-{number}", script.opened.load(Ordering::SeqCst));
            let session = ChatSession { id: "room".to_owned(), ..ChatSession::default() };
            let message = InboundMessage::new(id, session, Participant::user("ann", None), "hi");
            sink.receive(message, Vec::new()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(())
    }

    fn attempt_timeout(&self) -> Duration {
        ATTEMPT_TIMEOUT
    }

    async fn deliver(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome {
        self.script.attempts.fetch_add(1, Ordering::SeqCst);
        if request.address == "slow" {
            self.script.go_on.notified().await;
            return DeliveryOutcome::Accepted { external_msg_id: None };
        }
        panic!("a bug of the adapter at {}", request.address)
    }
}

struct Fixture {
    hub: TestHub,
    supervisor: TunnelSupervisor,
    script: Arc<Script>,
}

fn supervisor(hub: &TestHub, duties: HeldDuties) -> TunnelSupervisor {
    let config = Arc::new(Config::parse("", &|_| None).unwrap());
    TunnelSupervisor {
        store: Arc::clone(hub.store()),
        clock: hub.clock,
        entry: PipelineEntry::default(),
        resources: AdapterResources::for_tests_of_connections(),
        tunnels: Arc::default(),
        config: watch::channel(config).1,
        duties,
        mail_memory: MailMemory::default(),
        receivers: TaskGroup::default(),
        loops: TaskGroup::default(),
    }
}

impl Fixture {
    async fn new(acts: &[Act]) -> Self {
        let hub = TestHub::new().await;
        let script = Arc::new(Script::default());
        *script.acts.lock().unwrap() = acts.to_vec();
        let supervisor = supervisor(&hub, TestHub::duties());
        Self { hub, supervisor, script }
    }

    fn config(&self, change: impl FnOnce(&mut TunnelConfig, &mut ScriptedConfig)) -> Config {
        let mut config = Config::parse("", &|_| None).unwrap();
        let (url, rules) = ("a".to_owned(), "a".to_owned());
        let mut adapter = ScriptedConfig { url, rules, script: Arc::clone(&self.script) };
        let mut tunnel = config.tunnels.values().next().unwrap().clone();
        tunnel.provider = ScriptedConfig::PROVIDER;
        change(&mut tunnel, &mut adapter);
        tunnel.adapter = Arc::new(adapter);
        config.tunnels.insert(TUNNEL.parse().unwrap(), tunnel);
        config
    }

    fn tunnel(&self) -> Arc<RunningTunnel> {
        self.supervisor.tunnels.get(TUNNEL).unwrap()
    }

    fn status(&self) -> TunnelStatus {
        self.tunnel().health().status(self.hub.clock.now())
    }

    fn opened(&self) -> usize {
        self.script.opened.load(Ordering::SeqCst)
    }

    fn most_open(&self) -> usize {
        self.script.most_open.load(Ordering::SeqCst)
    }

    /// Sends a message to an account of the tunnel.
    async fn send(&self, account: &str) -> RecordId {
        let to = format!("did:msgtunnel:{account}.user.{TUNNEL}");
        let msg = json!({"from": "did:monoco:me", "to": [to], "kind": "chat", "content": {}});
        let msg = MsgObject::from_json(msg).unwrap();
        let request = SendRequest { msg, key: None, not_before: None, origin: Default::default() };
        let sent = self.hub.store().send(request, self.hub.clock.now()).await.unwrap();
        let SendResult::Queued { ways, .. } = sent else { panic!("{sent:?}") };
        ways[0].record_id.unwrap()
    }

    async fn stop(&self) {
        self.supervisor.receivers.finish().await;
        self.supervisor.loops.finish().await;
        assert_eq!(self.script.open.load(Ordering::SeqCst), 0, "a connection is still open");
    }
}

/// Waits until `condition` holds.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn live_changes_keep_the_connection_under_load() {
    let fixture = Fixture::new(&[]).await;
    let old = fixture.config(|_, _| ());
    fixture.supervisor.apply(None, &old).await.unwrap();
    let tunnel = fixture.tunnel();
    eventually("messages are received", || tunnel.health().received > 3).await;
    let debounce = Debounce { window: Duration::from_secs(9), max_wait: Duration::from_secs(10) };
    let new = fixture.config(|tunnel, adapter| {
        tunnel.debounce = debounce;
        tunnel.binding = Some("alpha".to_owned());
        tunnel.strangers = StrangerPolicy::Hold;
        tunnel.max_mb_per_day = 7;
        adapter.rules = "b".to_owned();
    });
    fixture.supervisor.apply(Some(&old), &new).await.unwrap();
    assert!(Arc::ptr_eq(&tunnel, &fixture.tunnel()));
    let settings = tunnel.settings();
    assert_eq!(settings.debounce, debounce);
    assert_eq!(*fixture.script.applied.lock().unwrap(), ["b"]);
    let now = fixture.hub.clock.now();
    assert!(tunnel.quota.charge(8 << 20, now).is_ok() && tunnel.quota.charge(1, now).is_err());
    let stored = fixture.hub.store().tunnels().await.unwrap();
    let stored = stored.iter().find(|tunnel| tunnel.id.as_str() == TUNNEL).unwrap();
    assert_eq!((stored.strangers, stored.labels.of("room")), (StrangerPolicy::Hold, Some("alpha")));
    let received = tunnel.health().received;
    eventually("more messages are received", || tunnel.health().received > received + 3).await;
    // Nothing is applied again when nothing has changed.
    fixture.supervisor.apply(Some(&new), &new).await.unwrap();
    assert_eq!(fixture.script.applied.lock().unwrap().len(), 1);
    assert_eq!((fixture.opened(), fixture.most_open()), (1, 1));
    fixture.stop().await;
}

#[tokio::test]
async fn old_connection_is_closed_before_another_one_opens() {
    let fixture = Fixture::new(&[]).await;
    let old = fixture.config(|_, _| ());
    fixture.supervisor.apply(None, &old).await.unwrap();
    let first = fixture.tunnel();
    eventually("messages are received", || first.health().received > 3).await;
    let new = fixture.config(|_, adapter| adapter.url = "b".to_owned());
    fixture.supervisor.apply(Some(&old), &new).await.unwrap();
    let second = fixture.tunnel();
    assert!(!Arc::ptr_eq(&first, &second));
    eventually("messages are received again", || second.health().received > 3).await;
    assert_eq!((fixture.opened(), fixture.most_open()), (2, 1));
    let off = fixture.config(|tunnel, _| tunnel.enabled = false);
    fixture.supervisor.apply(Some(&new), &off).await.unwrap();
    assert_eq!(fixture.script.open.load(Ordering::SeqCst), 0);
    fixture.stop().await;
}

#[tokio::test]
async fn reload_does_not_wait_for_an_adapter_that_does_not_stop() {
    let fixture = Fixture::new(&[Act::Ignore]).await;
    let old = fixture.config(|_, _| ());
    fixture.supervisor.apply(None, &old).await.unwrap();
    eventually("the connection is open", || fixture.opened() == 1).await;
    assert_eq!(fixture.status(), TunnelStatus::Down, "it has not reported a connection");
    let new = fixture.config(|_, adapter| adapter.url = "b".to_owned());
    fixture.supervisor.apply(Some(&old), &new).await.unwrap();
    let tunnel = fixture.tunnel();
    eventually("messages are received", || tunnel.health().received > 3).await;
    assert_eq!(fixture.most_open(), 1);
    fixture.stop().await;
}

#[tokio::test]
async fn adapter_that_crashes_is_down_and_started_again() {
    for (act, error) in [
        (Act::Panic, "the adapter panicked: a bug of the adapter"),
        (Act::End, "the adapter stopped listening"),
    ] {
        let fixture = Fixture::new(&[act]).await;
        let config = fixture.config(|_, _| ());
        fixture.supervisor.apply(None, &config).await.unwrap();
        let tunnel = fixture.tunnel();
        eventually("the tunnel is down", || tunnel.health().last_error.is_some()).await;
        assert_eq!(fixture.status(), TunnelStatus::Down);
        assert_eq!(tunnel.health().last_error.unwrap().1, error);
        eventually("the tunnel hears", || fixture.status() == TunnelStatus::Hearing).await;
        assert_eq!((fixture.opened(), fixture.most_open()), (2, 1));
        fixture.stop().await;
        assert_eq!(fixture.status(), TunnelStatus::Down);
    }
}

#[tokio::test]
async fn sender_is_replaced_when_the_adapter_panics() {
    let fixture = Fixture::new(&[]).await;
    fixture.supervisor.apply(None, &fixture.config(|_, _| ())).await.unwrap();
    let count = SENDS_PER_TUNNEL + 2;
    for account in 0..count {
        fixture.send(&format!("ann-{account}")).await;
    }
    let attempts = || fixture.script.attempts.load(Ordering::SeqCst);
    eventually("each delivery is attempted", || attempts() == count).await;
    let error = || fixture.tunnel().health().last_error.map(|(_, error)| error);
    let panicked = "the adapter panicked: a bug of the adapter at ann-";
    eventually("the panic is shown", || error().is_some_and(|error| error.starts_with(panicked)))
        .await;
    fixture.stop().await;
}

#[tokio::test]
async fn lease_of_a_delivery_covers_the_attempt() {
    let fixture = Fixture::new(&[]).await;
    fixture.supervisor.apply(None, &fixture.config(|_, _| ())).await.unwrap();
    let begin = fixture.hub.clock.now();
    let id = fixture.send("slow").await;
    eventually("the attempt has begun", || fixture.script.attempts.load(Ordering::SeqCst) == 1)
        .await;
    let delivery = fixture.hub.store().delivery(id).await.unwrap();
    let SendStateData::Sending(lease) = &delivery.sending.state else { panic!("{delivery:?}") };
    assert!(lease.until > begin + ATTEMPT_TIMEOUT, "{delivery:?}");
    fixture.script.go_on.notify_one();
    fixture.stop().await;
    let delivery = fixture.hub.store().delivery(id).await.unwrap();
    assert_eq!(delivery.sending.state.name(), SendState::Sent, "an attempt is finished at the end");
}

#[tokio::test]
async fn permanent_failure_stops_the_tunnel_with_its_error() {
    let fixture = Fixture::new(&[Act::Fail]).await;
    let config = fixture.config(|_, _| ());
    fixture.supervisor.apply(None, &config).await.unwrap();
    let tunnel = fixture.tunnel();
    eventually("the tunnel has failed", || !tunnel.health().listening).await;
    assert_eq!(fixture.status(), TunnelStatus::Down);
    assert_eq!(tunnel.health().last_error.unwrap().1, "the password is wrong");
    tunnel.set_active(false);
    assert_eq!(fixture.status(), TunnelStatus::Paused);
    assert_eq!(fixture.opened(), 1, "it is not started again by itself");
    tunnel.set_active(true);
    eventually("the tunnel hears", || fixture.status() == TunnelStatus::Hearing).await;
    fixture.stop().await;
}

#[tokio::test]
async fn paused_tunnel_neither_receives_nor_sends_and_stays_paused() {
    let fixture = Fixture::new(&[]).await;
    let config = fixture.config(|_, _| ());
    fixture.supervisor.apply(None, &config).await.unwrap();
    let tunnel = fixture.tunnel();
    eventually("the tunnel hears", || fixture.status() == TunnelStatus::Hearing).await;
    let id: TunnelId = TUNNEL.parse().unwrap();
    let (store, now) = (fixture.hub.store(), fixture.hub.clock.now());
    store.set_tunnel_active(&id, false, now).await.unwrap();
    tunnel.set_active(false);
    let open = || fixture.script.open.load(Ordering::SeqCst);
    eventually("the connection is closed", || open() == 0).await;

    // A reload replaces the tunnel, which is paused from its start.
    let new = fixture.config(|_, adapter| adapter.url = "b".to_owned());
    fixture.supervisor.apply(Some(&config), &new).await.unwrap();
    assert_eq!(fixture.status(), TunnelStatus::Paused);
    let delivery = fixture.send("slow").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(fixture.script.attempts.load(Ordering::SeqCst), 0, "nothing is sent");
    assert_eq!(fixture.opened(), 1, "nothing is received");

    store.set_tunnel_active(&id, true, now).await.unwrap();
    fixture.tunnel().set_active(true);
    eventually("the delivery is attempted", || fixture.script.attempts.load(Ordering::SeqCst) == 1)
        .await;
    eventually("the tunnel hears", || fixture.status() == TunnelStatus::Hearing).await;
    // An attempt that has begun is finished although the tunnel is paused.
    fixture.tunnel().set_active(false);
    fixture.script.go_on.notify_one();
    eventually("the message is sent", || fixture.tunnel().health().sent == 1).await;
    fixture.stop().await;
    let sent = store.delivery(delivery).await.unwrap();
    assert_eq!(sent.sending.state.name(), SendState::Sent);
}

#[tokio::test]
async fn lost_connection_is_down_until_it_is_open_again() {
    let fixture = Fixture::new(&[Act::Lose]).await;
    let config = fixture.config(|_, _| ());
    fixture.supervisor.apply(None, &config).await.unwrap();
    let tunnel = fixture.tunnel();
    eventually("the connection is lost", || tunnel.health().connections_lost == 1).await;
    assert_eq!(fixture.status(), TunnelStatus::Down);
    assert_eq!(tunnel.health().last_error.unwrap().1, "connection reset");
    fixture.script.go_on.notify_one();
    eventually("the tunnel hears", || fixture.status() == TunnelStatus::Hearing).await;
    fixture.stop().await;
}

/// One of two couriers that share the store of a fixture.
struct SharingCourier {
    supervisor: TunnelSupervisor,
    run: CourierRun,
}

impl SharingCourier {
    async fn start(fixture: &Fixture, number: u8) -> Self {
        let (store, now) = (fixture.hub.store(), fixture.hub.clock.now());
        let mut config = fixture.config(|_, _| ());
        config.tunnels.retain(|id, _| id.as_str() == TUNNEL);
        let config = Arc::new(config);
        let id = CourierId::from_random([number; 16]);
        let run = store.register_courier(id, enabled_tunnels(&config), now).await.unwrap();
        let mut supervisor = supervisor(&fixture.hub, HeldDuties::none(run));
        let (_, receiver) = watch::channel(Arc::clone(&config));
        supervisor.config = receiver;
        supervisor.apply(None, &config).await.unwrap();
        let duties = DutyLoop {
            store: Arc::clone(store),
            clock: fixture.hub.clock,
            duties: supervisor.duties.clone(),
            tunnels: Arc::clone(&supervisor.tunnels),
            config: supervisor.config.clone(),
            renew_at: Duration::ZERO,
            released: BTreeSet::new(),
        };
        supervisor.receivers.spawn(duties.run(supervisor.receivers.stop.clone()));
        Self { supervisor, run }
    }

    fn listens(&self) -> bool {
        let tunnel = self.supervisor.tunnels.get(TUNNEL).unwrap();
        tunnel.is_active() && tunnel.health().listening
    }

    /// Stops as a courier does; returns whether it was the last one.
    async fn stop(&self) -> bool {
        self.supervisor.receivers.finish().await;
        let is_last = self.supervisor.end().await;
        self.supervisor.loops.finish().await;
        is_last
    }
}

#[tokio::test]
async fn tunnel_runs_at_one_of_two_couriers_and_moves_when_that_one_stops() {
    let fixture = Fixture::new(&[]).await;
    let first = SharingCourier::start(&fixture, 1).await;
    eventually("the only courier listens", || first.listens()).await;
    let second = SharingCourier::start(&fixture, 2).await;
    let standby = |courier: &SharingCourier| {
        let tunnel = courier.supervisor.tunnels.get(TUNNEL).unwrap();
        tunnel.health().status(fixture.hub.clock.now()) == TunnelStatus::Standby
    };
    eventually("one listens and the other stands by", || {
        first.listens() != second.listens() && standby(&first) != standby(&second)
    })
    .await;
    fixture.send("ann").await;
    eventually("one attempt", || fixture.script.attempts.load(Ordering::SeqCst) == 1).await;

    let holder = async || {
        let duties = fixture.hub.store().duties().await.unwrap();
        let tunnel = DutyName::Tunnel(TUNNEL.parse().unwrap());
        duties.into_iter().find(|duty| duty.name == tunnel).and_then(|duty| duty.holder)
    };
    let stops_first = holder().await == Some(first.run);
    let (stops, stays) = if stops_first { (&first, &second) } else { (&second, &first) };
    assert!(!stops.stop().await, "the other courier lives");
    assert!(!stops.listens());
    eventually("the other courier has taken the tunnel", || stays.listens()).await;
    assert_eq!(holder().await, Some(stays.run));
    assert_eq!(fixture.most_open(), 1, "never two connections");
    assert!(stays.stop().await, "the last courier");
}
