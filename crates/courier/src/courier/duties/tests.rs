//! The duty loop on a store that fails, and the leases of dead couriers.

use monoco_core::courier::CourierId;
use monoco_core::lease::LeaseDuration;
use monoco_core::object::MsgObject;
use monoco_core::record::BoxKind;
use monoco_store::DispatchRequest;
use serde_json::json;

use super::*;
use crate::courier::test_hub::TestHub;

async fn duty_loop(hub: &TestHub, number: u8) -> DutyLoop {
    let config = Arc::new(Config::parse("", &|_| None).unwrap());
    let (id, now) = (CourierId::from_random([number; 16]), hub.clock.now());
    let run = hub.store().register_courier(id, enabled_tunnels(&config), now).await.unwrap();
    DutyLoop {
        store: Arc::clone(hub.store()),
        clock: hub.clock,
        duties: HeldDuties::none(run),
        tunnels: Arc::default(),
        config: watch::channel(config).1,
        renew_at: Duration::ZERO,
        released: BTreeSet::new(),
    }
}

#[tokio::test]
async fn single_courier_acquires_all_duties_with_one_renewal() {
    let hub = TestHub::new().await;
    let mut duties = duty_loop(&hub, 1).await;
    duties.step().await.unwrap();
    assert!(duties.duties.holds(&DutyName::Leader) && duties.duties.holds(&DutyName::Dispatcher));
}

#[tokio::test]
async fn courier_that_was_started_again_elsewhere_does_no_work() {
    let hub = TestHub::new().await;
    let mut duties = duty_loop(&hub, 1).await;
    duties.step().await.unwrap();
    let copy = duty_loop(&hub, 1).await;
    duties.renew_at = Duration::ZERO;
    let error = duties.step().await.unwrap_err();
    assert!(matches!(error, StoreError::CourierReplaced(id) if id == copy.duties.run().id));
    assert!(!duties.duties.holds(&DutyName::Leader));
}

#[tokio::test]
async fn leader_releases_leases_of_dead_couriers_and_of_no_others() {
    let hub = TestHub::new().await;
    let (owner, now) = (TestHub::owner(), hub.clock.now());
    let (dead, live) = (duty_loop(&hub, 2).await, duty_loop(&hub, 3).await);
    for (number, run) in [dead.duties.run(), live.duties.run()].into_iter().enumerate() {
        let msg = json!({"from": "did:web:ann", "to": [&owner], "kind": "chat",
                         "content": {"content": number.to_string()}});
        let msg = MsgObject::from_json(msg).unwrap();
        let request = DispatchRequest { msg, tunnel: None, external_id: None };
        hub.store().dispatch(vec![request], now).await.remove(0).unwrap();
        let term = LeaseDuration::DEFAULT;
        let leased = hub.store().lease_record(&owner, BoxKind::Inbox, run.holder(), term, now);
        assert!(leased.await.unwrap().is_some());
    }
    hub.store().end_courier(dead.duties.run(), now).await.unwrap();
    let mut leader = duty_loop(&hub, 1).await;
    leader.release_dead_couriers(now).await.unwrap();
    let free = hub.store().lease_record(
        &owner,
        BoxKind::Inbox,
        leader.duties.run().holder(),
        LeaseDuration::DEFAULT,
        now,
    );
    assert!(free.await.unwrap().is_some(), "the record of the dead courier");
    assert_eq!(leader.released, [dead.duties.run()].into());
}

#[tokio::test]
async fn released_duty_is_acquired_before_the_next_renewal() {
    let hub = TestHub::new().await;
    let (mut first, mut second) = (duty_loop(&hub, 1).await, duty_loop(&hub, 2).await);
    for duties in [&mut first, &mut second] {
        duties.step().await.unwrap();
    }
    let held = |duties: &DutyLoop| duties.duties.names().unwrap().len();
    hub.store().end_courier(first.duties.run(), hub.clock.now()).await.unwrap();
    second.step().await.unwrap();
    assert_eq!(held(&second), 2 + enabled_tunnels(&second.config.borrow()).len());
}
