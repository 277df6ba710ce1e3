// SPDX-License-Identifier: GPL-2.0-only

//! How much room for nudges is asked for, and whose it is.
//!
//! A nudge needs a place in the send queue of its QP and one in the CQ that the queue completes to, both
//! beyond what the ULP counts on.

/// Nudges that a QP may have under way: one that is stuck on a dead path, and one that tells the peer of
/// the migration.
pub(crate) const NUDGES: u32 = 2;

/// The same for a QP whose CQ is polled by its ULP alone (IB_POLL_DIRECT): there a nudge that has
/// arrived long ago holds its place until the ULP polls, and one that is idle may not for hours.
pub(crate) const NUDGES_DIRECT: u32 = 16;

/// QPs of a CQ that a ULP has made for itself; nearly always one.
const QPS_OF_OWN_CQ: u32 = 4;

/// Entries to ask for beyond those that a ULP wants in a CQ of its own.
pub(crate) fn own_cq_entries(direct: bool) -> u32 {
    if direct {
        NUDGES_DIRECT
    } else {
        NUDGES * QPS_OF_OWN_CQ
    }
}

/// Entries that a QP wants for itself in its send CQ.
pub(crate) fn wanted(direct: bool) -> u32 {
    if direct {
        NUDGES_DIRECT
    } else {
        NUDGES
    }
}

/// `asked + more`, where the device has that (`limit`).
pub(crate) fn enlarged(asked: u32, more: u32, limit: u32) -> Option<u32> {
    let total = asked.checked_add(more)?;
    (asked != 0 && total <= limit).then_some(total)
}

/// The `max_send_wr` to ask for so that the send queue has `more` than the ULP asks; `None` where it is
/// not certain to get them. `limit` is `max_qp_wr` of the device.
///
/// For each of `rdma_ctxs` core itself adds one, or three, and then cuts off at the limit without a
/// word (`rdma_rw_init_qp`).
pub(crate) fn send_wr(asked: u32, rdma_ctxs: u32, more: u32, limit: u32) -> Option<u32> {
    let most = rdma_ctxs.checked_mul(3)?.checked_add(asked)?;
    enlarged(most, more, limit)?;
    asked.checked_add(more)
}

/// What a CQ has beyond what its users asked for.
///
/// `taken` never exceeds `reserved`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserve {
    /// It comes from the pool of its device, where entries are lent and have to be given back.
    pooled: bool,
    reserved: u32,
    taken: u32,
    /// Users of the pool that were lent [`NUDGES`] more than they asked for and have not put the CQ.
    users: u32,
}

impl Reserve {
    /// Of a CQ that a ULP has made for itself, with so many entries more.
    pub(crate) fn own(entries: u32) -> Self {
        Self {
            pooled: false,
            reserved: entries,
            taken: 0,
            users: 0,
        }
    }

    /// Of a CQ of the pool, for its first user.
    pub(crate) fn pooled() -> Self {
        Self {
            pooled: true,
            reserved: NUDGES,
            taken: 0,
            users: 1,
        }
    }

    /// Whether it is a CQ of the pool.
    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// Another user of the pool was lent [`NUDGES`] more than it asked for.
    pub(crate) fn lent(&mut self) {
        self.reserved = self.reserved.saturating_add(NUDGES);
        self.users = self.users.saturating_add(1);
    }

    /// A QP takes up to `want`; how many it gets.
    pub(crate) fn take(&mut self, want: u32) -> u32 {
        let n = want.min(self.reserved.saturating_sub(self.taken));
        self.taken = self.taken.saturating_add(n);
        n
    }

    /// A QP has no more use for `n` of those that it took; how many have to be put to the pool.
    pub(crate) fn release(&mut self, n: u32) -> u32 {
        self.taken = self.taken.saturating_sub(n);
        self.surplus()
    }

    /// A user puts the CQ; how many have to be put to the pool with it. It need not be one that was
    /// lent more: what counts is that in the end all was put.
    pub(crate) fn put(&mut self) -> u32 {
        self.users = self.users.saturating_sub(1);
        self.surplus()
    }

    /// Nobody takes any more; how many have to be put to the pool.
    pub(crate) fn close(&mut self) -> u32 {
        let n = if self.pooled { self.reserved } else { 0 };
        self.reserved = 0;
        self.taken = 0;
        self.users = 0;
        n
    }

