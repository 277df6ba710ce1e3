// SPDX-License-Identifier: GPL-2.0-only

//! What the peer answers, or does not.

use super::tests::{apr, both, migrated, sent, tells, tick, two, NONE};
use super::*;

#[test]
fn a_lap_is_repeated_and_then_given_up() {
    let mut rearm = migrated();
    let (tid, first) = sent(rearm.step(Event::Found(both()), 100_000, NONE));
    for n in 1..=3 {
        let (step, now) = tick(&mut rearm);
        assert_eq!((step.event, sent(step)), (None, (tid, first)));
        assert_eq!(now, 100_000 + n * 4_000);
    }
    let (step, _) = tick(&mut rearm);
    let (next, second) = sent(step);
    assert!(next != tid && second == two().1);
    for _ in 0..3 {
        tick(&mut rearm);
    }
    let (step, now) = tick(&mut rearm);
    let timeout = state::Event::NotRearmed(Reason::PeerTimeout);
    assert_eq!((step.action, step.event), (Action::None, Some(timeout)));
    assert_eq!(rearm.deadline(), Some(now + 100));
    // Both failed: the one whose failure is the longest ago comes first.
    tick(&mut rearm);
    let (_, third) = sent(rearm.step(Event::Found(both()), now, NONE));
    assert_eq!(third, first);
}

#[test]
fn only_the_answer_to_this_offer_counts() {
    let mut rearm = migrated();
    let (first, _) = sent(rearm.step(Event::Found(both()), 100_000, NONE));
    assert_eq!(
        apr(&mut rearm, first + 1, Status::LOADED, 100_001),
        Step::NOTHING
    );
    let step = apr(&mut rearm, first, Status::LID, 100_002);
    let (second, offered) = sent(step);
    assert_eq!(offered, two().1);
    // The peer has loaded something else since.
    assert_eq!(
        apr(&mut rearm, first, Status::LOADED, 100_003),
        Step::NOTHING
    );
    let step = apr(&mut rearm, second, Status::LOADED, 100_004);
    assert_eq!(step.action, Action::Load(offered));
    assert_eq!(
        apr(&mut rearm, second, Status::LOADED, 100_005),
        Step::NOTHING
    );
}

#[test]
fn refused_by_all() {
    let mut rearm = migrated();
    let (tid, _) = sent(rearm.step(Event::Found(both()), 100_000, NONE));
    let (tid, _) = sent(apr(&mut rearm, tid, Status::LID, 100_000));
    let step = apr(&mut rearm, tid, Status::GID, 100_000);
    let refused = state::Event::NotRearmed(Reason::PeerRejected(8));
    assert_eq!((step.action, step.event), (Action::None, Some(refused)));
}

#[test]
fn a_status_that_any_path_would_get() {
    for status in [Status::UNSUPPORTED, Status::INVALID_COMM_ID] {
        let mut rearm = migrated();
        let (tid, _) = sent(rearm.step(Event::Found(both()), 100_000, NONE));
        let step = apr(&mut rearm, tid, status, 100_000);
        let refused = state::Event::NotRearmed(Reason::PeerRejected(status.0));
        assert_eq!((step.action, step.event), (Action::None, Some(refused)));
    }
}

#[test]
fn same_as_primary_means_that_it_was_not_told() {
    let mut rearm = migrated();
    let (tid, _) = sent(rearm.step(Event::Found(both()), 100_000, NONE));
    let step = apr(&mut rearm, tid, Status::SAME_AS_PRIMARY, 100_000);
    assert_eq!(step.action, Action::None);
    assert!(tells(tick(&mut rearm).0));
}

#[test]
fn an_mra_prolongs() {
    let mut rearm = migrated();
    let (tid, _) = sent(rearm.step(Event::Found(both()), 100_000, NONE));
    // 4.096 us x 2^21, 8,192 ms as ib_cm counts.
    let mra = |tid| Event::Mra {
        tid,
        service_timeout: 21,
    };
    rearm.step(mra(tid + 1), 101_000, NONE);
    assert_eq!(rearm.deadline(), Some(104_000));
    rearm.step(mra(tid), 101_000, NONE);
    assert_eq!(rearm.deadline(), Some(113_192));
    for _ in 0..100 {
        let now = rearm.deadline().unwrap() - 1;
        rearm.step(mra(tid), now, NONE);
    }
    assert!(rearm.deadline().unwrap() < 101_000 + 4 * 12_192);
    assert!(rearm.heard());
}

