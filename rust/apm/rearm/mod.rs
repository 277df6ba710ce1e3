// SPDX-License-Identifier: GPL-2.0-only

//! Arming a connection again, from a migration to ARMED.
//!
//! ```text
//!            Seek, Migrated                 Found              APR 0            Loaded
//! Idle ──▶ Telling ──▶ Waiting ──▶ Seeking ──────▶ Asking ──────────▶ Loading ─────────▶ Arming ──▶ Armed
//!             │ peer told  ▲          │ ▲             │ APR, unanswered  │ failed           │ a      │
//!             └────────────┼──────────┼─┘             │                  │                  │ better │
//!                          └──────────┴───────────────┴──────────────────┘                  │ one is │
//!                           nothing (more) to offer: backoff                                └────────┘ sought
//! ```
//!
//! The passive side tells the peer of a migration as well, and then waits for its LAP:
//!
//! ```text
//! Idle ──▶ Telling ──▶ Idle ──▶ Arming ──▶ Armed
//!  Migrated    peer told   Served
//! ```
//!
//! * No LAP before the peer knows of the migration: a peer that is still ARMED would load its own path in
//!   use as alternate. It knows when a nudge has completed, when it was seen on the new path, or when a
//!   nudge is outstanding for longer than the HCA repeats a packet, and the QP still lives.
//! * No LAP before the peer is through with setting up: while it repeats its REP, ib_cm would put the LAP's
//!   path into a QP that is not in RTS yet. The REP not having been repeated for twice its
//!   interval, the RTU has arrived.
//! * One candidate at a time, each offer with a transaction id of its own: an answer to an earlier one
//!   would load what the peer has replaced since. Candidates that were refused or not answered come last.
//! * ARMED is what the QP says, not what follows from an APR: an idle pair of QPs needs a nudge.
//! * It never ends: after a failure it waits, from 100 ms doubled up to five minutes; what happens to ports,
//!   subnet or peer cuts that short. A peer that has never answered is asked rarely from then on.
//! * A connection whose alternate shares a port with the path in use goes on looking for a better one.
//!
//! Time comes in as milliseconds of a clock that does not go back; [`Rearm::deadline`] says when to come
//! back with a [`Event::Tick`]. Early ticks do nothing.

use super::path::{Alternate, Disjoint, Key};
use super::reason::Reason;
use super::state::{self, PathMigState};
use super::timers::cm_ms;
use crate::wire::cm::lap::Status;

mod candidates;
mod flow;
mod offer;

pub(crate) use candidates::Candidates;

/// Candidates of one search.
pub(crate) const MAX_CANDIDATES: usize = 4;

/// How long to wait before a QP in REARM is looked at for the `n`-th time (from 0), in milliseconds: from
/// 10 ms doubled up to ten seconds. For both sides.
pub(crate) fn sampling_ms(n: u8) -> u64 {
    (10u64 << u32::from(n.min(10))).min(10_000)
}

/// The connection's times, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Times {
    /// From a LAP to its repetition.
    pub(crate) lap_ms: u64,
    /// How often it is repeated.
    pub(crate) lap_retries: u8,
    /// From a REP of the peer to its repetition.
    pub(crate) rep_ms: u64,
    /// The longest that the HCA takes to give up a packet, see [`super::timers::exhaustion_ms`].
    pub(crate) exhaustion_ms: u64,
}

impl Times {
    /// By the parameters of the REQ, as ib_cm computes with them. All but the last two are exponents:
    /// 4.096 us x 2^n.
    pub(crate) fn of_req(
        remote_cm_response_timeout: u8,
        local_cm_response_timeout: u8,
        packet_life_time: u8,
        max_cm_retries: u8,
        exhaustion_ms: u64,
    ) -> Self {
        let there_and_back = cm_ms(packet_life_time).saturating_mul(2);
        Self {
            lap_ms: cm_ms(remote_cm_response_timeout).saturating_add(there_and_back),
            lap_retries: max_cm_retries.min(15),
            rep_ms: cm_ms(local_cm_response_timeout).saturating_add(there_and_back),
            exhaustion_ms,
        }
    }
}

