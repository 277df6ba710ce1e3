// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use proptest::prelude::*;

fn run(events: &[Event]) -> (State, Vec<Action>) {
    let mut state = State::NEW;
    let mut actions = Vec::new();
    for event in events {
        let (next, todo) = step(state, *event);
        state = next;
        actions.extend(todo.iter());
    }
    (state, actions)
}

#[test]
fn first_failover() {
    let (state, actions) = run(&[
        Event::Resolve,
        Event::Offer,
        Event::Loaded,
        Event::Sampled(PathMigState::Rearm),
        Event::Sampled(PathMigState::Armed),
        Event::PathMig,
    ]);
    assert_eq!(state, State::Migrated(Reason::NotRearmed));
    assert_eq!(actions, [Action::FollowCm, Action::Seek]);
}

#[test]
fn rearm_is_not_protection() {
    let (state, _) = run(&[
        Event::Offer,
        Event::Loaded,
        Event::Sampled(PathMigState::Rearm),
    ]);
    assert_eq!(state.reason(), Some(Reason::WaitingForTraffic));
}

#[test]
fn a_second_path_mig_is_no_second_migration() {
    let (_, actions) = run(&[
        Event::Offer,
        Event::Loaded,
        Event::Sampled(PathMigState::Armed),
        Event::PathMig,
        Event::PathMig,
        Event::Sampled(PathMigState::Migrated),
    ]);
    assert_eq!(actions, [Action::FollowCm, Action::Seek]);
}

#[test]
fn a_migration_without_event_is_found() {
    let (state, actions) = run(&[
        Event::Offer,
        Event::Loaded,
        Event::Sampled(PathMigState::Armed),
        Event::Sampled(PathMigState::Migrated),
    ]);
    assert_eq!(state, State::Migrated(Reason::NotRearmed));
    assert_eq!(actions, [Action::FollowCm, Action::Seek]);
}

#[test]
fn refused_once_resent_once() {
    let (state, actions) = run(&[
        Event::Resolve,
        Event::Offer,
        Event::Refused(18),
        Event::Refused(18),
        Event::Loaded,
    ]);
    assert_eq!(state, State::Unprotected(Reason::PeerRejected(18)));
    assert_eq!(actions, [Action::Resend]);
    assert!(!state.keeps_alternate());
}

#[test]
fn not_accepted_keeps_the_qp_out_of_rearm() {
    let (state, _) = run(&[Event::Offer, Event::NotAccepted(2)]);
    assert_eq!(state.reason(), Some(Reason::PeerRejected(2)));
    assert!(!state.keeps_alternate());
}

const ARMED: [Event; 3] = [
    Event::Offer,
    Event::Loaded,
    Event::Sampled(PathMigState::Armed),
];

fn after(more: &[Event]) -> (State, Vec<Action>) {
    let mut events = ARMED.to_vec();
    events.extend(more);
    run(&events)
}

#[test]
fn commanded_heard_of_never_once_and_twice() {
    for heard in 0..3 {
        let mut events = vec![Event::Force, Event::Forced];
        events.extend(vec![Event::PathMig; heard]);
        events.push(Event::Sampled(PathMigState::Migrated));
        let (state, actions) = after(&events);
        assert_eq!(state, State::Migrated(Reason::NotRearmed));
        let expected = [
            Action::Force,
            Action::FollowCm,
            Action::TellPeer,
            Action::Seek,
        ];
        assert_eq!(actions, expected, "{heard}");
    }
}

#[test]
fn the_peer_was_first() {
    // The QP refuses, being MIGRATED already; asked for its state, it says so.
    let (state, actions) = after(&[
        Event::Force,
        Event::ForceFailed,
        Event::Sampled(PathMigState::Migrated),
    ]);
    assert_eq!(state, State::Migrated(Reason::NotRearmed));
    let expected = [
        Action::Force,
        Action::Sample,
        Action::FollowCm,
        Action::Seek,
    ];
    assert_eq!(actions, expected);
}

#[test]
fn no_command_from_rearm() {
    let (state, actions) = run(&[Event::Offer, Event::Loaded, Event::Force]);
    assert_eq!(state, State::Arming(Load::Handed));
    assert_eq!(actions, [Action::Sample]);
    for state in [
        State::Unprotected(Reason::PortDown),
        State::Migrated(Reason::NotRearmed),
        State::Offered(Before::Migrated),
        State::Resolving(Before::Setup),
    ] {
        assert_eq!(step(state, Event::Force), (state, Actions::NONE));
        assert_eq!(step(state, Event::Forced), (state, Actions::NONE));
    }
}

#[test]
fn armed_again() {
    let (state, actions) = after(&[
        Event::PathMig,
        Event::Seek,
        Event::Offer,
        Event::Rearmed,
        Event::Sampled(PathMigState::Rearm),
        Event::Sampled(PathMigState::Armed),
        Event::PathMig,
    ]);
    assert_eq!(state, State::Migrated(Reason::NotRearmed));
    let twice = [
        Action::FollowCm,
        Action::Seek,
        Action::FollowCm,
        Action::Seek,
    ];
    assert_eq!(actions, twice);
}

