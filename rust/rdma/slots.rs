// SPDX-License-Identifier: GPL-2.0-only

//! Room for nudges in the send queues and CQs of ULPs: who has some, and the nudge itself.
//!
//! CQs and QPs are made with a few places more than the ULP asked for (`entry_qp.rs`). A QP has room
//! where both its send queue and its send CQ have: then a nudge takes nothing from the ULP, however
//! full that runs its queues. Only CQs made by `ib_alloc_cq` or from the pool are used (`cq->wc` is set):
//! completions of others name no `ib_cqe`. Room in CQs, and how QPs come to theirs: `room.rs`.
//!
//! Unloading, between other steps (see `service.rs`): [`Slots::close`] gives the pool back what it lent,
//! or it would warn when the device goes; [`Slots::disown`] when the hooks are gone; [`Slots::free`] when
//! nobody is in this module any more.
//!
//! Locks: `Slots::inner`, a spinlock and a leaf but for the lock of the device's CQ pools. Process
//! context; a completion takes no lock.

use super::bindings as rdma;
use super::nudge::{Begun, Harmless, Nudges, Stack};
use super::qp::QpRef;
use super::room::{is_direct, Cq, Room};
use super::stats;
use crate::apm::stats::Stat;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::{new_spinlock, SpinLock};
use kernel::time::{delay::fsleep, Delta};

/// Why there was no nudge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoNudge {
    /// The QP has no room for one; it never will.
    NoSlot,
    /// All that the QP has room for are under way, or have not been polled by the ULP yet.
    Outstanding,
    /// The driver did not take it.
    Post(Error),
}

/// A QP with room.
pub(crate) struct Slot {
    cq: usize,
    nudges: Nudges,
    /// Its CQ is polled by the ULP alone.
    direct: bool,
}

pub(super) struct Tables {
    pub(super) cqs: RBTree<usize, Cq>,
    qps: RBTree<usize, Slot>,
    /// Nudges that belong to no CQ any more that is known.
    pub(super) abandoned: Stack,
    /// No more room is made, and none used.
    pub(super) closed: bool,
    pub(super) harmless: Option<Harmless>,
}

/// All room for nudges.
#[pin_data]
pub(crate) struct Slots {
    #[pin]
    pub(super) inner: SpinLock<Tables>,
}

/// Takes the first of a table.
fn pop<V>(table: &mut RBTree<usize, V>) -> Option<(usize, V)> {
    let (_, node) = table.cursor_front_mut()?.remove_current();
    Some(node.to_key_value())
}

