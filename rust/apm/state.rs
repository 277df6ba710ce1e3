// SPDX-License-Identifier: GPL-2.0-only

//! The life of a connection.
//!
//! ```text
//!             Resolve          Offer           Loaded          Sampled(Armed)
//! Unprotected ──────▶ Resolving ────▶ Offered ───────▶ Arming ───────────────▶ Armed
//!   ▲   │                 ▲   │         │   │            ▲  │                    │
//!   │   └──── Seek ───────┤   │         │   └─ Rearmed ──┘  │ PathMig, Forced,   │
//!   │                     │   │         │                   │ Sampled(Migrated)  │
//!   │              Seek   │   │         │                   ▼                    │
//!   │       Migrated ─────┘   │         │                Migrated ◀──────────────┘
//!   └─────────────────────────┴─────────┘
//!     NoAlternate, Refused, NotAccepted, Excluded, NotRearmed: back to what it was before
//! ```
//!
//! The passive side does not search: its part of re-arming is one event, `Rearmed`, from wherever it is.
//!
//! [`step`] is the only place where a connection's state changes. An event that makes no sense in a
//! state changes nothing: events come from hardware and from the peer, late, twice or not at all.

use super::reason::Reason;
use core::fmt;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// One path only, and why.
    Unprotected(Reason),
    /// An alternate path is being looked for; at set-up the REQ is held back for it.
    Resolving(Before),
    /// REQ or LAP name an alternate path; no QP here knows it yet.
    Offered(Before),
    /// The alternate path is loaded and the QP is in REARM, or on its way there. No protection yet.
    Arming(Load),
    /// The QP was seen in ARMED.
    Armed,
    /// The alternate path is the path in use; none is loaded behind it, and why.
    Migrated(Reason),
    /// Disconnecting, or gone.
    Closed,
}

/// What a connection was before an alternate was looked for, and is again if none is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Before {
    /// It is being set up.
    Setup,
    /// Established, with one path.
    Unprotected,
    /// It has migrated.
    Migrated,
    /// The QP has an alternate; another one would be better. It may migrate to the one it has.
    Loaded,
}

/// What is known of an alternate path of which it is not known that it protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Load {
    /// Handed to the ULP as attributes for its QP.
    Handed,
    /// In the QP, which is in REARM at least.
    Done,
}

/// `path_mig_state` of a QP, as `ib_query_qp` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PathMigState {
    /// The path in use has no alternate behind it.
    Migrated,
    /// Software asked for protection, the peer has not yet.
    Rearm,
    /// The HCA changes paths by itself.
    Armed,
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// It is not served.
    Excluded(Reason),
    /// The search for an alternate to be named in the REQ begins.
    Resolve,
    /// A search found nothing to offer.
    NoAlternate(Reason),
    /// REQ or LAP name an alternate: sent by the active side; a REQ seen by the passive side.
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
    /// The HCA reports IB_EVENT_PATH_MIG_ERR: the alternate is of no use.
    PathMigErr,
    /// It is to leave the path in use: the port is down, the peer has migrated, or by command.
    Force,
    /// The QP was told to migrate, and did.
    Forced,
    /// The QP refused to migrate.
    ForceFailed,
    /// The search for an alternate of an established connection begins.
    Seek,
    /// The alternate of a LAP was loaded into the QP, with REARM.
    Rearmed,
    /// For now no alternate comes by LAP.
    NotRearmed(Reason),
    /// A disconnect, an error or the destruction of the cm_id.
    Close,
}

/// One thing that is to be done after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Action {
    /// Send the same REQ without the alternate and keep the REJ from the ULP.
    Resend = 1,
    /// A migration: the alternate is the path in use from here on. Count it, and bring the CM's address
    /// vector along. Comes once for each migration, however often that is heard of.
    FollowCm = 2,
    /// Command the QP to MIGRATED; then `Forced` or `ForceFailed`.
    Force = 4,
    /// Ask the QP for its state (`Sampled`); where that brought `Armed` and it was `Force` that asked,
    /// that again, once.
    Sample = 8,
    /// Tell the peer of the migration: a nudge, or a notice by LAP where none can be posted.
    TellPeer = 16,
    /// Active side: begin to look for another alternate. The passive side waits for the peer's LAP.
    Seek = 32,
}

