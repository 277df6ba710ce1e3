// SPDX-License-Identifier: GPL-2.0-only

//! The tables of one HCA: queue pairs, memory regions, multicast members, counts.

use super::event::Event;
use super::hca::Hca;
use super::qp::{self, Qp};
use super::region::Regions;
use crate::model::fabric::NodeId;
use crate::model::knobs::Knobs;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::Arc;

/// QP numbers below are special; the first ones of an HCA begin here.
const FIRST_QPN: u32 = 0x40;
/// The last one: 0xffffff means multicast.
const LAST_QPN: u32 = 0xff_fffe;
/// Queue pairs of an HCA.
pub(crate) const MAX_QP: u32 = 65536;

/// Migrations by cause.
#[derive(Clone, Copy, Default)]
pub(crate) struct Migrations {
    pub(crate) exhaustion: u64,
    pub(crate) peer: u64,
    pub(crate) command: u64,
}

/// A multicast group that a queue pair is attached to.
struct Member {
    gid: [u8; 16],
    qp: Arc<Qp>,
}

/// One HCA.
pub(crate) struct HcaState {
    pub(crate) node: NodeId,
    pub(crate) hca: Option<Arc<Hca>>,
    pub(crate) mrs: Regions,
    qps: RBTree<u32, Arc<Qp>>,
    next_qpn: u32,
    count: u32,
    /// QP0 and QP1 of each port, port 1 first.
    special: KVec<[Option<Arc<Qp>>; 2]>,
    members: KVec<Member>,
    pub(crate) migrations: Migrations,
    pub(crate) knobs: Knobs,
    /// A port event that waits for a later one to overtake it, and until when.
    pub(crate) held: Option<(Event, u64)>,
}

impl HcaState {
    pub(crate) fn new(node: NodeId, ports: u8) -> Result<Self> {
        let mut special = KVec::new();
        for _ in 0..ports {
            special.push([None, None], GFP_KERNEL)?;
        }
        Ok(Self {
            node,
            hca: None,
            mrs: Regions::new(),
            qps: RBTree::new(),
            next_qpn: FIRST_QPN,
            count: 0,
            special,
            members: KVec::new(),
            migrations: Migrations::default(),
            knobs: Knobs::PLAIN,
            held: None,
        })
    }

    /// A number for a new queue pair: the next one, so that an old number comes back late. A
    /// consumer that reconnects after a lost DREQ would be refused as stale otherwise.
    pub(crate) fn take_qpn(&mut self) -> Result<u32> {
        if self.count >= MAX_QP {
            return Err(ENOMEM);
        }
        loop {
            let qpn = self.next_qpn;
            self.next_qpn = if qpn >= LAST_QPN { FIRST_QPN } else { qpn + 1 };
            if self.qps.get(&qpn).is_none() {
                return Ok(qpn);
            }
        }
    }

    /// The device is gone: nobody is told anything any more.
    pub(crate) fn forget_device(&mut self) {
        self.hca = None;
        self.held = None;
    }

    /// Makes a queue pair reachable.
    pub(crate) fn insert(&mut self, qp: Arc<Qp>) -> Result {
        if let Some(slot) = self.special_slot(&qp) {
            if slot.is_some() {
                return Err(EBUSY);
            }
            *slot = Some(qp);
            return Ok(());
        }
        let node = RBTreeNode::new(qp.qpn, qp, GFP_KERNEL)?;
        self.qps.insert(node);
        self.count += 1;
        Ok(())
    }

    /// Takes a queue pair out of all tables.
    pub(crate) fn remove(&mut self, qp: &Arc<Qp>) {
        self.members.retain(|m| !Arc::ptr_eq(&m.qp, qp));
        if let Some(slot) = self.special_slot(qp) {
            *slot = None;
        } else if self.qps.remove(&qp.qpn).is_some() {
            self.count -= 1;
        }
    }

    fn special_slot(&mut self, qp: &Qp) -> Option<&mut Option<Arc<Qp>>> {
        let which = match qp.kind {
            qp::Kind::Smi => 0,
            qp::Kind::Gsi => 1,
            _ => return None,
        };
        let port = usize::from(qp.port).checked_sub(1)?;
        self.special.get_mut(port)?.get_mut(which)
    }

    /// QP0 or QP1 of a port.
    pub(crate) fn special(&self, port: u8, which: usize) -> Option<Arc<Qp>> {
        let port = usize::from(port).checked_sub(1)?;
        self.special.get(port)?.get(which)?.clone()
    }

    /// The queue pair with this number.
    pub(crate) fn qp(&self, qpn: u32) -> Option<&Arc<Qp>> {
        self.qps.get(&qpn)
    }

    /// All queue pairs but the special ones, by number.
    pub(crate) fn qps(&self) -> impl Iterator<Item = &Arc<Qp>> {
        self.qps.values()
    }

    /// The first queue pair with this number or a higher one.
    pub(crate) fn qp_from(&self, qpn: u32) -> Option<Arc<Qp>> {
        let at = self.qps.cursor_lower_bound(&qpn)?;
        Some(at.current().1.clone())
    }

    /// Attaches a queue pair to a multicast group; doing so again changes nothing.
    pub(crate) fn attach(&mut self, qp: Arc<Qp>, gid: [u8; 16]) -> Result {
        if self
            .members
            .iter()
            .any(|m| m.gid == gid && Arc::ptr_eq(&m.qp, &qp))
        {
            return Ok(());
        }
        self.members.push(Member { gid, qp }, GFP_KERNEL)?;
        Ok(())
    }

    /// Detaches a queue pair from a multicast group.
    pub(crate) fn detach(&mut self, qp: &Qp, gid: [u8; 16]) -> Result {
        let before = self.members.len();
        self.members
            .retain(|m| m.gid != gid || !core::ptr::eq(&*m.qp, qp));
        if self.members.len() == before {
            return Err(EINVAL);
        }
        Ok(())
    }

    /// The member of a group at `i` or after, and where to go on.
    pub(crate) fn member_from(&self, gid: &[u8; 16], i: usize) -> Option<(Arc<Qp>, usize)> {
        let (n, m) = self
            .members
            .iter()
            .enumerate()
            .skip(i)
            .find(|(_, m)| m.gid == *gid)?;
        Some((m.qp.clone(), n + 1))
    }
}
