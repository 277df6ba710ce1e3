// SPDX-License-Identifier: GPL-2.0-only

//! What the engine's lock protects: the fabric, and the tables of each HCA.

use super::bindings;
use super::engine::Outbox;
use super::event::Event;
use super::hca::Hca;
use super::log;
use super::qp::{self, Qp};
use super::rc_host::RcHost;
use super::region::Regions;
use super::ud;
use super::wq::SgList;
use crate::model::fabric::{Fabric, NodeId, Output, PortEvent};
use crate::model::packet::{Opcode, Packet};
use crate::model::rc;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode, RBTreeNodeReservation};
use kernel::sync::Arc;

/// QP numbers below are special; the first ones of an HCA begin here.
const FIRST_QPN: u32 = 0x40;
/// The last one: 0xffffff means multicast.
const LAST_QPN: u32 = 0xff_fffe;
/// Queue pairs of an HCA.
pub(crate) const MAX_QP: u32 = 65536;

/// Time in nanoseconds (CLOCK_MONOTONIC).
pub(crate) fn now() -> u64 {
    // SAFETY: No requirements.
    (unsafe { kernel::bindings::ktime_get() }) as u64
}

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
}

impl HcaState {
    fn new(node: NodeId, ports: u8) -> Result<Self> {
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

/// Key of a timer: when, which HCA, which queue pair.
pub(crate) type TimerKey = (u64, usize, u32);

/// Scatter/gather lists in use.
pub(crate) struct Lists {
    pub(crate) send: SgList,
    pub(crate) recv: SgList,
}

/// Everything.
pub(crate) struct State {
    pub(crate) fabric: Fabric,
    hcas: KVec<HcaState>,
    none: HcaState,
    pub(crate) out: Outbox,
    /// Lists of the requests that the transport works on during a call: too large for the stack.
    pub(crate) lists: Lists,
    timers: RBTree<TimerKey, ()>,
}

impl State {
    /// An HCA's tables for each HCA of the fabric, in its order.
    pub(crate) fn new(fabric: Fabric) -> Result<Self> {
        let mut hcas = KVec::new();
        for (node, def) in fabric.hcas() {
            hcas.push(HcaState::new(node, def.port_count())?, GFP_KERNEL)?;
        }
        Ok(Self {
            fabric,
            hcas,
            none: HcaState::new(NodeId(u16::MAX), 0)?,
            out: Outbox::new(),
            lists: Lists {
                send: SgList::new(),
                recv: SgList::new(),
            },
            timers: RBTree::new(),
        })
    }

    /// Tables of the HCA `index`.
    pub(crate) fn hca(&mut self, index: usize) -> &mut HcaState {
        self.hcas.get_mut(index).unwrap_or(&mut self.none)
    }

    /// The same, for reading.
    pub(crate) fn hca_ref(&self, index: usize) -> &HcaState {
        self.hcas.get(index).unwrap_or(&self.none)
    }

    /// All HCAs.
    pub(crate) fn hcas(&self) -> &[HcaState] {
        &self.hcas
    }

    fn hca_of(&self, node: NodeId) -> Option<usize> {
        self.hcas.iter().position(|h| h.node == node)
    }

    /// When something is due that nobody kicks the engine for.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let timer = self.timers.keys().next().map(|k| k.0);
        match (timer, self.fabric.next_due()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Queues the timer of a queue pair; whoever takes it out early gives its node back.
    pub(crate) fn add_timer(&mut self, key: TimerKey, node: RBTreeNodeReservation<TimerKey, ()>) {
        self.timers.insert(node.into_node(key, ()));
    }

    /// Takes a timer back.
    pub(crate) fn take_timer(
        &mut self,
        key: &TimerKey,
    ) -> Option<RBTreeNodeReservation<TimerKey, ()>> {
        Some(self.timers.remove_node(key)?.into_reservation())
    }

    /// Lets the queue pairs know whose time has come.
    pub(crate) fn expire_timers(&mut self) {
        let now = now();
        loop {
            let first = self.timers.keys().next().copied();
            let Some(key) = first.filter(|k| k.0 <= now) else {
                return;
            };
            let node = self.take_timer(&key);
            if let Some(qp) = self.hca_ref(key.1).qp(key.2).cloned() {
                qp.timer_fired(self, node);
                self.with_rc(&qp, |rc, host| {
                    if rc.timer().is_some_and(|t| t <= now) {
                        rc.tick(host);
                    }
                });
            }
        }
    }

    /// Moves the fabric on by one step; whether there was one.
    pub(crate) fn deliver_packet(&mut self) -> bool {
        match self.fabric.poll(now()) {
            None => false,
            Some(Output::Event { node, port, kind }) => {
                self.port_event(node, port, kind);
                true
            }
            Some(Output::Deliver { node, port, packet }) => {
                if let Some(hca) = self.hca_of(node) {
                    self.receive(hca, port, packet);
                }
                true
            }
        }
    }

    fn receive(&mut self, hca: usize, port: u8, packet: Packet) {
        if packet.bth.opcode == Opcode::UdSend {
            ud::receive(self, hca, port, packet);
            return;
        }
        let Some(qp) = self.hca_ref(hca).qp(packet.bth.dest_qp).cloned() else {
            return;
        };
        self.with_rc(&qp, |rc, host| rc.receive(port, packet, host));
    }

    fn port_event(&mut self, node: NodeId, port: u8, kind: PortEvent) {
        let event = match kind {
            PortEvent::PortErr => bindings::ib_event_type_IB_EVENT_PORT_ERR,
            PortEvent::PortActive => bindings::ib_event_type_IB_EVENT_PORT_ACTIVE,
            PortEvent::LidChange => bindings::ib_event_type_IB_EVENT_LID_CHANGE,
            PortEvent::SmChange => bindings::ib_event_type_IB_EVENT_SM_CHANGE,
            PortEvent::GidChange => bindings::ib_event_type_IB_EVENT_GID_CHANGE,
            PortEvent::PkeyChange => bindings::ib_event_type_IB_EVENT_PKEY_CHANGE,
            PortEvent::ClientReregister => bindings::ib_event_type_IB_EVENT_CLIENT_REREGISTER,
        };
        let Some(index) = self.hca_of(node) else {
            return;
        };
        if let Some(hca) = self.hca(index).hca.clone() {
            log::port_event(self, node, port, kind);
            self.out.event(Event::Port(hca, port, event));
        }
    }

    /// Lets a queue pair do what was posted to it.
    pub(crate) fn run(&mut self, qp: &Arc<Qp>) {
        match qp.kind {
            qp::Kind::Rc => self.with_rc(qp, |rc, host| {
                rc.posted(host);
                rc.flush(host);
            }),
            _ => ud::run(self, qp),
        }
    }

    /// Calls into the transport of a queue pair with this HCA as its host.
    pub(crate) fn with_rc(&mut self, qp: &Arc<Qp>, f: impl FnOnce(&mut rc::Rc, &mut RcHost<'_>)) {
        // Taken out, so that the transport and its host are not borrowed from each other.
        let Some(mut rc) = qp.take_rc(self) else {
            return;
        };
        f(&mut rc, &mut RcHost::new(self, qp));
        let failed = rc.state() == rc::State::Err;
        qp.put_rc(self, rc);
        // Who posted a receive while the queue pair was on its way to ERR was not told to kick.
        if failed && qp.rq.lock().ready() {
            if let Some(mut rc) = qp.take_rc(self) {
                rc.flush(&mut RcHost::new(self, qp));
                qp.put_rc(self, rc);
            }
        }
    }
}
