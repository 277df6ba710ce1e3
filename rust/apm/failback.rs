// SPDX-License-Identifier: GPL-2.0-only

//! When a connection returns to the path that it began with.
//!
//! The active side alone decides: if both did, each would undo what the other one has done. It returns by
//! commanding its QP to the alternate, as it leaves a dead port, and only if the preferred path *is* the
//! alternate and the QP is ARMED. `automatic` waits until that has been so, without a break, for the
//! hold-down; `manual` returns when told to; `off` never does.
//!
//! ```text
//!             left                 ARMED, the preferred path is the alternate
//! Preferred ───────▶ Elsewhere ──────────────────────────────────────────────▶ Proving
//!     ▲                  ▲                  port down, not ARMED                  │ │
//!     │                  └────────────────────────────────────────────────────────┘ │
//!     └─────────────────────────────────────────────────────────────────────────────┘
//!                                     hold-down over
//! ```
//!
//! No ping-pong: when the preferred path is lost again before it was used for ten times the hold-down, the
//! hold-down doubles, up to an hour; used for longer than that, it is what it was. So a preferred path that
//! fails again and again is returned to at most log2(1 + t/h) times within a time t, h being the hold-down:
//! twice in the first minute, six times in the first quarter of an hour, with the default of ten seconds. A
//! port that flaps faster than the hold-down is never returned to.

use super::path::Key;

/// What it may grow to.
const MAX_HOLD_DOWN_MS: u64 = 3_600_000;
/// A path that was used for so many times the hold-down has proved itself.
const PROVED: u64 = 10;

/// Who has a connection return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    /// Nobody.
    Off,
    /// An operator.
    Manual,
    /// It does by itself, after the hold-down.
    Automatic,
}

impl Mode {
    /// All of them, in the order of the words for the parameter `failback`.
    pub(crate) const ALL: [Self; 3] = [Self::Off, Self::Manual, Self::Automatic];
}

/// How a connection is at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The path in use.
    pub(crate) in_use: Key,
    /// The alternate in the QP, where that is ARMED and both of the alternate's ports are, as far as is
    /// known, up.
    pub(crate) armed_with: Option<Key>,
}

/// The way back of a connection, at its active side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Failback {
    preferred: Key,
    /// The preferred path has been in use since then; `None` where another one is.
    used_since: Option<u64>,
    /// It could have been returned to since then.
    armed_since: Option<u64>,
    /// Times that the hold-down has doubled.
    doubled: u32,
    /// The preferred path is in use because the connection has returned to it.
    returned: bool,
}

impl Failback {
    /// For a connection that uses its preferred path from `now` on (milliseconds).
    pub(crate) fn new(preferred: Key, now: u64) -> Self {
        Self {
            preferred,
            used_since: Some(now),
            armed_since: None,
            doubled: 0,
            returned: false,
        }
    }

    /// The hold-down as it is now, from what is configured.
    pub(crate) fn hold_down_ms(&self, configured_ms: u64) -> u64 {
        let factor = 1u64 << self.doubled.min(20);
        let longest = MAX_HOLD_DOWN_MS.max(configured_ms);
        configured_ms.saturating_mul(factor).min(longest)
    }

    /// Takes note of how the connection is. To be called whenever that has changed.
    pub(crate) fn see(&mut self, seen: &Seen, configured_ms: u64, now: u64) {
        if seen.in_use == self.preferred {
            self.used_since.get_or_insert(now);
            self.armed_since = None;
            return;
        }
        if let Some(since) = self.used_since.take() {
            let enough = self.hold_down_ms(configured_ms).saturating_mul(PROVED);
            if now.saturating_sub(since) >= enough {
                self.doubled = 0;
            } else if self.returned {
                self.doubled = self.doubled.saturating_add(1);
            }
            self.returned = false;
        }
        if seen.armed_with == Some(self.preferred) {
            self.armed_since.get_or_insert(now);
        } else {
            self.armed_since = None;
        }
    }

    /// A port of the preferred path went down, if only for a moment: it has to prove itself anew.
    pub(crate) fn trouble(&mut self) {
        self.armed_since = None;
    }

    /// Whether an operator may have it return now.
    pub(crate) fn may_return(&self, mode: Mode) -> bool {
        mode != Mode::Off && self.armed_since.is_some()
    }

    /// When it returns by itself, if nothing happens until then.
    pub(crate) fn deadline(&self, mode: Mode, configured_ms: u64) -> Option<u64> {
        let since = self.armed_since.filter(|_| mode == Mode::Automatic)?;
        Some(since.saturating_add(self.hold_down_ms(configured_ms)))
    }

    /// Whether it returns now: then the QP is to be forced, as by a command.
    pub(crate) fn is_due(&self, mode: Mode, configured_ms: u64, now: u64) -> bool {
        self.deadline(mode, configured_ms)
            .is_some_and(|at| now >= at)
    }

