// SPDX-License-Identifier: GPL-2.0-only

//! Searching, offering, and what the peer answers.

use super::super::path::{Alternate, Key};
use super::super::reason::Reason;
use super::super::state;
use super::super::timers::cm_ms;
use super::{Action, Candidates, Phase, Rearm, Step, Trust, MAX_CANDIDATES};
use crate::wire::cm::lap::Status;

/// Offers never answered, and time since the first, before the peer is taken for one without LAP.
const DEAF_OFFERS: u8 = 3;
const DEAF_MS: u64 = 30_000;
/// An MRA prolongs the wait for an APR by so much at most, and so many of one offer are heeded.
const MAX_MRA_MS: u64 = 120_000;
const MAX_MRAS: u8 = 4;

impl Rearm {
    /// Whether the connection has an alternate as long as it looks for another one.
    pub(super) fn is_protected(&self) -> bool {
        self.loaded.is_some() && self.trust == Trust::Good
    }

    pub(super) fn seek(&mut self) -> Step {
        self.phase = Phase::Seeking;
        self.kicked = false;
        let better = self.is_protected();
        Step {
            action: Action::Search { better },
            // One that is armed stays so unless there is a better alternate.
            event: (!better).then_some(state::Event::Seek),
        }
    }

    pub(super) fn found(&mut self, candidates: Candidates, now: u64, jitter: u32) -> Step {
        if self.phase != Phase::Seeking {
            return Step::NOTHING;
        }
        self.candidates = candidates;
        if let (true, Some((_, has))) = (self.is_protected(), self.loaded) {
            self.candidates.retain(|a| a.disjoint < has);
        }
        self.offer_next(Reason::NoAlternateInSa, now, jitter)
    }

    pub(super) fn not_found(&mut self, reason: Reason, now: u64, jitter: u32) -> Step {
        if self.phase != Phase::Seeking {
            return Step::NOTHING;
        }
        self.candidates = Candidates::default();
        self.offer_next(reason, now, jitter)
    }

    /// Offers the next candidate; where there is none, waits, and `reason` says why.
    pub(super) fn offer_next(&mut self, reason: Reason, now: u64, jitter: u32) -> Step {
        let Some(alternate) = self.candidates.take(&self.failed) else {
            return self.give_up(reason, now, jitter);
        };
        self.tid = self.tid.wrapping_add(1);
        self.phase = Phase::Asking {
            alternate,
            tries: 1,
            mras: 0,
            until: now.saturating_add(self.times.lap_ms),
        };
        Step {
            action: Action::Send {
                tid: self.tid,
                alternate,
            },
            event: Some(state::Event::Offer),
        }
    }

    /// Nothing more to offer: waits, or goes on with the alternate that there is.
    pub(super) fn give_up(&mut self, reason: Reason, now: u64, jitter: u32) -> Step {
        self.candidates = Candidates::default();
        if !self.is_protected() {
            return self.wait(reason, now, jitter);
        }
        self.vain_searches = self.vain_searches.saturating_add(1);
        Step {
            event: Some(state::Event::NotRearmed(reason)),
            ..self.arming(now, Action::Sample)
        }
    }

    /// Puts a path at the end of the failed ones; the earliest makes room.
    pub(super) fn mark_failed(&mut self, key: Key) {
        let mut kept = [None; MAX_CANDIDATES];
        let others = self.failed.iter().flatten().filter(|k| **k != key);
        let skip = others
            .clone()
            .count()
            .saturating_sub(MAX_CANDIDATES.saturating_sub(1));
        for (slot, key) in kept.iter_mut().zip(others.skip(skip).chain([&key])) {
            *slot = Some(*key);
        }
        self.failed = kept;
    }

    pub(super) fn mra(&mut self, tid: u64, service_timeout: u8, now: u64) -> Step {
        let lap_ms = self.times.lap_ms;
        if let Phase::Asking { mras, until, .. } = &mut self.phase {
            if tid == self.tid && *mras < MAX_MRAS {
                *mras = mras.saturating_add(1);
                self.heard = true;
                let longer = cm_ms(service_timeout).min(MAX_MRA_MS);
                *until = (*until).max(now.saturating_add(longer).saturating_add(lap_ms));
            }
        }
        Step::NOTHING
    }

    pub(super) fn apr(&mut self, tid: u64, status: Status, now: u64, jitter: u32) -> Step {
        let alternate = match self.phase {
            Phase::Asking { alternate, .. } if tid == self.tid => Some(alternate),
            Phase::Telling { .. } if tid == self.tid => None,
            _ => return Step::NOTHING,
        };
        self.heard = true;
        self.unanswered = 0;
        let Some(alternate) = alternate else {
            // It has followed, or was there already.
            return match status {
                Status::LOADED | Status::SAME_AS_PRIMARY => self.peer_seen(now),
                _ => Step::NOTHING,
            };
        };
        if status == Status::LOADED {
            self.phase = Phase::Loading(alternate);
            return Action::Load(alternate).into();
        }
        self.mark_failed(alternate.key());
        let reason = Reason::PeerRejected(status.0);
        match status {
            // It takes this path for the one in use: it has not heard of the migration.
            Status::SAME_AS_PRIMARY if self.loaded.is_none() => {
                self.told = false;
                self.wait(reason, now, jitter)
            }
            // It would say so of any path.
            Status::INVALID_COMM_ID | Status::UNSUPPORTED => self.give_up(reason, now, jitter),
            _ => self.offer_next(reason, now, jitter),
        }
    }

    pub(super) fn is_deaf(&self, now: u64) -> bool {
        let long = now.saturating_sub(self.since) >= DEAF_MS;
        !self.heard && self.unanswered >= DEAF_OFFERS && long
    }

    /// Nothing has come back, from an offer or a notice: what that means.
    pub(super) fn silence(&mut self, now: u64) -> Reason {
        if self.unanswered == 0 {
            self.since = now;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        if self.is_deaf(now) {
            Reason::PeerWithoutLap
        } else {
            Reason::PeerTimeout
        }
    }

    pub(super) fn not_answered(&mut self, alternate: Alternate, now: u64, jitter: u32) -> Step {
        // The peer may have loaded it all the same.
        self.distrust(Trust::Bad);
        self.mark_failed(alternate.key());
        match self.silence(now) {
            Reason::PeerWithoutLap => self.give_up(Reason::PeerWithoutLap, now, jitter),
            reason => self.offer_next(reason, now, jitter),
        }
    }

    pub(super) fn load_done(&mut self, done: bool, now: u64, jitter: u32) -> Step {
        let Phase::Loading(alternate) = self.phase else {
            return Step::NOTHING;
        };
        if !done {
            self.distrust(Trust::Bad);
            self.mark_failed(alternate.key());
            return self.offer_next(Reason::RearmBackoff, now, jitter);
        }
        self.loaded = Some((alternate.key(), alternate.disjoint));
        self.trust = Trust::Good;
        self.armed_at = None;
        self.vain_searches = 0;
        Step {
            event: Some(state::Event::Rearmed),
            ..self.arming(now, Action::Nudge)
        }
    }
}
