// SPDX-License-Identifier: GPL-2.0-only

//! The counters of `rust/apm/stats.rs` and of reasons, as atomics.

use crate::apm::reason::Reason;
use crate::apm::stats::Stat;
use kernel::sync::atomic::{Atomic, Relaxed};

static STATS: [Atomic<u64>; Stat::COUNT] = [const { Atomic::new(0) }; Stat::COUNT];
static REASONS: [Atomic<u64>; Reason::COUNT] = [const { Atomic::new(0) }; Reason::COUNT];

/// Counts one. Any context.
pub(crate) fn count(stat: Stat) {
    if let Some(counter) = STATS.get(stat as usize) {
        counter.add(1, Relaxed);
    }
}

/// Counts a connection that becomes unprotected for `reason`.
pub(crate) fn count_reason(reason: Reason) {
    if let Some(counter) = REASONS.get(reason.index()) {
        counter.add(1, Relaxed);
    }
}

/// The value of a counter.
pub(crate) fn value(stat: Stat) -> u64 {
    STATS.get(stat as usize).map_or(0, |c| c.load(Relaxed))
}

/// How many connections became unprotected for `reason`.
pub(crate) fn reason_value(reason: Reason) -> u64 {
    REASONS.get(reason.index()).map_or(0, |c| c.load(Relaxed))
}
