// SPDX-License-Identifier: GPL-2.0-only

//! What the local ports have to do with the alternate of a connection that is up.
//!
//! An alternate whose local port stays down protects against nothing. The active side looks for another
//! one; the passive side cannot, and wishes for one: the active side sees neither this port nor, where its
//! own is up, that anything has happened. The same when a port of the passive side is back.
//!
//! A wish is a message that may get lost, or meet a peer that does not know it. One for another alternate
//! is repeated, ever more rarely, until there is one; the other kind is not: the active side looks for a
//! better alternate from time to time by itself.

/// How long the port of an alternate is down before another one is looked for, in milliseconds: one that
/// is down for a moment only is not worth a LAP. Also the shortest time between two wishes of a kind.
const PATIENCE_MS: u64 = 1_000;
/// How often a wish for another alternate is expressed, each time after twice as long.
const TRIES: u8 = 7;

/// How things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// This end searches by itself.
    pub(crate) active: bool,
    /// Local port of the path in use.
    pub(crate) used: u32,
    /// Local port of the alternate, where one is loaded and the QP may migrate to it.
    pub(crate) alternate: Option<u32>,
    /// Local ports that are ACTIVE: bit n for port n.
    pub(crate) up: u64,
}

impl View {
    fn is_up(&self, port: u32) -> bool {
        self.up & bit(port) != 0
    }
}

/// The bit of a port in [`View::up`].
pub(crate) fn bit(port: u32) -> u64 {
    1u64.checked_shl(port).unwrap_or(0)
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Active side: look for another alternate.
    Seek,
    /// Passive side: say that the alternate is dead.
    DeadStandby,
    /// Passive side: say that a port is back.
    PortBack,
}

/// What a connection remembers of its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// Ports that were ACTIVE when it was last looked at; `None` before.
    up: Option<u64>,
    /// The alternate whose port is down, since when, and how often something was done about it.
    dead: Option<(u32, u64, u8)>,
    /// A port is back, and that is to be said at this time.
    back_at: Option<u64>,
    /// When that was last said.
    back_said: Option<u64>,
}

impl Wishes {
    /// Of a new connection.
    pub(crate) const NONE: Self = Self {
        up: None,
        dead: None,
        back_at: None,
        back_said: None,
    };

    /// Looks at how things are at the time `now` (milliseconds). One thing to be done, and when to look again
    /// at the latest.
    pub(crate) fn look(&mut self, view: &View, now: u64) -> (Option<Wish>, Option<u64>) {
        let came = self.up.map_or(0, |before| view.up & !before);
        self.up = Some(view.up);
        let wished = self.dead.is_some_and(|(_, _, tries)| tries > 0);
        let (dead, dead_at) = self.look_at_standby(view, now);
        if view.active {
            return (dead.then_some(Wish::Seek), dead_at);
        }
        // An alternate by another port than the path in use is as good as it gets at this end.
        let apart = view
            .alternate
            .is_some_and(|port| port != view.used && view.is_up(port));
        if came != 0 && (!apart || wished) {
            let earliest = self
                .back_said
                .map_or(now, |said| said.saturating_add(PATIENCE_MS));
            self.back_at.get_or_insert(earliest.max(now));
        }
        if dead {
            return (Some(Wish::DeadStandby), dead_at);
        }
        match self.back_at {
            Some(at) if at <= now => {
                self.back_at = None;
                self.back_said = Some(now);
                (Some(Wish::PortBack), dead_at)
            }
            at => (None, [at, dead_at].into_iter().flatten().min()),
        }
    }

