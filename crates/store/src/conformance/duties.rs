//! Conformance tests of couriers and duties: one holder per duty, and late holders are rejected.

use std::collections::BTreeSet;

use monoco_core::courier::CourierRun;
use monoco_core::duty::{Duty, DutyName, DutyProof, DutyStep};

use super::letters::{accept_letter, submitted, then_wait};
use super::*;
use crate::LetterStep;

fn courier_id(number: u8) -> CourierId {
    CourierId::from_random([number; 16])
}

fn tunnels(names: &[&str]) -> BTreeSet<TunnelId> {
    names.iter().map(|name| tunnel_id(name)).collect()
}

async fn register(store: &dyn Store, number: u8, names: &[&str], now: i64) -> CourierRun {
    store.register_courier(courier_id(number), tunnels(names), at(now)).await.unwrap()
}

/// Renews, and describes the steps: `acquire leader, leave tunnel:lark`.
async fn renew(store: &dyn Store, run: CourierRun, names: &[&str], now: i64) -> String {
    let steps = store.renew_duties(run, tunnels(names), at(now)).await.unwrap();
    let step = |(duty, step): &(Duty, DutyStep)| {
        let held = duty.holder == Some(run);
        let step = match step {
            DutyStep::Acquire => "acquire",
            DutyStep::Renew => "renew",
            DutyStep::Release => "release",
            DutyStep::Leave => "leave",
        };
        assert_eq!(held, step != "leave", "{duty:?}");
        format!("{step} {}", duty.name)
    };
    steps.iter().map(step).collect::<Vec<_>>().join(", ")
}

/// The names of the duties that a run holds.
async fn held(store: &dyn Store, run: CourierRun) -> BTreeSet<String> {
    let duties = store.duties().await.unwrap().into_iter();
    duties.filter(|duty| duty.holder == Some(run)).map(|duty| duty.name.to_string()).collect()
}

async fn proof(store: &dyn Store, name: &DutyName) -> DutyProof {
    let duties = store.duties().await.unwrap();
    duties.iter().find(|duty| duty.name == *name).unwrap().proof()
}

pub(crate) async fn each_start_of_a_courier_has_the_next_boot_number(home: &dyn TestHome) {
    let store = home.open().await;
    assert_eq!(register(&*store, 1, &[], 0).await.boot, 1);
    assert_eq!(register(&*store, 2, &[], 0).await.boot, 1);
    drop(store);
    let store = &*home.open().await;
    let run = register(store, 1, &["lark"], 5).await;
    assert_eq!(run, CourierRun { id: courier_id(1), boot: 2 });
    let couriers = store.couriers().await.unwrap();
    assert_eq!(couriers.iter().map(|it| it.run.boot).collect::<BTreeSet<_>>(), [1, 2].into());
    let own = couriers.iter().find(|it| it.run == run).unwrap();
    assert_eq!((&own.tunnels, own.seen_at), (&tunnels(&["lark"]), Some(at(5))));
}