impl Action {
    const ALL: [Self; 6] = [
        Self::Resend,
        Self::FollowCm,
        Self::Force,
        Self::Sample,
        Self::TellPeer,
        Self::Seek,
    ];
}

/// What is to be done after a step, in the order of [`Action`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Actions(u8);

impl Actions {
    /// Nothing.
    pub(crate) const NONE: Self = Self(0);

    const fn of(actions: &[Action]) -> Self {
        let mut bits = 0;
        let mut rest = actions;
        while let [first, tail @ ..] = rest {
            bits |= *first as u8;
            rest = tail;
        }
        Self(bits)
    }

    /// Whether this is to be done.
    pub(crate) fn has(self, action: Action) -> bool {
        self.0 & action as u8 != 0
    }

    /// One after the other.
    pub(crate) fn iter(self) -> impl Iterator<Item = Action> {
        Action::ALL.into_iter().filter(move |a| self.has(*a))
    }
}

impl fmt::Debug for Actions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The HCA or the peer has changed paths.
const MIGRATION: Actions = Actions::of(&[Action::FollowCm, Action::Seek]);
/// We have.
const FORCED: Actions = Actions::of(&[Action::FollowCm, Action::TellPeer, Action::Seek]);

impl State {
    /// What a connection is before anything is known about it.
    pub(crate) const NEW: Self = Self::Unprotected(Reason::CmState);

    /// Why the connection is not protected; `None` where it is, or may still become so.
    pub(crate) fn reason(self) -> Option<Reason> {
        match self {
            Self::Unprotected(reason) | Self::Migrated(reason) => Some(reason),
            Self::Arming(_) => Some(Reason::WaitingForTraffic),
            Self::Resolving(_) | Self::Offered(_) | Self::Armed | Self::Closed => None,
        }
    }

    /// Whether a QP of this connection may be given the alternate that the CM knows.
    pub(crate) fn keeps_alternate(self) -> bool {
        match self {
            Self::Offered(_) | Self::Arming(_) | Self::Armed | Self::Migrated(_) => true,
            Self::Resolving(before) => before != Before::Setup,
            Self::Unprotected(_) | Self::Closed => false,
        }
    }

    /// Whether it is known which path a QP uses that says this of itself. One that was handed an alternate
    /// and is in MIGRATED has migrated, of which an event will tell, or its ULP has left the alternate out.
    pub(crate) fn knows_path(self, mig: PathMigState) -> bool {
        (self, mig) != (Self::Arming(Load::Handed), PathMigState::Migrated)
    }

    /// Whether the QP has an alternate that it can migrate to, as far as is known.
    pub(crate) fn may_migrate(self) -> bool {
        matches!(
            self,
            Self::Arming(_)
                | Self::Armed
                | Self::Resolving(Before::Loaded)
                | Self::Offered(Before::Loaded)
        )
    }

    /// What it is if nothing comes of a search or an offer.
    fn back(before: Before, reason: Reason) -> Self {
        match before {
            Before::Setup | Before::Unprotected => Self::Unprotected(reason),
            Before::Migrated => Self::Migrated(reason),
            Before::Loaded => Self::Arming(Load::Done),
        }
    }

    /// What it is before a search for an established connection; `None` where there is none to begin.
    fn before(self) -> Option<Before> {
        match self {
            Self::Unprotected(reason) if reason.may_pass() => Some(Before::Unprotected),
            Self::Migrated(_) => Some(Before::Migrated),
            Self::Arming(_) | Self::Armed => Some(Before::Loaded),
            Self::Resolving(before) | Self::Offered(before) if before != Before::Setup => {
                Some(before)
            }
            Self::Unprotected(_) | Self::Resolving(_) | Self::Offered(_) | Self::Closed => None,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unprotected(_) => "Unprotected",
            Self::Resolving(_) => "Resolving",
            Self::Offered(_) => "Offered",
            Self::Arming(_) => "Arming",
            Self::Armed => "Armed",
            Self::Migrated(_) => "Migrated",
            Self::Closed => "Closed",
        })
    }
}

