// SPDX-License-Identifier: GPL-2.0-only

//! What a search has found, in the order in which it is offered.

use super::super::path::{Alternate, Key};
use super::MAX_CANDIDATES;

/// Alternates to offer, the best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Candidates {
    list: [Option<Alternate>; MAX_CANDIDATES],
}

impl Candidates {
    /// Adds one behind the others; what finds no room is not the best.
    pub(crate) fn push(&mut self, alternate: Alternate) {
        if let Some(free) = self.list.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(alternate);
        }
    }

    pub(super) fn retain(&mut self, wanted: impl Fn(&Alternate) -> bool) {
        for slot in &mut self.list {
            *slot = slot.filter(&wanted);
        }
    }

    /// Takes the best out: the first that has not failed, or else the one whose failure is the longest ago.
    /// `failed` has the earliest first.
    pub(super) fn take(&mut self, failed: &[Option<Key>]) -> Option<Alternate> {
        let all = || self.list.iter().flatten();
        let fresh = all().find(|a| !failed.contains(&Some(a.key())));
        let again = || {
            failed
                .iter()
                .flatten()
                .find_map(|key| all().find(|a| a.key() == *key))
        };
        let best = *fresh.or_else(again)?;
        self.retain(|a| a.key() != best.key());
        Some(best)
    }
}