/// What happened.
// A quarter of a kilobyte for the one event that brings candidates; no allocation here.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// The QP is in RTS, the RTU on its way. With the alternate of the REQ, where it was accepted.
    Established(Option<(Key, Disjoint)>),
    /// The peer has repeated its REP.
    RepAgain,
    /// An alternate is wanted: there is none, or the one there is is of no use. Active side.
    Seek,
    /// The path of the peer's LAP was loaded, with REARM. Passive side.
    Served,
    /// The QP has migrated. `told`: it was the peer who did so first.
    Migrated {
        /// The peer is on the new path.
        told: bool,
    },
    /// A port, the subnet or the peer has changed: what failed may work now.
    Kick,
    /// A search is over.
    Found(Candidates),
    /// A search is over, in vain.
    NotFound(Reason),
    /// A nudge has completed without error, one that was posted after the last migration.
    Nudged,
    /// A nudge could not be posted. For `Tell` a notice was sent instead.
    NoNudge,
    /// The peer was seen on the path in use: a LAP or a notice came by it, or a notice names it.
    PeerSeen,
    /// An APR has arrived for this connection: the answer to a LAP or to a notice.
    Apr {
        /// Its transaction id.
        tid: u64,
        /// What it says.
        status: Status,
    },
    /// An MRA for a LAP has arrived.
    Mra {
        /// Its transaction id.
        tid: u64,
        /// 4.096 us x 2^n.
        service_timeout: u8,
    },
    /// The alternate was loaded into the QP, with REARM; or the HCA refused.
    Loaded(bool),
    /// The QP, in RTS, was asked for its state.
    Sampled(PathMigState),
    /// Time has passed.
    Tick,
    /// A disconnect, an error of the QP, or the end.
    Close,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// Nothing.
    None,
    /// Nudge the peer; then `Nudged`. Where that is not possible, send it a notice, a LAP of that kind for
    /// the path in use; then `NoNudge`, and later `Apr`.
    Tell {
        /// Transaction id of the notice.
        tid: u64,
    },
    /// Search for alternates to the path in use; then `Found` or `NotFound`. Not from a cache where a
    /// better one is sought.
    Search {
        /// There is one already.
        better: bool,
    },
    /// Send a LAP.
    Send {
        /// With this transaction id.
        tid: u64,
        /// For this path.
        alternate: Alternate,
    },
    /// Load the path into the QP, with REARM; then `Loaded`.
    Load(Alternate),
    /// Post a nudge, where none is outstanding and there is a slot; then `Nudged` or `NoNudge`.
    Nudge,
    /// Ask the QP for its state; then `Sampled`.
    Sample,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Step {
    /// What is to be done.
    pub(crate) action: Action,
    /// What happened to the connection, for [`state::step`]; to be applied before the action.
    pub(crate) event: Option<state::Event>,
}

impl Step {
    const NOTHING: Self = Self {
        action: Action::None,
        event: None,
    };
}

impl From<Action> for Step {
    fn from(action: Action) -> Self {
        Self {
            action,
            event: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Nothing to do.
    Idle,
    /// The peer is being told of the migration: by a nudge that was `posted`, or a notice.
    Telling {
        posted: bool,
        tries: u8,
        /// The QP is asked whether it still lives.
        asked: bool,
        until: u64,
    },
    /// Until the next try.
    Waiting { until: u64 },
    /// A search is on its way.
    Seeking,
    /// A LAP is out.
    Asking {
        alternate: Alternate,
        tries: u8,
        mras: u8,
        until: u64,
    },
    /// The peer has loaded the path, our QP is about to.
    Loading(Alternate),
    /// Both have.
    Arming {
        looks: u8,
        /// Nudges that have completed.
        vain: u8,
        /// The QP is asked for its state, and a nudge is due if it isn't ARMED.
        asked: bool,
        until: u64,
    },
    /// The QP was seen in ARMED.
    Armed { until: Option<u64> },
    /// Over.
    Closed,
}

/// What is thought of the alternate in the QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Trust {
    /// It protects, or will soon.
    Good,
    /// The QP does not become ARMED with it.
    Late,
    /// The peer may have another one, or there is no way to it.
    Bad,
}

/// One end of a connection, on its way to ARMED.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rearm {
    /// The active side: it searches and offers.
    active: bool,
    times: Times,
    phase: Phase,
    /// Transaction id of the last offer or notice.
    tid: u64,
    /// No LAP before that; `u64::MAX` until the connection is established.
    not_before: u64,
    /// The peer knows of the last migration.
    told: bool,
    /// A migration while the connection was set up, of which the peer knows or not.
    early: Option<bool>,
    candidates: Candidates,
    /// Refused or not answered, the earliest first.
    failed: [Option<Key>; MAX_CANDIDATES],
    /// What is in the QP.
    loaded: Option<(Key, Disjoint)>,
    trust: Trust,
    /// Tries in vain since the last success.
    attempt: u8,
    /// Migrations of a QP that had hardly been armed.
    flaps: u8,
    /// Something happened that may help, while there was no wait to cut short.
    kicked: bool,
    /// The peer has answered a LAP, ever.
    heard: bool,
    /// Offers not answered since it last did, and when the first of them was given up.
    unanswered: u8,
    since: u64,
    /// When the QP was first seen in ARMED with the alternate that it has.
    armed_at: Option<u64>,
    /// Searches for a better alternate in vain.
    vain_searches: u8,
}

