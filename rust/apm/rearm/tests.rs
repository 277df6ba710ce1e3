// SPDX-License-Identifier: GPL-2.0-only

//! One thing at a time.

use super::super::path::Alternate;
use super::*;
use crate::wire::records::PathRecord;
use proptest::prelude::*;

const TIMES: Times = Times {
    lap_ms: 4_000,
    lap_retries: 3,
    rep_ms: 4_000,
    exhaustion_ms: 6_500,
};

/// No spreading: waits are as long as they get.
pub(super) const NONE: u32 = 0;

pub(super) fn alternate(port: u32, slid: u16, dlid: u16, disjoint: Disjoint) -> Alternate {
    Alternate {
        port,
        path: PathRecord {
            slid,
            dlid,
            ..PathRecord::default()
        },
        disjoint,
        primary_lids: (0, 0),
    }
}

pub(super) fn two() -> (Alternate, Alternate) {
    (
        alternate(2, 12, 22, Disjoint::Ports),
        alternate(2, 12, 21, Disjoint::Port),
    )
}

pub(super) fn both() -> Candidates {
    let (best, other) = two();
    let mut candidates = Candidates::default();
    candidates.push(best);
    candidates.push(other);
    candidates
}

/// A connection past its set-up that has migrated at 100,000 ms, the peer first.
pub(super) fn migrated() -> Rearm {
    let mut rearm = Rearm::active(TIMES, 100);
    let has = (alternate(1, 11, 21, Disjoint::Ports).key(), Disjoint::Ports);
    rearm.step(Event::Established(Some(has)), 0, NONE);
    rearm.step(Event::Sampled(PathMigState::Armed), 50, NONE);
    let step = rearm.step(Event::Migrated { told: true }, 100_000, NONE);
    assert_eq!(step.action, Action::Search { better: false });
    assert_eq!(step.event, Some(state::Event::Seek));
    rearm
}

/// A port may die before the connection is known to be up.
#[test]
fn a_migration_during_set_up() {
    for (told, first) in [(true, Action::None), (false, Action::Tell { tid: 101 })] {
        let mut rearm = Rearm::active(TIMES, 100);
        let step = rearm.step(Event::Migrated { told }, 10, NONE);
        assert_eq!(step, Step::NOTHING);
        let step = rearm.step(Event::Established(None), 20, NONE);
        assert_eq!(step.action, first);
        if !told {
            rearm.step(Event::Nudged, 30, NONE);
        }
        // Not before the peer is through with it as well.
        let due = rearm.deadline().unwrap();
        assert_eq!(due, 20 + 2 * TIMES.rep_ms);
        let step = rearm.step(Event::Tick, due, NONE);
        assert_eq!(step.action, Action::Search { better: false });
    }
}

pub(super) fn sent(step: Step) -> (u64, Alternate) {
    match step.action {
        Action::Send { tid, alternate } => (tid, alternate),
        other => panic!("no LAP but {other:?}"),
    }
}

pub(super) fn tells(step: Step) -> bool {
    matches!(step.action, Action::Tell { .. })
}

pub(super) fn apr(rearm: &mut Rearm, tid: u64, status: Status, now: u64) -> Step {
    rearm.step(Event::Apr { tid, status }, now, NONE)
}

pub(super) fn tick(rearm: &mut Rearm) -> (Step, u64) {
    let now = rearm.deadline().expect("nothing to wait for");
    assert_eq!(rearm.step(Event::Tick, now - 1, NONE), Step::NOTHING);
    (rearm.step(Event::Tick, now, NONE), now)
}

#[test]
fn from_migration_to_armed() {
    let mut rearm = migrated();
    let step = rearm.step(Event::Found(both()), 100_010, NONE);
    let (tid, offered) = sent(step);
    assert_eq!(offered, two().0);
    assert_eq!(step.event, Some(state::Event::Offer));
    assert!(rearm.is_asking());
    let step = apr(&mut rearm, tid, Status::LOADED, 100_020);
    assert_eq!(step.action, Action::Load(offered));
    let step = rearm.step(Event::Loaded(true), 100_021, NONE);
    assert_eq!(step.action, Action::Nudge);
    assert_eq!(step.event, Some(state::Event::Rearmed));
    assert_eq!(
        rearm.step(Event::Nudged, 100_022, NONE).action,
        Action::Sample
    );
    rearm.step(Event::Sampled(PathMigState::Armed), 100_023, NONE);
    // As far apart as can be: nothing more to do.
    assert_eq!(rearm.deadline(), None);
    assert_eq!(rearm.loaded(), Some(offered.key()));
}