impl Slots {
    /// No room yet; none is made without `harmless`.
    pub(crate) fn new(harmless: Option<Harmless>) -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- new_spinlock!(Tables {
                cqs: RBTree::new(),
                qps: RBTree::new(),
                abandoned: Stack::default(),
                closed: harmless.is_none(),
                harmless,
            }),
        })
    }

    /// Whether it is of use to ask for more than the ULP does.
    pub(crate) fn is_open(&self) -> bool {
        !self.inner.lock().closed
    }

    /// The QP was made.
    ///
    /// # Safety
    ///
    /// As for [`Slots::take`]; `qp` is the QP, of which nobody knows yet.
    pub(crate) unsafe fn qp_made(&self, qp: *mut rdma::ib_qp, room: Room) {
        // SAFETY: By the function's contract.
        let (qpn, direct) = unsafe { ((*qp).qp_num, is_direct(&*room.cq)) };
        room.nudges.set_qpn(qpn);
        let slot = Slot {
            cq: room.cq as usize,
            nudges: room.nudges,
            direct,
        };
        let node = room.node.into_node(qp as usize, slot);
        let mut tables = self.inner.lock();
        // Where it is closed already: nothing comes of it.
        let old = tables.qps.insert(node);
        drop(tables);
        if let Some(old) = old {
            // SAFETY: A QP that was not seen to be destroyed, and is.
            unsafe { self.qp_gone(old) };
        }
        stats::count(Stat::SlotsReserved);
    }

    /// A QP is about to be destroyed. It is nudged no more; a call of [`Slots::nudge`] in flight holds
    /// the destruction up, so what is returned stays until that has returned.
    pub(crate) fn qp_going(&self, qp: *mut rdma::ib_qp) -> Option<RBTreeNode<usize, Slot>> {
        self.inner.lock().qps.remove_node(&(qp as usize))
    }

    /// It was not destroyed.
    pub(crate) fn qp_stays(&self, qp: *mut rdma::ib_qp, node: RBTreeNode<usize, Slot>) {
        let mut tables = self.inner.lock();
        tables.qps.insert(node);
        if let (true, Some(harmless)) = (tables.closed, tables.harmless) {
            if let Some(slot) = tables.qps.get(&(qp as usize)) {
                slot.nudges.disown(harmless);
            }
        }
    }

    /// It was destroyed.
    ///
    /// # Safety
    ///
    /// The caller has destroyed the QP, and its CQ is still there.
    pub(crate) unsafe fn qp_gone(&self, node: RBTreeNode<usize, Slot>) {
        let (_, slot) = node.to_key_value();
        let Slot { cq, nudges, .. } = slot;
        let count = nudges.len();
        nudges.orphan();
        let mut put = 0;
        {
            let mut tables = self.inner.lock();
            let Tables {
                cqs,
                abandoned,
                closed,
                harmless,
                ..
            } = &mut *tables;
            let known = cqs.get_mut(&cq);
            if nudges.idle() {
                if let Some(known) = known {
                    put = known.reserve.release(count);
                }
                // SAFETY: The QP is gone: none is begun any more.
                unsafe { nudges.free() };
            } else {
                stats::count(Stat::NudgesOrphaned);
                match (known, harmless) {
                    (Some(known), _) => {
                        // A CQ of the pool is polled as completions come, and its ULPs have to find
                        // their accounts balanced; in one of a ULP's own the place may be held on.
                        if known.reserve.is_pooled() {
                            put = known.reserve.release(count);
                        }
                        known.orphans.push(nudges);
                    }
                    (None, harmless) => {
                        if let (true, Some(harmless)) = (*closed, harmless) {
                            nudges.disown(*harmless);
                        }
                        abandoned.push(nudges);
                    }
                }
            }
        }
        if put != 0 {
            // SAFETY: By the function's contract.
            unsafe { rdma::ib_cq_pool_put(cq as *mut rdma::ib_cq, put) };
        }
    }

    /// Posts a nudge on a QP; its number, as [`Slots::acked`] has it. Any that were posted before may
    /// still be under way. [`super::events::Hint::Nudged`] follows when the peer has acknowledged it,
    /// which on a CQ that the ULP polls itself may be seen much later.
    ///
    /// The caller has found the QP in RTS, connected to the peer it expects, since it took this
    /// reference. That the ULP may move it on to ERR hurts nobody: the nudge is flushed.
    pub(crate) fn nudge(&self, qp: &QpRef) -> Result<u32, NoNudge> {
        let begun: Begun = {
            let tables = self.inner.lock();
            if tables.closed {
                return Err(NoNudge::NoSlot);
            }
            let key = qp.raw() as usize;
            let slot = tables.qps.get(&key).ok_or(NoNudge::NoSlot)?;
            slot.nudges.begin().ok_or(NoNudge::Outstanding)?
        };
        let seq = begun.seq;
        // SAFETY: The reference keeps the QP from being destroyed, and so what was begun from being
        // freed.
        unsafe { begun.post(qp.raw()) }.map_err(NoNudge::Post)?;
        Ok(seq)
    }

    /// Number of the last nudge that the QP's peer has acknowledged; 0 where none was.
    pub(crate) fn acked(&self, qp: &QpRef) -> u32 {
        let tables = self.inner.lock();
        tables
            .qps
            .get(&(qp.raw() as usize))
            .map_or(0, |slot| slot.nudges.acked())
    }

    /// Gives the pool back what it lent, and makes and uses no more room; waits a moment for nudges
    /// under way. The hooks are still there. Process context.
    pub(crate) fn close(&self) {
        {
            let mut tables = self.inner.lock();
            tables.closed = true;
            while let Some((cq, mut known)) = pop(&mut tables.cqs) {
                let put = known.reserve.close();
                if put != 0 {
                    // SAFETY: It was in the table, and is taken out of it, under this lock, before it
                    // is freed.
                    unsafe { rdma::ib_cq_pool_put(cq as *mut rdma::ib_cq, put) };
                }
                tables.abandoned.append(known.orphans);
            }
        }
        for _ in 0..SETTLE_TRIES {
            let busy = {
                let tables = self.inner.lock();
                let busy = tables
                    .qps
                    .values()
                    .any(|slot| !slot.direct && !slot.nudges.idle());
                busy
            };
            if !busy {
                return;
            }
            fsleep(Delta::from_millis(10));
        }
    }

    /// Sees to it that no completion of a nudge comes to this module any more, but for those on their
    /// way. The hooks are gone.
    pub(crate) fn disown(&self) {
        let tables = self.inner.lock();
        let Some(harmless) = tables.harmless else {
            return;
        };
        tables.abandoned.for_each(|n| n.disown(harmless));
        for slot in tables.qps.values() {
            slot.nudges.disown(harmless);
        }
    }

    /// Frees the memory of all nudges, but for those that a driver still knows. Nobody is in this module.
    pub(crate) fn free(&self) {
        let mut left = 0usize;
        let mut tables = self.inner.lock();
        let mut all = core::mem::take(&mut tables.abandoned);
        while let Some((_, slot)) = pop(&mut tables.qps) {
            all.push(slot.nudges);
        }
        drop(tables);
        while let Some(nudges) = all.pop() {
            if nudges.idle() {
                // SAFETY: None is begun since `close`.
                unsafe { nudges.free() };
            } else {
                left += 1;
                nudges.leak();
            }
        }
        if left != 0 {
            pr_info!("nudges of {left} QPs were not completed yet, their memory is left behind\n");
        }
    }
}

/// How often, at intervals of 10 ms, it is looked whether nudges were completed.
const SETTLE_TRIES: u32 = 50;