#[test]
fn why_it_is_not_armed_again() {
    let steps = [
        (Event::PathMig, State::Migrated(Reason::NotRearmed)),
        (Event::Seek, State::Resolving(Before::Migrated)),
        (
            Event::NoAlternate(Reason::PortDown),
            State::Migrated(Reason::PortDown),
        ),
        (
            Event::NotRearmed(Reason::RearmBackoff),
            State::Migrated(Reason::RearmBackoff),
        ),
        (Event::Seek, State::Resolving(Before::Migrated)),
        (Event::Offer, State::Offered(Before::Migrated)),
        // A second event of the same migration, late.
        (Event::PathMig, State::Offered(Before::Migrated)),
        (
            Event::NotRearmed(Reason::PeerRejected(5)),
            State::Migrated(Reason::PeerRejected(5)),
        ),
        (Event::PathMig, State::Migrated(Reason::PeerRejected(5))),
    ];
    let (mut state, _) = after(&[]);
    let mut actions = Vec::new();
    for (event, expected) in steps {
        let (next, todo) = step(state, event);
        assert_eq!(next, expected, "{event:?}");
        assert_eq!(next.reason(), expected.reason());
        state = next;
        actions.extend(todo.iter());
    }
    assert_eq!(actions, [Action::FollowCm, Action::Seek]);
}

#[test]
fn an_alternate_after_the_fact() {
    // Connected without: subnet administration was late.
    let (state, _) = run(&[
        Event::Resolve,
        Event::NoAlternate(Reason::SaTimeout),
        Event::Seek,
        Event::Offer,
        Event::NotRearmed(Reason::PeerTimeout),
    ]);
    assert_eq!(state, State::Unprotected(Reason::PeerTimeout));
    let (state, _) = run(&[
        Event::Excluded(Reason::NotOffered),
        Event::Rearmed,
        Event::Sampled(PathMigState::Armed),
    ]);
    assert_eq!(state, State::Armed);
}

#[test]
fn what_is_not_served_stays_so() {
    for event in [Event::Seek, Event::Rearmed, Event::Loaded] {
        let (state, _) = run(&[Event::Excluded(Reason::UlpExcluded), event]);
        assert_eq!(state, State::Unprotected(Reason::UlpExcluded), "{event:?}");
    }
}

#[test]
fn a_better_alternate() {
    let (state, _) = after(&[Event::Offer]);
    assert_eq!(state, State::Offered(Before::Loaded));
    // It has the old one as long as the offer is out.
    assert_eq!(step(state, Event::PathMig).1, MIGRATION);
    assert_eq!(
        step(state, Event::Force),
        (state, Actions::of(&[Action::Force]))
    );
    let (state, _) = step(state, Event::NotRearmed(Reason::PeerTimeout));
    assert_eq!(state, State::Arming(Load::Done));
    let (state, _) = step(state, Event::Sampled(PathMigState::Armed));
    assert_eq!(state, State::Armed);
}

#[test]
fn a_useless_alternate() {
    let (state, actions) = after(&[Event::PathMigErr, Event::Seek]);
    assert_eq!(state, State::Resolving(Before::Loaded));
    assert_eq!(actions, [Action::Seek]);
}

#[test]
fn what_a_ulp_made_of_its_attributes_is_not_known() {
    let (state, actions) = run(&[
        Event::Offer,
        Event::Loaded,
        Event::Sampled(PathMigState::Migrated),
    ]);
    assert_eq!((state, actions), (State::Arming(Load::Handed), vec![]));
    let (_, actions) = run(&[
        Event::Offer,
        Event::Loaded,
        Event::Sampled(PathMigState::Rearm),
        Event::Sampled(PathMigState::Migrated),
    ]);
    assert_eq!(actions, [Action::FollowCm, Action::Seek]);
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Excluded(Reason::Roce)),
        Just(Event::Resolve),
        Just(Event::NoAlternate(Reason::SaTimeout)),
        Just(Event::Offer),
        Just(Event::Refused(18)),
        Just(Event::NotAccepted(1)),
        Just(Event::Loaded),
        Just(Event::Sampled(PathMigState::Migrated)),
        Just(Event::Sampled(PathMigState::Rearm)),
        Just(Event::Sampled(PathMigState::Armed)),
        Just(Event::PathMig),
        Just(Event::PathMigErr),
        Just(Event::Force),
        Just(Event::Forced),
        Just(Event::ForceFailed),
        Just(Event::Seek),
        Just(Event::Rearmed),
        Just(Event::NotRearmed(Reason::RearmBackoff)),
        Just(Event::Close),
    ]
}

proptest! {
    /// In whatever order things happen: no more than one resend of a REQ, no armed connection whose QP was not
    /// seen armed, no migration of a QP that nothing was loaded into, and closed stays closed.
    #[test]
    fn any_order(events in prop::collection::vec(event(), 0..24)) {
        let (state, actions) = run(&events);
        let count = |action| actions.iter().filter(|a| **a == action).count();
        let offers = events.iter().filter(|e| **e == Event::Offer).count();
        prop_assert!(count(Action::Resend) <= offers);
        let loads = |e: &&Event| matches!(e, Event::Loaded | Event::Rearmed);
        prop_assert!(count(Action::FollowCm) <= events.iter().filter(loads).count());
        if state == State::Armed {
            prop_assert!(events.contains(&Event::Sampled(PathMigState::Armed)));
        }
        if events.contains(&Event::Close) {
            prop_assert_eq!(state, State::Closed);
        }
    }
}