    /// Takes away what no user stands for any more and no QP has taken.
    fn surplus(&mut self) -> u32 {
        if !self.pooled {
            return 0;
        }
        let free = self.reserved.saturating_sub(self.taken);
        let unowned = self
            .reserved
            .saturating_sub(self.users.saturating_mul(NUDGES));
        let n = free.min(unowned);
        self.reserved = self.reserved.saturating_sub(n);
        n
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn depth_of_the_send_queue() {
        assert_eq!(send_wr(128, 0, 2, 130), Some(130));
        assert_eq!(send_wr(128, 0, 2, 129), None);
        // Core may make 128 + 3 * 10 of it, and cut that off.
        assert_eq!(send_wr(128, 10, 2, 160), Some(130));
        assert_eq!(send_wr(128, 10, 2, 159), None);
        assert_eq!(send_wr(u32::MAX, 0, 2, u32::MAX), None);
        assert_eq!(send_wr(1, u32::MAX, 2, u32::MAX), None);
    }

    #[test]
    fn a_queue_of_nothing_stays_one() {
        assert_eq!(enlarged(0, 8, 100), None);
        assert_eq!(send_wr(0, 0, 2, 100), None);
        // All its work requests are those of its contexts.
        assert_eq!(send_wr(0, 5, 2, 100), Some(2));
    }

    #[test]
    fn own_queue_gives_what_it_has() {
        let mut r = Reserve::own(own_cq_entries(false));
        for _ in 0..4 {
            assert_eq!(r.take(NUDGES), NUDGES);
        }
        assert_eq!(r.take(NUDGES), 0);
        assert_eq!(r.release(NUDGES), 0);
        assert_eq!(r.take(NUDGES), NUDGES);
        assert_eq!(r.close(), 0);
    }

    #[test]
    fn put_before_the_qp_is_gone() {
        let mut r = Reserve::pooled();
        assert_eq!(r.take(NUDGES), NUDGES);
        assert_eq!(r.put(), 0);
        assert_eq!(r.release(NUDGES), NUDGES);
        assert_eq!(r.close(), 0);
    }

    #[test]
    fn put_by_a_user_older_than_the_module() {
        let mut r = Reserve::pooled();
        assert_eq!(r.take(NUDGES), NUDGES);
        // The older one's put finds all taken; later ours has nothing left to put.
        assert_eq!(r.put(), 0);
        assert_eq!(r.release(NUDGES), NUDGES);
        assert_eq!(r.put(), 0);
    }

    /// What a user of the pool does, and the module.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Get,
        PutOld,
        Put,
        Take,
        Release,
        Close,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Get),
            1 => Just(Step::PutOld),
            3 => Just(Step::Put),
            4 => Just(Step::Take),
            3 => Just(Step::Release),
            1 => Just(Step::Close),
        ]
    }

    proptest! {
        #[test]
        fn the_pool_gets_back_what_it_lent(steps in prop::collection::vec(step(), 0..64)) {
            let mut r = Reserve::pooled();
            let (mut lent, mut users, mut qps) = (NUDGES, 1u32, Vec::new());
            for step in steps {
                match step {
                    Step::Get => {
                        r.lent();
                        lent += NUDGES;
                        users += 1;
                    }
                    Step::PutOld => lent -= r.put(),
                    Step::Put if users > 0 => {
                        users -= 1;
                        lent -= r.put();
                    }
                    Step::Take => match r.take(NUDGES) {
                        0 => {}
                        n => qps.push(n),
                    },
                    Step::Release => {
                        if let Some(n) = qps.pop() {
                            lent -= r.release(n);
                        }
                    }
                    Step::Close => {
                        // The table forgets the CQ, and QPs find nothing to release to.
                        lent -= r.close();
                        prop_assert_eq!(lent, 0);
                        r = Reserve::pooled();
                        (lent, users) = (NUDGES, 1);
                        qps.clear();
                    }
                    Step::Put => {}
                }
                prop_assert!(qps.iter().sum::<u32>() <= lent, "more taken than lent");
            }
            // Everybody leaves, QPs last.
            for _ in 0..users {
                lent -= r.put();
            }
            for n in qps {
                lent -= r.release(n);
            }
            prop_assert_eq!(lent, 0);
        }
    }
}