#[test]
fn a_peer_that_never_answers_is_asked_rarely() {
    let mut rearm = migrated();
    let mut now = 100_000;
    let mut offers = Vec::new();
    let mut reasons = Vec::new();
    let mut step = rearm.step(Event::Found(both()), now, NONE);
    while now < 2 * 3_600_000 {
        if let Some(state::Event::NotRearmed(reason)) = step.event {
            reasons.push(reason);
        }
        if step.event == Some(state::Event::Offer) {
            offers.push(now);
        }
        if let Action::Search { .. } = step.action {
            step = rearm.step(Event::Found(both()), now, NONE);
            continue;
        }
        (step, now) = tick(&mut rearm);
    }
    assert_eq!(reasons[0], Reason::PeerTimeout);
    assert!(reasons[1..].iter().all(|r| *r == Reason::PeerWithoutLap));
    assert!(offers.len() > 10);
    for pair in offers[4..].windows(2) {
        assert!(pair[1] - pair[0] >= 60_000);
    }
    let gap = offers[offers.len() - 1] - offers[offers.len() - 2];
    assert!(gap <= 300_000 + 4 * 4_000);
    // An event helps, but not without measure.
    while !matches!(step.event, Some(state::Event::NotRearmed(_))) {
        step = match step.action {
            Action::Search { .. } => rearm.step(Event::Found(both()), now, NONE),
            _ => {
                let (step, at) = tick(&mut rearm);
                now = at;
                step
            }
        };
    }
    rearm.step(Event::Kick, now, NONE);
    assert_eq!(rearm.deadline(), Some(now + 10_000));
}

#[test]
fn a_better_alternate_is_sought() {
    let mut rearm = migrated();
    let (_, lesser) = two();
    let mut one = Candidates::default();
    one.push(lesser);
    let (tid, _) = sent(rearm.step(Event::Found(one), 100_000, NONE));
    apr(&mut rearm, tid, Status::LOADED, 100_000);
    rearm.step(Event::Loaded(true), 100_000, NONE);
    rearm.step(Event::Sampled(PathMigState::Armed), 100_000, NONE);
    assert_eq!(rearm.deadline(), Some(105_000));
    let (step, now) = tick(&mut rearm);
    let better = Action::Search { better: true };
    assert_eq!((step.action, step.event), (better, None));
    // No better one: it stays, and the next search comes later.
    let step = rearm.step(Event::Found(one), now, NONE);
    assert_eq!(step.action, Action::Sample);
    rearm.step(Event::Sampled(PathMigState::Armed), now, NONE);
    assert_eq!(rearm.deadline(), Some(now + 10_000));
    rearm.step(Event::Kick, now, NONE);
    assert_eq!(
        tick(&mut rearm),
        (Action::Search { better: true }.into(), now + 100)
    );
    let (tid, offered) = sent(rearm.step(Event::Found(both()), now, NONE));
    assert_eq!(offered, two().0);
    // Refused: still protected by the one there is.
    let mut refused = rearm;
    let step = apr(&mut refused, tid, Status::LID, now);
    assert_eq!(step.action, Action::Sample);
    assert_eq!(refused.loaded(), Some(lesser.key()));
    let step = apr(&mut rearm, tid, Status::LOADED, now);
    assert_eq!(step.action, Action::Load(offered));
    // The peer has the new one and we have not: that is not left so.
    let step = rearm.step(Event::Loaded(false), now, NONE);
    assert_eq!(step.action, Action::None);
    assert_eq!(tick(&mut rearm).0.action, Action::Search { better: false });
}

#[test]
fn a_better_alternate_that_the_peer_may_have_loaded() {
    let mut rearm = migrated();
    let (best, lesser) = two();
    let mut one = Candidates::default();
    one.push(lesser);
    let (tid, _) = sent(rearm.step(Event::Found(one), 100_000, NONE));
    apr(&mut rearm, tid, Status::LOADED, 100_000);
    rearm.step(Event::Loaded(true), 100_000, NONE);
    rearm.step(Event::Sampled(PathMigState::Armed), 100_000, NONE);
    let (_, now) = tick(&mut rearm);
    assert_eq!(sent(rearm.step(Event::Found(both()), now, NONE)).1, best);
    let mut step = Step::NOTHING;
    for _ in 0..4 {
        step = tick(&mut rearm).0;
    }
    // Nobody knows whether it has, so this is not left alone until the next look for a better one.
    let timeout = state::Event::NotRearmed(Reason::PeerTimeout);
    assert_eq!((step.action, step.event), (Action::None, Some(timeout)));
    let search = Action::Search { better: false };
    assert_eq!(tick(&mut rearm).0.action, search);
}

#[test]
fn a_useless_alternate_is_replaced() {
    let mut rearm = migrated();
    let (tid, first) = sent(rearm.step(Event::Found(both()), 100_000, NONE));
    apr(&mut rearm, tid, Status::LOADED, 100_000);
    rearm.step(Event::Loaded(true), 100_000, NONE);
    rearm.step(Event::Sampled(PathMigState::Armed), 100_000, NONE);
    let step = rearm.step(Event::Seek, 100_001, NONE);
    assert_eq!(step.action, Action::Search { better: false });
    let (_, offered) = sent(rearm.step(Event::Found(both()), 100_002, NONE));
    assert!(offered != first);
}
