// SPDX-License-Identifier: GPL-2.0-only

//! Before and after the offers: telling the peer, waiting, arming, and the passing of time.

use super::super::path::{Disjoint, Key};
use super::super::reason::Reason;
use super::super::state::{self, PathMigState};
use super::{sampling_ms, Action, Candidates, Phase, Rearm, Step, Times, Trust, MAX_CANDIDATES};

/// For so many of its intervals a REP must not have been repeated.
const QUIET_REPS: u64 = 2;
/// The first wait after a failure.
const BACKOFF_MS: u64 = 100;
/// The longest.
const MAX_BACKOFF_MS: u64 = 300_000;
/// A wait that was cut short still has so much left, for events come in swarms.
const KICK_MS: u64 = 100;
/// The shortest wait for such a peer, and what is left of it at least when it is cut short.
const DEAF_BACKOFF_MS: u64 = 60_000;
const DEAF_KICK_MS: u64 = 10_000;
/// A QP that was armed for less than this has not proved anything. Of migrations from there, one upon the
/// other, the first few are nothing special; after more than that arming again waits first.
pub(super) const PROVED_MS: u64 = 10_000;
const FREE_FLAPS: u8 = 2;
const MAX_FLAPS: u8 = 9;
/// So many nudges have completed and the QP is still in REARM: the peer has lost its part.
pub(super) const VAIN_NUDGES: u8 = 6;
/// From arming to the first search for a better alternate.
const BETTER_MS: u64 = 5_000;
/// The longest time between two of them.
const MAX_BETTER_MS: u64 = 60_000;

impl Rearm {
    pub(super) fn established(&mut self, loaded: Option<(Key, Disjoint)>, now: u64) -> Step {
        if self.not_before != u64::MAX {
            return Step::NOTHING;
        }
        self.quiet_from(now);
        if let Some(told) = self.early.take() {
            self.told = told;
            return self.begin(now);
        }
        self.loaded = loaded;
        if loaded.is_some() {
            // The ULP is likely to send something by itself.
            return self.arming(now, Action::None);
        }
        if let Phase::Waiting { until } = &mut self.phase {
            *until = self.not_before;
        }
        Step::NOTHING
    }

    pub(super) fn rep_again(&mut self, now: u64) -> Step {
        if self.not_before != u64::MAX {
            self.quiet_from(now);
        }
        Step::NOTHING
    }

    fn quiet_from(&mut self, now: u64) {
        self.not_before = now.saturating_add(self.times.rep_ms.saturating_mul(QUIET_REPS));
    }

    pub(super) fn wanted(&mut self, now: u64, jitter: u32) -> Step {
        match self.phase {
            _ if !self.active => Step::NOTHING,
            Phase::Idle => self.begin(now),
            Phase::Arming { .. } | Phase::Armed { .. } => {
                self.distrust(Trust::Bad);
                self.begin(now)
            }
            _ => self.kick(now, jitter),
        }
    }

    pub(super) fn served(&mut self, now: u64) -> Step {
        if self.active {
            return Step::NOTHING;
        }
        // Who sends a LAP has migrated, or knows that we have.
        self.told = true;
        self.armed_at = None;
        self.arming(now, Action::None)
    }

    /// The alternate in the QP is not what it should be. It comes last when another one is chosen.
    pub(super) fn distrust(&mut self, trust: Trust) {
        if let Some((key, _)) = self.loaded {
            self.trust = trust;
            self.mark_failed(key);
        }
    }

    pub(super) fn migrated(&mut self, told: bool, now: u64, jitter: u32) -> Step {
        if self.not_before == u64::MAX {
            self.early = Some(told);
            return Step::NOTHING;
        }
        let armed_at = self.armed_at.take();
        self.flaps = if armed_at.is_some_and(|at| now.saturating_sub(at) >= PROVED_MS) {
            0
        } else {
            self.flaps.saturating_add(1).min(MAX_FLAPS)
        };
        self.attempt = self.flaps.saturating_sub(FREE_FLAPS);
        self.loaded = None;
        self.trust = Trust::Good;
        self.candidates = Candidates::default();
        self.failed = [None; MAX_CANDIDATES];
        self.vain_searches = 0;
        self.kicked = false;
        self.told = told;
        if self.attempt > 0 {
            return self.wait(Reason::RearmBackoff, now, jitter);
        }
        self.begin(now)
    }

    /// Begins with what has to come first.
    pub(super) fn begin(&mut self, now: u64) -> Step {
        if !self.told {
            return self.tell(1, now);
        }
        if self.active && now < self.not_before {
            self.phase = Phase::Waiting {
                until: self.not_before,
            };
            return Step::NOTHING;
        }
        if !self.active {
            self.phase = Phase::Idle;
            return Step::NOTHING;
        }
        self.seek()
    }

    pub(super) fn tell(&mut self, tries: u8, now: u64) -> Step {
        let wait = self.times.exhaustion_ms.max(self.times.lap_ms);
        self.phase = Phase::Telling {
            posted: true,
            tries,
            asked: false,
            until: now.saturating_add(wait),
        };
        self.tid = self.tid.wrapping_add(1);
        Action::Tell { tid: self.tid }.into()
    }

    pub(super) fn no_nudge(&mut self, now: u64) -> Step {
        let lap_ms = self.times.lap_ms;
        if let Phase::Telling { posted, until, .. } = &mut self.phase {
            *posted = false;
            *until = now.saturating_add(lap_ms);
        }
        Step::NOTHING
    }

    pub(super) fn peer_seen(&mut self, now: u64) -> Step {
        self.told = true;
        match self.phase {
            Phase::Telling { .. } => self.begin(now),
            _ => Step::NOTHING,
        }
    }