#[test]
fn an_idle_qp_is_nudged_until_it_is_armed() {
    let mut rearm = migrated();
    let (tid, _) = sent(rearm.step(Event::Found(both()), 100_000, NONE));
    apr(&mut rearm, tid, Status::LOADED, 100_000);
    rearm.step(Event::Loaded(true), 100_000, NONE);
    let mut last = 100_000;
    for n in 0..12 {
        rearm.step(Event::NoNudge, last, NONE);
        let (step, now) = tick(&mut rearm);
        assert_eq!(now - last, sampling_ms(n));
        assert_eq!(step.action, Action::Sample);
        let step = rearm.step(Event::Sampled(PathMigState::Rearm), now, NONE);
        assert_eq!(step.action, Action::Nudge);
        last = now;
    }
    rearm.step(Event::Sampled(PathMigState::Armed), last, NONE);
    assert_eq!(rearm.deadline(), None);
}

#[test]
fn nudges_in_vain_lead_to_another_offer() {
    let mut rearm = migrated();
    let (tid, first) = sent(rearm.step(Event::Found(both()), 100_000, NONE));
    apr(&mut rearm, tid, Status::LOADED, 100_000);
    rearm.step(Event::Loaded(true), 100_000, NONE);
    let mut now = 100_000;
    let mut nudges = 0;
    let mut step = Step::NOTHING;
    while step.action != (Action::Search { better: false }) {
        nudges += 1;
        rearm.step(Event::Nudged, now, NONE);
        rearm.step(Event::Sampled(PathMigState::Rearm), now, NONE);
        (step, now) = tick(&mut rearm);
        rearm.step(Event::Sampled(PathMigState::Rearm), now, NONE);
    }
    assert!(nudges < 10);
    assert_eq!(rearm.loaded(), Some(first.key()));
    let (_, second) = sent(rearm.step(Event::Found(both()), now, NONE));
    assert_eq!(second, two().1);
}

#[test]
fn no_lap_before_the_peer_was_told() {
    let told = |rearm: &mut Rearm, event, now| rearm.step(event, now, NONE).action;
    let begin = || {
        let mut rearm = migrated();
        let step = rearm.step(Event::Migrated { told: false }, 200_000, NONE);
        assert!(tells(step));
        rearm
    };
    let search = Action::Search { better: false };
    assert_eq!(told(&mut begin(), Event::Nudged, 200_001), search);
    assert_eq!(told(&mut begin(), Event::PeerSeen, 200_001), search);

    // The nudge does not complete, because the ULP does not poll; the QP lives longer than it would
    // with a packet that nobody acknowledges.
    let mut rearm = begin();
    let migrated = Event::Sampled(PathMigState::Migrated);
    assert_eq!(told(&mut rearm, migrated, 200_100), Action::None);
    assert_eq!(tick(&mut rearm), (Action::Sample.into(), 206_500));
    assert_eq!(told(&mut rearm, migrated, 206_500), search);

    // No nudge: notices, repeated as LAPs are.
    let mut rearm = begin();
    for n in 1..=4 {
        rearm.step(Event::NoNudge, 200_000, NONE);
        assert_eq!(rearm.deadline(), Some(204_000));
        let (step, _) = tick(&mut rearm);
        assert_eq!(tells(step), n <= 3, "{n}");
    }
    let (step, now) = tick(&mut rearm);
    let Action::Tell { tid } = step.action else {
        panic!("{step:?}");
    };
    rearm.step(Event::NoNudge, now, NONE);
    // Not believed, or the answer to an earlier notice; and then it has followed.
    for (tid, status, action) in [
        (tid, Status::REJECTED, Action::None),
        (tid - 1, Status::LOADED, Action::None),
        (tid, Status::LOADED, search),
    ] {
        assert_eq!(apr(&mut rearm, tid, status, now).action, action);
    }
}

