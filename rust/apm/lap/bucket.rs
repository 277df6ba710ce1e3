// SPDX-License-Identifier: GPL-2.0-only

//! A limit on what a peer can cause.

/// A limit on how often something may happen: a number at once, and one more in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    size: u64,
    period_ms: u64,
    /// When it will have been filled, had nothing been taken since.
    full_at: u64,
}

impl Bucket {
    /// A full one.
    pub(crate) const fn new(size: u32, period_ms: u32) -> Self {
        Self {
            size: size as u64,
            period_ms: period_ms as u64,
            full_at: 0,
        }
    }

    /// Whether it may happen at the time `now` (milliseconds); if so, that is counted.
    pub(crate) fn take(&mut self, now: u64) -> bool {
        let after = self.full_at.max(now).saturating_add(self.period_ms);
        let span = self.size.saturating_mul(self.period_ms);
        let allowed = after <= now.saturating_add(span);
        if allowed {
            self.full_at = after;
        }
        allowed
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bucket_runs_dry() {
        let mut bucket = Bucket::new(3, 1_000);
        let start = 50_000;
        let taken = |bucket: &mut Bucket, now| (0..10).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(&mut bucket, start), 3);
        assert_eq!(taken(&mut bucket, start + 999), 0);
        assert_eq!(taken(&mut bucket, start + 1_000), 1);
        assert_eq!(taken(&mut bucket, start + 3_000), 2);
        assert_eq!(taken(&mut bucket, start + 60_000), 3);
        assert_eq!(taken(&mut Bucket::new(0, 1_000), start), 0);
    }

    proptest! {
        /// Over any time, no more than the size and one for each period.
        #[test]
        fn a_bucket_holds(steps in prop::collection::vec(0u64..3_000, 1..200)) {
            let mut bucket = Bucket::new(5, 1_000);
            let mut now = 10_000;
            let mut taken = 0;
            for step in &steps {
                now += step;
                taken += u64::from(bucket.take(now));
            }
            prop_assert!(taken <= 5 + (now - 10_000) / 1_000);
        }
    }
}