    pub(super) fn nudged(&mut self, now: u64) -> Step {
        if let Phase::Arming { vain, .. } = &mut self.phase {
            *vain = vain.saturating_add(1);
            return Action::Sample.into();
        }
        self.peer_seen(now)
    }

    pub(super) fn wait(&mut self, reason: Reason, now: u64, jitter: u32) -> Step {
        let (least, kick) = match reason {
            Reason::PeerWithoutLap => (DEAF_BACKOFF_MS, DEAF_KICK_MS),
            _ => (BACKOFF_MS, KICK_MS),
        };
        let full = doubled(BACKOFF_MS, self.attempt, MAX_BACKOFF_MS).max(least);
        self.attempt = self.attempt.saturating_add(1);
        let mut until = now.saturating_add(spread(full, jitter));
        if core::mem::take(&mut self.kicked) {
            until = until.min(now.saturating_add(kick));
        }
        self.phase = Phase::Waiting {
            until: until.max(self.not_before),
        };
        Step {
            action: Action::None,
            event: Some(state::Event::NotRearmed(reason)),
        }
    }

    pub(super) fn kick(&mut self, now: u64, jitter: u32) -> Step {
        let left = if self.is_deaf(now) {
            DEAF_KICK_MS
        } else {
            // What failed before says nothing any more.
            self.attempt = 0;
            KICK_MS
        };
        let soon = now.saturating_add(spread(left, jitter));
        match &mut self.phase {
            Phase::Waiting { until } => *until = (*until).min(soon.max(self.not_before)),
            Phase::Armed { until } => {
                self.vain_searches = 0;
                *until = until.map(|until| until.min(soon));
            }
            _ => self.kicked = true,
        }
        Step::NOTHING
    }

    pub(super) fn arming(&mut self, now: u64, action: Action) -> Step {
        self.phase = Phase::Arming {
            looks: 0,
            vain: 0,
            asked: false,
            until: now.saturating_add(sampling_ms(0)),
        };
        action.into()
    }

    pub(super) fn sampled(&mut self, mig: PathMigState, now: u64, jitter: u32) -> Step {
        match (&mut self.phase, mig) {
            // The nudge is out for longer than the HCA repeats a packet, and the QP lives.
            (Phase::Telling { asked: true, .. }, PathMigState::Migrated) => self.peer_seen(now),
            (Phase::Arming { .. }, PathMigState::Armed) => self.armed(now, jitter),
            (Phase::Waiting { .. } | Phase::Seeking, PathMigState::Armed)
                if self.loaded.is_some() && self.trust == Trust::Late =>
            {
                self.trust = Trust::Good;
                self.armed(now, jitter)
            }
            (
                Phase::Arming {
                    looks, vain, asked, ..
                },
                PathMigState::Rearm,
            ) => {
                if self.active && *vain >= VAIN_NUDGES && *looks >= VAIN_NUDGES {
                    self.distrust(Trust::Late);
                    return self.wait(Reason::WaitingForTraffic, now, jitter);
                }
                match core::mem::take(asked) {
                    true => Action::Nudge.into(),
                    false => Step::NOTHING,
                }
            }
            (Phase::Armed { .. }, PathMigState::Rearm) => self.arming(now, Action::None),
            _ => Step::NOTHING,
        }
    }

    pub(super) fn armed(&mut self, now: u64, jitter: u32) -> Step {
        self.armed_at.get_or_insert(now);
        self.attempt = 0;
        let best = !self.active || self.loaded.is_none_or(|(_, d)| d == Disjoint::Ports);
        let wait = doubled(BETTER_MS, self.vain_searches, MAX_BETTER_MS);
        let until = (!best).then(|| now.saturating_add(spread(wait, jitter)));
        self.phase = Phase::Armed { until };
        if core::mem::take(&mut self.kicked) {
            return self.kick(now, jitter);
        }
        Step::NOTHING
    }

    pub(super) fn tick(&mut self, now: u64, jitter: u32) -> Step {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Step::NOTHING;
        }
        let Times {
            lap_ms,
            lap_retries,
            ..
        } = self.times;
        let later = now.saturating_add(lap_ms);
        match &mut self.phase {
            Phase::Telling {
                posted: true,
                asked,
                until,
                ..
            } => {
                *asked = true;
                *until = later;
                Action::Sample.into()
            }
            Phase::Telling { tries, .. } => {
                let tries = *tries;
                if tries <= lap_retries {
                    return self.tell(tries.saturating_add(1), now);
                }
                let reason = self.silence(now);
                self.wait(reason, now, jitter)
            }
            Phase::Waiting { .. } => self.begin(now),
            Phase::Armed { .. } => self.seek(),
            Phase::Arming {
                looks,
                asked,
                until,
                ..
            } => {
                *looks = looks.saturating_add(1);
                *until = now.saturating_add(sampling_ms(*looks));
                *asked = true;
                Action::Sample.into()
            }
            Phase::Asking {
                alternate,
                tries,
                until,
                ..
            } => {
                let alternate = *alternate;
                if *tries > lap_retries {
                    return self.not_answered(alternate, now, jitter);
                }
                *tries = tries.saturating_add(1);
                *until = later;
                Action::Send {
                    tid: self.tid,
                    alternate,
                }
                .into()
            }
            _ => Step::NOTHING,
        }
    }
}

/// `ms` doubled `n` times, but not above `most`.
fn doubled(ms: u64, n: u8, most: u64) -> u64 {
    let factor = 1u64 << u32::from(n.min(20));
    ms.saturating_mul(factor).min(most)
}

/// Somewhere between half of `ms` and all of it.
fn spread(ms: u64, jitter: u32) -> u64 {
    let part = (ms / 2).saturating_mul(u64::from(jitter)) >> 32;
    ms.saturating_sub(part)
}