#[test]
fn no_lap_before_set_up_is_over() {
    let mut rearm = Rearm::active(TIMES, 0);
    assert_eq!(rearm.step(Event::Seek, 0, NONE), Step::NOTHING);
    assert_eq!(rearm.deadline(), None);
    assert_eq!(rearm.step(Event::Tick, 1 << 40, NONE), Step::NOTHING);
    rearm.step(Event::Established(None), 1_000, NONE);
    assert_eq!(rearm.deadline(), Some(9_000));
    // A REP again: the RTU was lost.
    rearm.step(Event::RepAgain, 5_000, NONE);
    assert_eq!(tick(&mut rearm).0, Step::NOTHING);
    assert_eq!(rearm.deadline(), Some(13_000));
    let mut other = rearm;
    let search = Action::Search { better: false };
    assert_eq!(
        tick(&mut rearm),
        (
            Step {
                action: search,
                event: Some(state::Event::Seek)
            },
            13_000
        )
    );
    other.step(Event::Kick, 10_000, NONE);
    assert_eq!(other.deadline(), Some(13_000));
}

#[test]
fn waits_double_and_end_at_an_event() {
    let mut rearm = migrated();
    let mut now = 100_000;
    let mut expected = 100;
    for _ in 0..20 {
        let step = rearm.step(Event::NotFound(Reason::PortDown), now, NONE);
        let down = state::Event::NotRearmed(Reason::PortDown);
        assert_eq!((step.action, step.event), (Action::None, Some(down)));
        assert_eq!(rearm.deadline(), Some(now + expected));
        now = tick(&mut rearm).1;
        expected = (expected * 2).min(300_000);
    }
    rearm.step(Event::NotFound(Reason::PortDown), now, NONE);
    rearm.step(Event::Kick, now, NONE);
    assert_eq!(rearm.deadline(), Some(now + 100));
    let (_, now) = tick(&mut rearm);
    // While it searches, too; and then the waits begin anew.
    rearm.step(Event::Kick, now, NONE);
    rearm.step(Event::NotFound(Reason::PortDown), now, NONE);
    assert_eq!(rearm.deadline(), Some(now + 100));
}

#[test]
fn flapping_slows_it_down() {
    let mut rearm = migrated();
    let mut now = 100_000;
    let mut waits = Vec::new();
    for _ in 0..12 {
        let step = rearm.step(Event::Migrated { told: true }, now, NONE);
        if step.action == Action::None {
            waits.push(rearm.deadline().unwrap() - now);
            now = tick(&mut rearm).1;
        } else {
            waits.push(0);
        }
        let (tid, _) = sent(rearm.step(Event::Found(both()), now, NONE));
        apr(&mut rearm, tid, Status::LOADED, now);
        rearm.step(Event::Loaded(true), now, NONE);
        rearm.step(Event::Sampled(PathMigState::Armed), now, NONE);
        now += 1_000;
    }
    assert_eq!(waits[..4], [0, 0, 200, 400]);
    assert_eq!(waits[11], 12_800);
    now += 60_000;
    let step = rearm.step(Event::Migrated { told: true }, now, NONE);
    assert_eq!(step.action, Action::Search { better: false });
}

#[test]
fn the_passive_side_tells_and_waits() {
    let mut rearm = Rearm::passive(TIMES, 100);
    let has = (two().0.key(), Disjoint::Ports);
    rearm.step(Event::Established(Some(has)), 0, NONE);
    rearm.step(Event::Sampled(PathMigState::Armed), 50, NONE);
    assert_eq!(rearm.deadline(), None);
    let step = rearm.step(Event::Migrated { told: true }, 100_000, NONE);
    assert_eq!((step, rearm.deadline()), (Step::NOTHING, None));
    rearm.step(Event::Served, 100_100, NONE);
    assert_eq!(tick(&mut rearm).0.action, Action::Sample);
    let step = rearm.step(Event::Sampled(PathMigState::Rearm), 100_110, NONE);
    assert_eq!(step.action, Action::Nudge);
    rearm.step(Event::Sampled(PathMigState::Armed), 100_120, NONE);
    assert_eq!(rearm.deadline(), None);
    // It has migrated by itself.
    let step = rearm.step(Event::Migrated { told: false }, 200_000, NONE);
    assert!(tells(step));
    rearm.step(Event::NoNudge, 200_000, NONE);
    assert!(tells(tick(&mut rearm).0));
    let step = rearm.step(Event::PeerSeen, 204_000, NONE);
    assert_eq!((step, rearm.deadline()), (Step::NOTHING, None));
    for event in [Event::Seek, Event::Kick] {
        assert_eq!(rearm.step(event, 300_000, NONE), Step::NOTHING);
    }
    assert_eq!(rearm.deadline(), None);
}

