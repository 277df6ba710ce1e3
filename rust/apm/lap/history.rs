// SPDX-License-Identifier: GPL-2.0-only

//! LAPs that come again, or too late.

use crate::wire::cm::lap::{Lap, Status};

/// LAPs remembered for a connection.
const REMEMBERED: usize = 4;
/// This module counts its transaction ids up: one that is a little lower than the latest is of a LAP that
/// was overtaken on the way.
const OVERTAKEN: u64 = 1 << 16;

/// What is known of a LAP that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Seen {
    /// Not seen before: it is to be judged.
    New,
    /// It is the last one, and this was the answer: to be given again.
    Answered(Status),
    /// It is being judged, or the peer has sent another one since: nothing is to be done.
    Stale,
}

/// Which LAP: implementations are known that give all LAPs of a connection the same transaction id.
type Which = (u64, (u16, u16));

/// The last LAPs of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct History {
    /// The latest first. Without a status it isn't answered yet.
    list: [Option<(Which, Option<Status>)>; REMEMBERED],
}

impl History {
    /// Of no LAP.
    pub(crate) const NONE: Self = Self {
        list: [None; REMEMBERED],
    };

    fn which(lap: &Lap) -> Which {
        let path = &lap.alternate;
        (lap.tid, (path.local_lid, path.remote_lid))
    }

    /// Looks a LAP up and, where it is new, notes it as being judged.
    pub(crate) fn begin(&mut self, lap: &Lap) -> Seen {
        let which = Self::which(lap);
        let mut known = self.list.iter().flatten();
        let place = known.clone().position(|(w, _)| *w == which);
        let latest = known.next();
        match (place, latest) {
            (Some(0), Some((_, Some(status)))) => Seen::Answered(*status),
            (Some(_), _) => Seen::Stale,
            (None, Some(((tid, _), _))) if (1..OVERTAKEN).contains(&tid.wrapping_sub(lap.tid)) => {
                Seen::Stale
            }
            (None, _) => {
                self.list.rotate_right(1);
                if let Some(first) = self.list.first_mut() {
                    *first = Some((which, None));
                }
                Seen::New
            }
        }
    }

    /// Whether this LAP is still the latest: it may be acted on. To be asked after each wait, and under the
    /// lock under which the QP is changed.
    pub(crate) fn is_latest(&self, lap: &Lap) -> bool {
        matches!(self.list.first(), Some(Some((w, _))) if *w == Self::which(lap))
    }

    /// Notes the answer.
    pub(crate) fn answered(&mut self, lap: &Lap, status: Status) {
        for (which, answer) in self.list.iter_mut().flatten() {
            if *which == Self::which(lap) {
                *answer = Some(status);
            }
        }
    }

    /// Gives LAPs other transaction ids, and the LIDs of their paths other names; those that get no id are
    /// forgotten.
    #[cfg(test)]
    pub(crate) fn renumber(
        &mut self,
        number: impl Fn(u64) -> Option<u64>,
        name: impl Fn(u16) -> u16,
    ) {
        let known = core::mem::take(&mut self.list).into_iter().flatten();
        let kept = known.filter_map(|((tid, (a, b)), answer)| {
            Some(((number(tid)?, (name(a), name(b))), answer))
        });
        for (slot, entry) in self.list.iter_mut().zip(kept) {
            *slot = Some(entry);
        }
    }

    /// Transaction id of the latest.
    #[cfg(test)]
    pub(crate) fn latest(&self) -> Option<u64> {
        let [first, ..] = &self.list;
        first.map(|((tid, _), _)| tid)
    }

    /// Takes a LAP back that was not answered: it may come again, to be judged again.
    pub(crate) fn dropped(&mut self, lap: &Lap) {
        if self.is_latest(lap) {
            self.list.rotate_left(1);
            if let Some(last) = self.list.last_mut() {
                *last = None;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    fn numbered(tid: u64) -> Lap {
        let mut lap = Lap {
            tid,
            ..Lap::default()
        };
        lap.alternate.local_lid = 12;
        lap
    }

    #[test]
    fn a_lap_again() {
        let mut history = History::default();
        let (one, two) = (numbered(1), numbered(2));
        assert_eq!(history.begin(&one), Seen::New);
        // While SA is asked.
        assert_eq!(history.begin(&one), Seen::Stale);
        history.answered(&one, Status::LOADED);
        assert_eq!(history.begin(&one), Seen::Answered(Status::LOADED));
        assert_eq!(history.begin(&two), Seen::New);
        assert!(history.is_latest(&two) && !history.is_latest(&one));
        // The first one, late: what it asks for was replaced since.
        assert_eq!(history.begin(&one), Seen::Stale);
        history.answered(&one, Status::GID);
        history.dropped(&one);
        assert_eq!(history.begin(&two), Seen::Stale);
        // Not answered after all.
        history.dropped(&two);
        assert_eq!(history.begin(&two), Seen::New);
        history.answered(&two, Status::LID);
        assert_eq!(history.begin(&two), Seen::Answered(Status::LID));
    }

    #[test]
    fn a_lap_that_was_overtaken() {
        let mut history = History::default();
        assert_eq!(history.begin(&numbered(5)), Seen::New);
        // Never seen, but earlier.
        assert_eq!(history.begin(&numbered(4)), Seen::Stale);
        assert!(history.is_latest(&numbered(5)));
        assert_eq!(history.begin(&numbered(u64::MAX)), Seen::Stale);
        // Not so with numbers that don't count up.
        for tid in [1 << 40, 1 << 20, 1 << 30] {
            assert_eq!(history.begin(&numbered(tid)), Seen::New);
        }
        assert_eq!(history.begin(&numbered(1 << 40)), Seen::Stale);
        // The same number for another path.
        let mut other = numbered(1 << 30);
        other.alternate.local_lid = 13;
        assert_eq!(history.begin(&other), Seen::New);
    }
}