    /// It has returned: the QP was forced, at `now`, by command or by itself.
    pub(crate) fn returned(&mut self, now: u64) {
        self.used_since = Some(now);
        self.armed_since = None;
        self.returned = true;
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The default.
    const H: u64 = 10_000;

    fn key(port: u32) -> Key {
        Key {
            port,
            slid: port as u16,
            dlid: 10,
        }
    }

    /// In use is the path by this port; the other one is the alternate where it is `armed`.
    fn on(port: u32, armed: bool) -> Seen {
        Seen {
            in_use: key(port),
            armed_with: armed.then_some(key(3 - port)),
        }
    }

    fn failback() -> Failback {
        Failback::new(key(1), 0)
    }

    #[test]
    fn returns_after_the_hold_down() {
        let mut f = failback();
        f.see(&on(1, true), H, 10);
        assert_eq!(f.deadline(Mode::Automatic, H), None);
        f.see(&on(2, false), H, 1_000);
        assert!(!f.may_return(Mode::Manual));
        f.see(&on(2, true), H, 5_000);
        f.see(&on(2, true), H, 9_000);
        assert_eq!(f.deadline(Mode::Automatic, H), Some(15_000));
        assert!(!f.is_due(Mode::Automatic, H, 14_999));
        assert!(f.is_due(Mode::Automatic, H, 15_000));
        for mode in [Mode::Off, Mode::Manual] {
            assert!(!f.is_due(mode, H, 1 << 40));
        }
        assert!(f.may_return(Mode::Manual) && f.may_return(Mode::Automatic));
        assert!(!f.may_return(Mode::Off));
        f.returned(15_000);
        f.see(&on(1, false), H, 15_001);
        assert_eq!(f.deadline(Mode::Automatic, H), None);
    }

    #[test]
    fn a_break_begins_anew() {
        let mut f = failback();
        f.see(&on(2, true), H, 1_000);
        f.see(&on(2, false), H, 2_000);
        assert_eq!(f.deadline(Mode::Automatic, H), None);
        f.see(&on(2, true), H, 3_000);
        f.trouble();
        f.see(&on(2, true), H, 4_000);
        assert_eq!(f.deadline(Mode::Automatic, H), Some(14_000));
        // Armed with some third path.
        let other = Seen {
            in_use: key(2),
            armed_with: Some(key(3)),
        };
        f.see(&other, H, 5_000);
        assert_eq!(f.deadline(Mode::Automatic, H), None);
    }

    #[test]
    fn in_vain_takes_longer_the_next_time() {
        let mut f = failback();
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..12 {
            now += 1_000;
            f.see(&on(2, true), H, now);
            let at = f.deadline(Mode::Automatic, H).unwrap();
            waits.push((at - now) / 1_000);
            f.returned(at);
            f.see(&on(1, true), H, at);
            now = at;
        }
        let expected = [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600];
        assert_eq!(waits, expected);
        // Used for ten times that: forgiven.
        now += 10 * 3_600_000;
        f.see(&on(2, true), H, now);
        assert_eq!(f.deadline(Mode::Automatic, H), Some(now + H));
    }

    proptest! {
        /// The preferred path comes and goes at random, and whenever it is used it may be lost after any
        /// time. The number of returns stays below the documented bound, as long as no stay was long
        /// enough for the path to have proved itself.
        #[test]
        fn bounded(steps in prop::collection::vec((1u64..40_000, any::<bool>()), 1..400)) {
            let mut f = failback();
            let (mut now, mut port, mut returns) = (0, 2, 0u32);
            f.see(&on(2, false), H, 0);
            for (after, good) in steps {
                let end = now + after;
                f.see(&on(port, good), H, now);
                if let Some(at) = f.deadline(Mode::Automatic, H).filter(|at| *at <= end) {
                    prop_assert!(f.is_due(Mode::Automatic, H, at));
                    f.returned(at);
                    f.see(&on(1, true), H, at);
                    port = 1;
                    returns += 1;
                }
                now = end;
                if port == 1 && !good {
                    port = 2;
                    f.see(&on(2, false), H, now);
                }
            }
            let limit = (1.0 + now as f64 / H as f64).log2();
            // Stays of up to 40 s in a row may add up to a proof.
            prop_assume!(f.doubled + 1 >= returns);
            prop_assert!(f64::from(returns) <= limit, "{returns} in {now} ms");
        }

        /// A port that flaps faster than the hold-down is never returned to.
        #[test]
        fn flapping(period in 1u64..H, flaps in 1u64..500) {
            let mut f = failback();
            for n in 0..flaps {
                let now = 1_000 + n * period;
                f.see(&on(2, n % 2 == 0), H, now);
                prop_assert!(!f.is_due(Mode::Automatic, H, now + period));
            }
        }
    }
}
