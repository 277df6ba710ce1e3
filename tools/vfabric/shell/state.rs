// SPDX-License-Identifier: GPL-2.0-only

//! What the engine's lock protects: the fabric, the tables of each HCA, timers and what is to be told.

use super::bindings;
use super::engine::Outbox;
use super::event::Event;
use super::log;
use super::qp::{self, Qp};
use super::rc_host::RcHost;
use super::tables::HcaState;
use super::ud;
use super::wq::SgList;
use crate::model::fabric::{Fabric, NodeId, Output, PortEvent, PortRef};
use crate::model::knobs::KnobError;
use crate::model::packet::{Opcode, Packet};
use crate::model::rc;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNodeReservation};
use kernel::sync::Arc;

/// Time in nanoseconds (CLOCK_MONOTONIC).
pub(crate) fn now() -> u64 {
    // SAFETY: No requirements.
    (unsafe { kernel::bindings::ktime_get() }) as u64
}

/// How long a port event waits to be overtaken, where the knob says that events change places.
const HOLD_EVENT_NS: u64 = 20_000_000;

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

    /// Sets knobs of the HCA `index`, also for the queue pairs that it has.
    pub(crate) fn set_knobs(&mut self, index: usize, text: &str) -> Result<(), KnobError> {
        self.hca(index).knobs.set(text)?;
        let quirks = self.hca(index).knobs.rc;
        let mut from = 0;
        while let Some(qp) = self.hca_ref(index).qp_from(from) {
            from = qp.qpn.wrapping_add(1);
            self.with_rc(&qp, |rc, _| rc.set_quirks(quirks));
        }
        Ok(())
    }

    fn hca_of(&self, node: NodeId) -> Option<usize> {
        self.hcas.iter().position(|h| h.node == node)
    }

    /// When something is due that nobody kicks the engine for.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let timer = self.timers.keys().next().map(|k| k.0);
        let held = self.hcas.iter().filter_map(|h| h.held.as_ref());
        let held = held.map(|h| h.1).min();
        [timer, held, self.fabric.next_due()]
            .into_iter()
            .flatten()
            .min()
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
        self.release_events(now);
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

    /// A cable is back: some HCAs report the port as in error once more.
    pub(crate) fn joined(&mut self, at: PortRef) {
        let peer = self.fabric.port(at.node, at.port).and_then(|p| p.peer);
        for end in [Some(at), peer].into_iter().flatten() {
            let hca = self.hca_of(end.node);
            if hca.is_some_and(|h| self.hca_ref(h).knobs.port_err_on_join) {
                self.port_event(end.node, end.port, PortEvent::PortErr);
            }
        }
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
            self.tell_port(index, Event::Port(hca, port, event));
        }
    }

    /// Tells a port event, in order or not.
    fn tell_port(&mut self, index: usize, event: Event) {
        let reorder = self.hca_ref(index).knobs.reorder_events;
        match self.hca(index).held.take() {
            Some((earlier, _)) => {
                self.out.event(event);
                self.out.event(earlier);
            }
            None if reorder => {
                let until = now().saturating_add(HOLD_EVENT_NS);
                self.hca(index).held = Some((event, until));
            }
            None => self.out.event(event),
        }
    }

    /// Tells the port events that nothing has overtaken in time.
    fn release_events(&mut self, now: u64) {
        for h in self.hcas.iter_mut() {
            if let Some((event, _)) = h.held.take_if(|(_, until)| *until <= now) {
                self.out.event(event);
            }
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