impl Rearm {
    /// For the active side of a connection not yet established. LAPs have the transaction ids after `tid`,
    /// which is best chosen at random.
    pub(crate) fn active(times: Times, tid: u64) -> Self {
        Self {
            active: true,
            ..Self::passive(times, tid)
        }
    }

    /// The same for the passive side.
    pub(crate) fn passive(times: Times, tid: u64) -> Self {
        Self {
            active: false,
            times,
            phase: Phase::Idle,
            tid,
            not_before: u64::MAX,
            told: true,
            early: None,
            candidates: Candidates::default(),
            failed: [None; MAX_CANDIDATES],
            loaded: None,
            trust: Trust::Good,
            attempt: 0,
            flaps: 0,
            kicked: false,
            heard: false,
            unanswered: 0,
            since: 0,
            armed_at: None,
            vain_searches: 0,
        }
    }

    /// When a `Tick` is wanted; `None` where only events lead on.
    pub(crate) fn deadline(&self) -> Option<u64> {
        match self.phase {
            Phase::Telling { until, .. }
            | Phase::Waiting { until }
            | Phase::Asking { until, .. }
            | Phase::Arming { until, .. } => Some(until).filter(|until| *until != u64::MAX),
            Phase::Armed { until } => until,
            Phase::Idle | Phase::Seeking | Phase::Loading(_) | Phase::Closed => None,
        }
    }

    /// Whether a LAP of ours waits for its answer.
    #[cfg(test)]
    fn is_asking(&self) -> bool {
        matches!(self.phase, Phase::Asking { .. })
    }

    /// Whether the peer is known to have followed the last migration, if there was one.
    pub(crate) fn is_told(&self) -> bool {
        self.told
    }

    /// The alternate in the QP.
    #[cfg(test)]
    fn loaded(&self) -> Option<Key> {
        self.loaded.map(|(key, _)| key)
    }

    /// Whether the peer has ever answered a LAP.
    #[cfg(test)]
    fn heard(&self) -> bool {
        self.heard
    }

    /// Lets something happen at the time `now` (milliseconds); `jitter` is any number, evenly spread, so
    /// that connections do not act all at once.
    pub(crate) fn step(&mut self, event: Event, now: u64, jitter: u32) -> Step {
        if self.phase == Phase::Closed {
            return Step::NOTHING;
        }
        match event {
            Event::Close => {
                self.phase = Phase::Closed;
                Step::NOTHING
            }
            Event::Established(loaded) => self.established(loaded, now),
            Event::RepAgain => self.rep_again(now),
            Event::Seek => self.wanted(now, jitter),
            Event::Served => self.served(now),
            Event::Migrated { told } => self.migrated(told, now, jitter),
            Event::Kick => self.kick(now, jitter),
            Event::Found(candidates) => self.found(candidates, now, jitter),
            Event::NotFound(reason) => self.not_found(reason, now, jitter),
            Event::Nudged => self.nudged(now),
            Event::NoNudge => self.no_nudge(now),
            Event::PeerSeen => self.peer_seen(now),
            Event::Apr { tid, status } => self.apr(tid, status, now, jitter),
            Event::Mra {
                tid,
                service_timeout,
            } => self.mra(tid, service_timeout, now),
            Event::Loaded(done) => self.load_done(done, now, jitter),
            Event::Sampled(mig) => self.sampled(mig, now, jitter),
            Event::Tick => self.tick(now, jitter),
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests;

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod offer_tests;

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod sim_tests;

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod world;

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
pub(crate) mod canon;
