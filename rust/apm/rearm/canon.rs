// SPDX-License-Identifier: GPL-2.0-only

//! The machine without what only makes waits longer or shorter, for a model in which anything may take any
//! time: two machines that will do the same are then equal.

use super::flow::PROVED_MS;
use super::{Phase, Rearm};

/// The time of a model: it stands still, between steps.
pub(crate) const NOW: u64 = 1 << 40;
/// When everything is due that is waited for.
pub(crate) const LATER: u64 = NOW + 1;

/// The most looks at a QP in REARM, and nudges in vain, that make a difference.
const LOOKS: u8 = super::flow::VAIN_NUDGES;
/// The most tries in vain that are told from each other.
const ATTEMPTS: u8 = 1;

impl Rearm {
    /// Its last transaction id.
    pub(crate) fn tid(&self) -> u64 {
        self.tid
    }

    /// Whether an alternate is being offered to the peer, or about to be loaded.
    pub(crate) fn is_offering(&self) -> bool {
        matches!(self.phase, Phase::Asking { .. } | Phase::Loading(_))
    }

    /// Whether the peer is being told of a migration.
    pub(crate) fn is_telling(&self) -> bool {
        matches!(self.phase, Phase::Telling { .. })
    }

    /// Whether the alternate in the QP is taken for the one that the peer has.
    pub(crate) fn trusts(&self) -> bool {
        self.trust == super::Trust::Good
    }

    /// What it is at.
    pub(crate) fn phase(&self) -> String {
        let phase = format!("{:?}", self.phase);
        let end = phase.find([' ', '(']).unwrap_or(phase.len());
        phase[..end].to_owned()
    }

    /// Makes the time [`NOW`] of whatever it was; `tid` is what the transaction id is from here on.
    pub(crate) fn canonical(&mut self, tid: u64) {
        let due = |until: &mut u64| {
            if *until != u64::MAX {
                *until = LATER;
            }
        };
        match &mut self.phase {
            Phase::Telling { until, .. } | Phase::Waiting { until } => due(until),
            Phase::Asking { until, .. } => due(until),
            Phase::Arming {
                looks, vain, until, ..
            } => {
                *looks = (*looks).min(LOOKS);
                *vain = (*vain).min(LOOKS);
                due(until);
            }
            Phase::Armed { until } => {
                if let Some(until) = until {
                    due(until);
                }
            }
            Phase::Idle | Phase::Seeking | Phase::Loading(_) | Phase::Closed => {}
        }
        if self.not_before != u64::MAX {
            self.not_before = if self.not_before > NOW { LATER } else { 0 };
        }
        self.tid = tid;
        self.attempt = self.attempt.min(ATTEMPTS);
        self.armed_at = self.armed_at.map(|_| NOW - PROVED_MS + 1);
        // A peer is not taken for deaf: that only makes waits longer.
        self.unanswered = 0;
        self.since = 0;
        self.flaps = 0;
        self.vain_searches = 0;
        self.kicked = false;
        if self.active {
            return;
        }
        // The passive side never looks at these.
        self.attempt = 0;
        self.failed = Default::default();
    }
}