#[test]
fn the_end_in_any_phase() {
    let fresh = Rearm::active(TIMES, 0);
    let seeking = migrated();
    let mut asking = seeking;
    let (tid, _) = sent(asking.step(Event::Found(both()), 100_000, NONE));
    let mut arming = asking;
    apr(&mut arming, tid, Status::LOADED, 100_000);
    arming.step(Event::Loaded(true), 100_000, NONE);
    for mut rearm in [fresh, seeking, asking, arming] {
        rearm.step(Event::Close, 100_001, NONE);
        assert_eq!(rearm.deadline(), None);
        for event in [
            Event::Tick,
            Event::Seek,
            Event::Migrated { told: false },
            Event::Found(both()),
            Event::Apr {
                tid,
                status: Status::LOADED,
            },
            Event::Established(None),
        ] {
            assert_eq!(rearm.step(event, 200_000, NONE), Step::NOTHING);
        }
    }
}

#[test]
fn times_of_a_req() {
    // rdma_cm: 20, 20, 15 retries; lifetime 18.
    let times = Times::of_req(20, 20, 18, 15, 6_443);
    assert_eq!((times.lap_ms, times.rep_ms), (6_144, 6_144));
    assert_eq!(times.lap_retries, 15);
}

fn event() -> impl Strategy<Value = Event> {
    let status = prop_oneof![Just(Status::LOADED), (1u8..14).prop_map(Status)];
    prop_oneof![
        Just(Event::Established(None)),
        Just(Event::RepAgain),
        Just(Event::Seek),
        any::<bool>().prop_map(|told| Event::Migrated { told }),
        Just(Event::Kick),
        Just(Event::Found(both())),
        Just(Event::NotFound(Reason::PortDown)),
        Just(Event::Nudged),
        Just(Event::NoNudge),
        Just(Event::PeerSeen),
        (98u64..106, status).prop_map(|(tid, status)| Event::Apr { tid, status }),
        (98u64..106, any::<u8>()).prop_map(|(tid, service_timeout)| Event::Mra {
            tid,
            service_timeout
        }),
        any::<bool>().prop_map(Event::Loaded),
        Just(Event::Sampled(PathMigState::Rearm)),
        Just(Event::Sampled(PathMigState::Armed)),
        Just(Event::Sampled(PathMigState::Migrated)),
        Just(Event::Tick),
    ]
}

proptest! {
    /// Whatever happens in whatever order: one offer has one transaction id, a path is loaded only
    /// after the peer has said so of this very offer, and once established there is always either a
    /// deadline or somebody who owes an answer, unless all is well.
    #[test]
    fn any_order(
        events in prop::collection::vec((event(), 0u64..20_000, any::<u32>()), 0..80),
    ) {
        let mut rearm = Rearm::active(TIMES, 100);
        let mut now = 0;
        let mut asked: Option<(u64, Alternate)> = None;
        rearm.step(Event::Established(None), now, 0);
        rearm.step(Event::Seek, now, 0);
        let mut owed = Action::None;
        for (event, after, jitter) in events {
            now += after;
            let step = rearm.step(event, now, jitter);
            match step.action {
                Action::Send { tid, alternate } => {
                    match asked {
                        Some((t, a)) if t == tid => prop_assert_eq!(a, alternate),
                        _ => prop_assert_eq!(step.event, Some(state::Event::Offer)),
                    }
                    asked = Some((tid, alternate));
                }
                Action::Load(alternate) => {
                    let (tid, offered) = asked.unwrap();
                    prop_assert_eq!(alternate, offered);
                    let answer = Event::Apr { tid, status: Status::LOADED };
                    prop_assert_eq!(event, answer);
                }
                _ => {}
            }
            match (owed, event) {
                (_, Event::Migrated { .. })
                | (Action::Search { .. }, Event::Found(_) | Event::NotFound(_))
                | (Action::Load(_), Event::Loaded(_)) => owed = Action::None,
                _ => {}
            }
            if let Action::Search { .. } | Action::Load(_) = step.action {
                owed = step.action;
            }
            let well = rearm.loaded().is_some();
            prop_assert!(rearm.deadline().is_some() || owed != Action::None || well);
        }
    }
}