/// The next state, and what to do about it.
pub(crate) fn step(state: State, event: Event) -> (State, Actions) {
    use {Event as E, State as S};

    let only = |action| Actions::of(&[action]);
    let migrated = S::Migrated(Reason::NotRearmed);
    match (state, event) {
        (S::Closed, _) => (S::Closed, Actions::NONE),
        (_, E::Close) => (S::Closed, Actions::NONE),

        // Setting up.
        (S::Unprotected(_), E::Resolve) => (S::Resolving(Before::Setup), Actions::NONE),
        (S::Unprotected(_) | S::Resolving(Before::Setup), E::Offer) => {
            (S::Offered(Before::Setup), Actions::NONE)
        }
        (S::Resolving(before), E::NoAlternate(reason)) => (S::back(before, reason), Actions::NONE),
        (S::Unprotected(_), E::Excluded(reason)) => (S::Unprotected(reason), Actions::NONE),
        (S::Resolving(before) | S::Offered(before), E::Excluded(reason)) => {
            (S::back(before, reason), Actions::NONE)
        }
        (S::Offered(Before::Setup), E::Refused(reason)) => (
            S::Unprotected(Reason::PeerRejected(reason)),
            only(Action::Resend),
        ),
        // The QP has not seen the alternate yet: it goes to RTR after the REP.
        (S::Offered(Before::Setup), E::NotAccepted(status)) => {
            (S::Unprotected(Reason::PeerRejected(status)), Actions::NONE)
        }
        (S::Offered(Before::Setup), E::Loaded) => (S::Arming(Load::Handed), Actions::NONE),

        // Arming and migrating.
        (S::Arming(_) | S::Armed, E::Sampled(PathMigState::Armed)) => (S::Armed, Actions::NONE),
        (S::Arming(_) | S::Armed, E::Sampled(PathMigState::Rearm)) => {
            (S::Arming(Load::Done), Actions::NONE)
        }
        // What a ULP makes of attributes that it was handed is not known.
        (S::Arming(Load::Handed), E::Sampled(PathMigState::Migrated)) => (state, Actions::NONE),
        // Only an armed QP migrates; one that was to be armed and is not any more has done so, whether or
        // not an event told us.
        (state, E::Sampled(PathMigState::Migrated) | E::PathMig) if state.may_migrate() => {
            (migrated, MIGRATION)
        }
        (state, E::Forced) if state.may_migrate() => (migrated, FORCED),
        // From REARM a QP is not to be commanded.
        (S::Arming(_), E::Force) => (state, only(Action::Sample)),
        (state, E::Force) if state.may_migrate() => (state, only(Action::Force)),
        (state, E::ForceFailed) if state.may_migrate() => (state, only(Action::Sample)),
        (state, E::PathMigErr) if state.may_migrate() => (state, only(Action::Seek)),

        // Arming again.
        (state, E::Seek) => match state.before() {
            Some(before) => (S::Resolving(before), Actions::NONE),
            None => (state, Actions::NONE),
        },
        (S::Resolving(_) | S::Migrated(_) | S::Arming(_) | S::Armed, E::Offer) => {
            match state.before() {
                Some(before) => (S::Offered(before), Actions::NONE),
                None => (state, Actions::NONE),
            }
        }
        (state, E::Rearmed) if state.before().is_some() => (S::Arming(Load::Done), Actions::NONE),
        (S::Unprotected(_), E::NotRearmed(reason)) => (S::Unprotected(reason), Actions::NONE),
        (S::Migrated(_), E::NotRearmed(reason)) => (S::Migrated(reason), Actions::NONE),
        (S::Resolving(before) | S::Offered(before), E::NotRearmed(reason))
            if before != Before::Setup =>
        {
            (S::back(before, reason), Actions::NONE)
        }

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
            | E::PathMig
            | E::PathMigErr
            | E::Force
            | E::Forced
            | E::ForceFailed
            | E::Rearmed
            | E::NotRearmed(_),
        ) => (state, Actions::NONE),
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#[path = "state_tests.rs"]
mod tests;

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#[path = "state_qp_tests.rs"]
mod qp_tests;
