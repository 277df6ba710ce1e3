// SPDX-License-Identifier: GPL-2.0-only

//! Room for nudges in CQs, and its way to a QP.
//!
//! Locks: see `slots.rs`.

use super::bindings as rdma;
use super::nudge::{Nudges, Stack};
use super::slots::{Slot, Slots};
use crate::apm::slots::{self, Reserve};
use kernel::prelude::*;
use kernel::rbtree::RBTreeNodeReservation;

/// A CQ with room.
pub(super) struct Cq {
    pub(super) reserve: Reserve,
    /// Nudges of QPs that are destroyed, not completed when last looked at.
    pub(super) orphans: Stack,
}

/// What is needed to make a CQ known, allocated before it is made.
pub(crate) struct CqNode(RBTreeNodeReservation<usize, Cq>);

impl CqNode {
    /// Allocates it.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL)?))
    }
}

/// Whether a CQ is polled by its ULP alone.
pub(super) fn is_direct(cq: &rdma::ib_cq) -> bool {
    cq.poll_ctx == rdma::ib_poll_context_IB_POLL_DIRECT
}

/// Room taken in a CQ, for a QP that is about to be made.
pub(crate) struct Room {
    pub(super) cq: *mut rdma::ib_cq,
    pub(super) nudges: Nudges,
    pub(super) node: RBTreeNodeReservation<usize, Slot>,
}

impl Room {
    /// How many nudges it is for.
    pub(crate) fn len(&self) -> u32 {
        self.nudges.len()
    }
}

impl Cq {
    /// Frees orphans that were completed, and the places that they held in a CQ of a ULP's own.
    fn sweep(&mut self) {
        let mut kept = Stack::default();
        while let Some(nudges) = self.orphans.pop() {
            if !nudges.idle() {
                kept.push(nudges);
                continue;
            }
            if !self.reserve.is_pooled() {
                self.reserve.release(nudges.len());
            }
            // SAFETY: The QP is gone: none is begun any more.
            unsafe { nudges.free() };
        }
        self.orphans = kept;
    }
}

impl Slots {
    /// A ULP has made a CQ for itself, with `entries` more than it asked for.
    pub(crate) fn cq_made(&self, cq: *mut rdma::ib_cq, entries: u32, node: CqNode) {
        let made = Cq {
            reserve: Reserve::own(entries),
            orphans: Stack::default(),
        };
        let node = node.0.into_node(cq as usize, made);
        let mut tables = self.inner.lock();
        if tables.closed {
            drop(tables);
            drop(node);
            return;
        }
        if let Some(old) = tables.cqs.insert(node) {
            // One that was not seen to be freed.
            let (_, old) = old.to_key_value();
            tables.abandoned.append(old.orphans);
        }
    }

    /// A ULP was lent a CQ of the pool, with [`slots::NUDGES`] entries more than it asked for. `false`
    /// where these have to be given back.
    pub(crate) fn cq_lent(&self, cq: *mut rdma::ib_cq, node: CqNode) -> bool {
        let mut tables = self.inner.lock();
        if tables.closed {
            return false;
        }
        if let Some(known) = tables.cqs.get_mut(&(cq as usize)) {
            known.reserve.lent();
        } else {
            let lent = Cq {
                reserve: Reserve::pooled(),
                orphans: Stack::default(),
            };
            tables.cqs.insert(node.0.into_node(cq as usize, lent));
        }
        true
    }

    /// A ULP puts a CQ to the pool; how many entries more than it says.
    pub(crate) fn cq_put(&self, cq: *mut rdma::ib_cq) -> u32 {
        let mut tables = self.inner.lock();
        tables
            .cqs
            .get_mut(&(cq as usize))
            .map_or(0, |cq| cq.reserve.put())
    }

    /// A CQ is about to be freed; what is to be freed when it was, with [`cq_gone`].
    pub(crate) fn cq_going(&self, cq: *mut rdma::ib_cq) -> Stack {
        let node = self.inner.lock().cqs.remove_node(&(cq as usize));
        node.map_or(Stack::default(), |node| node.to_key_value().1.orphans)
    }

    /// A CQ was not freed, and what becomes of it is not known: it keeps what it has.
    pub(crate) fn abandon(&self, orphans: Stack) {
        let mut tables = self.inner.lock();
        if let (true, Some(harmless)) = (tables.closed, tables.harmless) {
            orphans.for_each(|nudges| nudges.disown(harmless));
        }
        tables.abandoned.append(orphans);
    }

    /// Takes room in the send CQ of a QP that is about to be made. Sleeps.
    ///
    /// # Safety
    ///
    /// `cq` is a CQ, and a ULP uses it during this call.
    pub(crate) unsafe fn take(&self, cq: *mut rdma::ib_cq) -> Result<Room> {
        // SAFETY: By the function's contract.
        let (device, direct, cqe_style) =
            unsafe { ((*cq).device, is_direct(&*cq), !(*cq).wc.is_null()) };
        let node = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let count = {
            let mut tables = self.inner.lock();
            let known = tables.cqs.get_mut(&(cq as usize)).ok_or(ENOENT)?;
            known.sweep();
            known.reserve.take(slots::wanted(direct))
        };
        let nudges = match Nudges::new(device, count) {
            Ok(nudges) if count != 0 && cqe_style => nudges,
            other => {
                // SAFETY: As above.
                unsafe { self.release(cq, count) };
                if let Ok(nudges) = other {
                    // SAFETY: None was begun.
                    unsafe { nudges.free() };
                }
                return Err(ENOSPC);
            }
        };
        Ok(Room { cq, nudges, node })
    }

    /// Gives room back in a CQ.
    ///
    /// # Safety
    ///
    /// `cq` is a CQ, and a ULP uses it during this call, or has not returned from destroying a QP on it.
    unsafe fn release(&self, cq: *mut rdma::ib_cq, count: u32) {
        let put = {
            let mut tables = self.inner.lock();
            tables
                .cqs
                .get_mut(&(cq as usize))
                .map_or(0, |cq| cq.reserve.release(count))
        };
        if put != 0 {
            // SAFETY: A CQ of the pool is there as long as its device, and that as long as it has users.
            unsafe { rdma::ib_cq_pool_put(cq, put) };
        }
    }

    /// The QP could not be made so large.
    ///
    /// # Safety
    ///
    /// As for [`Slots::take`].
    pub(crate) unsafe fn give_back(&self, room: Room) {
        // SAFETY: By the function's contract.
        unsafe { self.release(room.cq, room.len()) };
        // SAFETY: None was begun.
        unsafe { room.nudges.free() };
    }
}

/// Frees what belonged to a CQ.
///
/// # Safety
///
/// The CQ was freed.
pub(crate) unsafe fn cq_gone(mut orphans: Stack) {
    while let Some(nudges) = orphans.pop() {
        // SAFETY: No completion is delivered any more.
        unsafe { nudges.free() };
    }
}
