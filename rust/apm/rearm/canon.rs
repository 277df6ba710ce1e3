// SPDX-License-Identifier: GPL-2.0-only

//! The machine without what only makes waits longer or shorter, for a model in which anything may take any
//! time: two machines that will do the same are then equal.

use super::super::path::{Alternate, Disjoint, Key};
use super::{Candidates, Phase, Rearm};
use crate::wire::records::PathRecord;

/// The time of a model: it stands still, between steps.
pub(crate) const NOW: u64 = 1 << 40;
/// When everything is due that is waited for.
pub(crate) const LATER: u64 = NOW + 1;

/// Looks at a QP in REARM, and nudges in vain, that make a difference. The first one counts for all of them.
const LOOKS: u8 = super::flow::VAIN_NUDGES;

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

    /// Gives all paths that it knows other names.
    pub(crate) fn relabel(&mut self, new: impl Fn(&Alternate) -> Alternate) {
        if let Phase::Asking { alternate, .. } | Phase::Loading(alternate) = &mut self.phase {
            *alternate = new(alternate);
        }
        let mut candidates = Candidates::default();
        while let Some(alternate) = self.candidates.take(&[]) {
            candidates.push(new(&alternate));
        }
        self.candidates = candidates;
        // What is left of these is only what paths are told apart by.
        let key = |key: &mut Key| {
            let path = PathRecord {
                slid: key.slid,
                dlid: key.dlid,
                ..PathRecord::default()
            };
            let known = Alternate {
                port: key.port,
                path,
                disjoint: Disjoint::Ports,
                primary_lids: (0, 0),
            };
            *key = new(&known).key();
        };
        self.failed.iter_mut().flatten().for_each(key);
        if let Some((loaded, _)) = &mut self.loaded {
            key(loaded);
        }
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
                let all = |n: &mut u8| *n = if *n > 0 && self.active { LOOKS } else { 0 };
                all(looks);
                all(vain);
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
        self.attempt = 0;
        // A peer is not taken for deaf: that only makes waits longer.
        self.unanswered = 0;
        self.heard = false;
        self.since = 0;
        // Nor is a flapping one told from one that is not.
        self.flaps = 0;
        self.armed_at = None;
        self.vain_searches = 0;
        self.kicked = false;
        if !matches!(self.phase, Phase::Asking { .. } | Phase::Loading(_)) {
            self.candidates = Default::default();
        }
        if self.active {
            // Of the paths that have failed the last one is kept: the order of the others makes for many states
            // that differ only in which path is offered first.
            let last = self.failed.iter().flatten().last().copied();
            self.failed = Default::default();
            self.failed[0] = last;
            return;
        }
        // The passive side never looks at these.
        self.failed = Default::default();
        self.loaded = None;
        if self.not_before != u64::MAX {
            self.not_before = 0;
        }
    }
}
