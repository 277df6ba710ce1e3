// SPDX-License-Identifier: GPL-2.0-only

//! The life of a connection.
//!
//! ```text
//!             Resolve          Offer           Loaded          Sampled(Armed)
//! Unprotected ──────▶ Resolving ────▶ Offered ───────▶ Arming ───────────────▶ Armed
//!      ▲                 │              │                │                       │
//!      └─────────────────┴──────────────┘                └────── PathMig ────────┴──▶ Migrated
//!        NoAlternate, Refused, NotAccepted, Excluded
//! ```
//!
//! [`step`] is the only place where a connection's state changes. An event that makes no sense in a
//! state changes nothing: events come from hardware and from the peer, late, twice or not at all.

use super::reason::Reason;
use core::fmt;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// One path only, and why.
    Unprotected(Reason),
    /// An alternate path is being looked for; the REQ is held back for it.
    Resolving,
    /// The REQ names an alternate path; no QP knows it yet.
    Offered,
    /// The alternate path is loaded and the QP is in REARM, or on its way there. No protection yet.
    Arming,
    /// The QP was seen in ARMED.
    Armed,
    /// The alternate path is the path in use; none is loaded behind it.
    Migrated,
    /// Disconnecting, or gone.
    Closed,
}

/// `path_mig_state` of a QP, as `ib_query_qp` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathMigState {
    /// The path in use has no alternate behind it.
    Migrated,
    /// Software asked for protection, the peer has not yet.
    Rearm,
    /// The HCA changes paths by itself.
    Armed,
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// It is not served.
    Excluded(Reason),
    /// The search for an alternate begins.
    Resolve,
    /// The search found nothing to offer.
    NoAlternate(Reason),
    /// The REQ names an alternate: sent by the active side, seen by the passive side.
    Offer,
    /// The peer answered the REQ with a REJ (of this reason) because of the alternate.
    Refused(u8),
    /// The peer's REP says that it does not use the alternate (`failover_accepted`).
    NotAccepted(u8),
    /// The attributes that take the QP to RTS with the alternate and REARM were handed to the ULP.
    Loaded,
    /// The QP, in RTS, was asked for its state.
    Sampled(PathMigState),
    /// The HCA reports IB_EVENT_PATH_MIG.
    PathMig,
    /// A disconnect, an error or the destruction of the cm_id.
    Close,
}

/// What is to be done after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    None,
    /// Send the same REQ without the alternate and keep the REJ from the ULP.
    Resend,
    /// Bring the CM's address vector along (`ib_cm_notify`) and count the migration.
    FollowCm,
}

impl State {
    /// What a connection is before anything is known about it.
    pub(crate) const NEW: Self = Self::Unprotected(Reason::CmState);

    /// Why the connection is not protected; `None` where it is, or may still become so.
    pub(crate) fn reason(self) -> Option<Reason> {
        match self {
            Self::Unprotected(reason) => Some(reason),
            Self::Arming => Some(Reason::WaitingForTraffic),
            Self::Migrated => Some(Reason::NotRearmed),
            Self::Resolving | Self::Offered | Self::Armed | Self::Closed => None,
        }
    }

    /// Whether a QP of this connection may be given the alternate that the CM knows.
    pub(crate) fn keeps_alternate(self) -> bool {
        matches!(
            self,
            Self::Offered | Self::Arming | Self::Armed | Self::Migrated
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unprotected(_) => "Unprotected",
            Self::Resolving => "Resolving",
            Self::Offered => "Offered",
            Self::Arming => "Arming",
            Self::Armed => "Armed",
            Self::Migrated => "Migrated",
            Self::Closed => "Closed",
        })
    }
}

/// The next state, and what to do about it.
pub(crate) fn step(state: State, event: Event) -> (State, Action) {
    use {Event as E, State as S};

    match (state, event) {
        (S::Closed, _) => (S::Closed, Action::None),
        (_, E::Close) => (S::Closed, Action::None),

        (S::Unprotected(_), E::Resolve) => (S::Resolving, Action::None),
        (S::Unprotected(_) | S::Resolving, E::Offer) => (S::Offered, Action::None),
        (S::Resolving, E::NoAlternate(reason)) => (S::Unprotected(reason), Action::None),
        (S::Unprotected(_) | S::Resolving | S::Offered, E::Excluded(reason)) => {
            (S::Unprotected(reason), Action::None)
        }

        (S::Offered, E::Refused(reason)) => {
            (S::Unprotected(Reason::PeerRejected(reason)), Action::Resend)
        }
        // The QP has not seen the alternate yet: it goes to RTR after the REP.
        (S::Offered, E::NotAccepted(status)) => {
            (S::Unprotected(Reason::PeerRejected(status)), Action::None)
        }
        (S::Offered, E::Loaded) => (S::Arming, Action::None),

        (S::Arming | S::Armed, E::Sampled(PathMigState::Armed)) => (S::Armed, Action::None),
        (S::Arming | S::Armed, E::Sampled(PathMigState::Rearm)) => (S::Arming, Action::None),
        // Only an armed QP migrates; one that was armed and is not any more has done so, whether or
        // not an event told us.
        (S::Armed, E::Sampled(PathMigState::Migrated)) => (S::Migrated, Action::FollowCm),
        (S::Arming | S::Armed, E::PathMig) => (S::Migrated, Action::FollowCm),

        (
            state,
            E::Excluded(_)
            | E::Resolve
            | E::NoAlternate(_)
            | E::Offer
            | E::Refused(_)
            | E::NotAccepted(_)
            | E::Loaded
            | E::Sampled(_)
            | E::PathMig,
        ) => (state, Action::None),
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(events: &[Event]) -> (State, Vec<Action>) {
        let mut state = State::NEW;
        let mut actions = Vec::new();
        for event in events {
            let (next, action) = step(state, *event);
            state = next;
            if action != Action::None {
                actions.push(action);
            }
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
        assert_eq!(state, State::Migrated);
        assert_eq!(actions, [Action::FollowCm]);
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
        assert_eq!(actions, [Action::FollowCm]);
    }

    #[test]
    fn a_migration_without_event_is_found() {
        let (state, actions) = run(&[
            Event::Offer,
            Event::Loaded,
            Event::Sampled(PathMigState::Armed),
            Event::Sampled(PathMigState::Migrated),
        ]);
        assert_eq!((state, actions.len()), (State::Migrated, 1));
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
            Just(Event::Close),
        ]
    }

    proptest! {
        /// In whatever order things happen: one migration at most, one resend at most, no armed
        /// connection whose QP was not seen armed, and closed stays closed.
        #[test]
        fn any_order(events in prop::collection::vec(event(), 0..24)) {
            let (state, actions) = run(&events);
            prop_assert!(actions.iter().filter(|a| **a == Action::FollowCm).count() <= 1);
            if state == State::Armed {
                prop_assert!(events.contains(&Event::Sampled(PathMigState::Armed)));
            }
            if events.contains(&Event::Close) {
                prop_assert_eq!(state, State::Closed);
            }
            if actions.contains(&Action::FollowCm) {
                prop_assert!(events.contains(&Event::Loaded));
            }
        }
    }
}