pub(crate) async fn single_courier_acquires_and_renews_every_duty(store: &dyn Store) {
    let run = register(store, 1, &["lark"], 0).await;
    let all = "leader, dispatcher, tunnel:lark";
    let steps = |verb: &str| {
        all.split(", ").map(|name| format!("{verb} {name}")).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(renew(store, run, &["lark"], 0).await, steps("acquire"));
    assert_eq!(renew(store, run, &["lark"], 19).await, steps("renew"));
    assert_eq!(renew(store, run, &["lark"], 39).await, steps("acquire"), "20 s after the renewal");
    assert_eq!(proof(store, &DutyName::Leader).await.epoch, 2);
    let left = renew(store, run, &[], 40).await;
    assert_eq!(left, "renew leader, renew dispatcher, release tunnel:lark");
}

pub(crate) async fn a_duty_has_one_holder_and_moves_when_its_holder_dies(store: &dyn Store) {
    let names: Vec<_> = (0..8).map(|n| format!("t{n}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let runs = [register(store, 1, &names, 0).await, register(store, 2, &names, 0).await];
    for run in runs {
        renew(store, run, &names, 0).await;
    }
    let shares = [held(store, runs[0]).await, held(store, runs[1]).await];
    assert!(shares.iter().all(|share| !share.is_empty()), "{shares:?}");
    assert!(shares[0].is_disjoint(&shares[1]));
    assert_eq!(shares[0].len() + shares[1].len(), 10);
    // The first courier is not heard of again.
    for now in [5, 10, 15, 19] {
        renew(store, runs[1], &names, now).await;
        assert_eq!(held(store, runs[1]).await, shares[1], "second {now}");
    }
    renew(store, runs[1], &names, 20).await;
    assert_eq!(held(store, runs[1]).await.len(), 10);
    assert!(held(store, runs[0]).await.is_empty());
    // When it is back, it gets its share again after the other courier has released it.
    let back = renew(store, runs[0], &names, 21).await;
    assert!(!back.contains("acquire"), "{back}");
    let steps = store.renew_duties(runs[1], tunnels(&names), at(22)).await.unwrap();
    let released = steps.iter().filter(|(_, step)| *step == DutyStep::Release);
    let released: Vec<_> = released.map(|(duty, _)| duty.proof()).collect();
    assert_eq!(released.len(), shares[0].len());
    store.release_duties(released).await.unwrap();
    renew(store, runs[0], &names, 23).await;
    assert_eq!([held(store, runs[0]).await, held(store, runs[1]).await], shares);
}

pub(crate) async fn clean_end_releases_all_duties_and_names_the_last_courier(store: &dyn Store) {
    let runs = [register(store, 1, &["a"], 0).await, register(store, 2, &["a"], 0).await];
    for run in runs {
        renew(store, run, &["a"], 0).await;
    }
    assert!(!store.end_courier(runs[0], at(1)).await.unwrap(), "the other courier lives");
    renew(store, runs[1], &["a"], 1).await;
    assert_eq!(held(store, runs[1]).await.len(), 3);
    assert!(store.end_courier(runs[1], at(2)).await.unwrap(), "the last one");
    assert!(held(store, runs[1]).await.is_empty());
}

pub(crate) async fn earlier_run_of_a_courier_is_rejected(store: &dyn Store) {
    let old = register(store, 1, &["a"], 0).await;
    renew(store, old, &["a"], 0).await;
    let new = register(store, 1, &["a"], 1).await;
    let late = store.renew_duties(old, tunnels(&["a"]), at(2)).await;
    assert!(matches!(late, Err(StoreError::CourierReplaced(id)) if id == new.id), "{late:?}");
    assert_eq!(renew(store, new, &["a"], 2).await.matches("acquire").count(), 3);
    assert!(store.end_courier(old, at(3)).await.is_ok());
    assert_eq!(held(store, new).await.len(), 3, "the end of an earlier run releases nothing");
}

pub(crate) async fn write_with_a_stale_epoch_is_rejected(store: &dyn Store) {
    let run = register(store, 1, &[], 0).await;
    renew(store, run, &[], 0).await;
    let old = proof(store, &DutyName::Dispatcher).await;
    let id = accept_letter(store, submitted("a"), 0).await;
    let row = store.letter(id).await.unwrap();
    let step = |duty: &DutyProof, row| LetterStep {
        duty: Some(duty.clone()),
        ..LetterStep::only(row, then_wait(Some("spam"), 0))
    };
    // Another courier has acquired the duty meanwhile.
    let run = register(store, 2, &[], 60).await;
    renew(store, run, &[], 60).await;
    let new = proof(store, &DutyName::Dispatcher).await;
    assert_eq!(new.epoch, old.epoch + 1);
    let late = store.step_letters(vec![step(&old, &row)], at(61)).await.remove(0);
    assert!(matches!(&late, Err(StoreError::DutyLost { epoch, .. }) if *epoch == old.epoch));
    assert_eq!(store.letter(id).await.unwrap().revision, row.revision, "nothing was written");
    store.step_letters(vec![step(&new, &row)], at(61)).await.remove(0).unwrap();
    store.release_duties(vec![old.clone(), new.clone()]).await.unwrap();
    let row = store.letter(id).await.unwrap();
    let released = store.step_letters(vec![step(&new, &row)], at(62)).await.remove(0);
    assert!(matches!(released, Err(StoreError::DutyLost { .. })));
}

pub(crate) async fn couriers_that_were_not_seen_for_long_are_removed(store: &dyn Store) {
    register(store, 1, &[], 0).await;
    let run = register(store, 2, &[], 100).await;
    assert_eq!(store.remove_couriers(at(50)).await.unwrap(), 1);
    let left: Vec<_> = store.couriers().await.unwrap().iter().map(|it| it.run).collect();
    assert_eq!(left, [run]);
}