    /// Whether something is to be done about the alternate, and when to look again.
    fn look_at_standby(&mut self, view: &View, now: u64) -> (bool, Option<u64>) {
        let Some(port) = view.alternate.filter(|port| !view.is_up(*port)) else {
            self.dead = None;
            return (false, None);
        };
        let (since, tries) = match self.dead {
            Some((same, since, tries)) if same == port => (since, tries),
            _ => (now, 0),
        };
        self.dead = Some((port, since, tries));
        let most = if view.active { 1 } else { TRIES };
        if tries >= most {
            return (false, None);
        }
        let due = |tries: u8| since.saturating_add(PATIENCE_MS << u32::from(tries.min(TRIES)));
        if now < due(tries) {
            return (false, Some(due(tries)));
        }
        let tries = tries.saturating_add(1);
        self.dead = Some((port, since, tries));
        (true, (tries < most).then(|| due(tries)))
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    fn view(active: bool, alternate: Option<u32>, up: &[u32]) -> View {
        View {
            active,
            used: 1,
            alternate,
            up: up.iter().fold(0, |all, port| all | bit(*port)),
        }
    }

    /// What is done at which time, looking whenever it is due, until nothing is due any more.
    fn run(wishes: &mut Wishes, view: &View, from: u64) -> Vec<(u64, Wish)> {
        let (mut now, mut done) = (from, Vec::new());
        loop {
            let (wish, due) = wishes.look(view, now);
            done.extend(wish.map(|wish| (now, wish)));
            match due {
                Some(due) => {
                    assert!(due > now);
                    now = due;
                }
                None => return done,
            }
        }
    }

    #[test]
    fn all_is_well() {
        for active in [false, true] {
            let mut wishes = Wishes::NONE;
            for alternate in [None, Some(1), Some(2)] {
                assert_eq!(run(&mut wishes, &view(active, alternate, &[1, 2]), 0), []);
            }
        }
    }

    #[test]
    fn the_active_side_seeks_once() {
        let mut wishes = Wishes::NONE;
        let dead = view(true, Some(2), &[1]);
        assert_eq!(run(&mut wishes, &dead, 10), [(1_010, Wish::Seek)]);
        assert_eq!(run(&mut wishes, &dead, 90_000), []);
        // Once more when it dies again.
        assert_eq!(run(&mut wishes, &view(true, Some(2), &[1, 2]), 91_000), []);
        assert_eq!(run(&mut wishes, &dead, 92_000), [(93_000, Wish::Seek)]);
    }

    #[test]
    fn the_passive_side_says_so_ever_more_rarely() {
        let mut wishes = Wishes::NONE;
        let dead = view(false, Some(2), &[1]);
        let at = [1, 2, 4, 8, 16, 32, 64].map(|s| (s * 1_000, Wish::DeadStandby));
        assert_eq!(run(&mut wishes, &dead, 0), at);
        assert_eq!(run(&mut wishes, &dead, 100_000), []);
    }

    #[test]
    fn a_port_that_is_down_for_a_moment() {
        for active in [false, true] {
            let mut wishes = Wishes::NONE;
            let (wish, due) = wishes.look(&view(active, Some(2), &[1]), 0);
            assert_eq!((wish, due), (None, Some(1_000)));
            let up = view(active, Some(2), &[1, 2]);
            assert_eq!(wishes.look(&up, 999), (None, None));
        }
    }

    #[test]
    fn another_alternate_ends_it() {
        let mut wishes = Wishes::NONE;
        let dead = view(false, Some(2), &[1]);
        wishes.look(&dead, 0);
        assert_eq!(wishes.look(&dead, 1_000).0, Some(Wish::DeadStandby));
        assert_eq!(run(&mut wishes, &view(false, Some(1), &[1]), 1_500), []);
        // That shares our port: news when the other one is back.
        let back = view(false, Some(1), &[1, 2]);
        assert_eq!(run(&mut wishes, &back, 9_000), [(9_000, Wish::PortBack)]);
    }

    #[test]
    fn the_dead_one_is_back() {
        let mut wishes = Wishes::NONE;
        let dead = view(false, Some(2), &[1]);
        wishes.look(&dead, 0);
        wishes.look(&dead, 1_000);
        // The peer may have given it up, as it was told.
        let back = view(false, Some(2), &[1, 2]);
        assert_eq!(run(&mut wishes, &back, 1_500), [(1_500, Wish::PortBack)]);
    }

    #[test]
    fn a_flapping_port_is_not_a_storm() {
        let mut wishes = Wishes::NONE;
        let mut said = 0;
        for n in 0..100 {
            let up: &[u32] = if n % 2 == 0 { &[1] } else { &[1, 2] };
            let (wish, _) = wishes.look(&view(false, None, up), n * 100);
            said += u32::from(wish == Some(Wish::PortBack));
        }
        assert!((5..=11).contains(&said), "{said}");
    }

    #[test]
    fn a_port_that_there_is_no_bit_for() {
        assert_eq!(bit(64), 0);
        assert_eq!(bit(1), 2);
    }
}
