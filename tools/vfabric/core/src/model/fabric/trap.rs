// SPDX-License-Identifier: GPL-2.0-only

//! Trap 128: a switch tells the SM that the state of a link has changed (IBA 14.2.5.1, 14.3).
//!
//! A trap is sent to the LID of the SM at once, then again until the SM represses it, at most
//! [`MAX_TRIES`] times; between two traps of a node lies at least its SubnetTimeOut. Another change
//! while one is being repeated makes it a new trap.

use super::super::super::mem::{KVec, GFP_ATOMIC};
use super::super::packet::{Bth, Deth, Lrh, Opcode, Packet};
use super::forward::VL15;
use super::mad::{put16, put32, Mad, ATTR_NOTICE, CLASS_SMP, MAD_SIZE, METHOD_TRAP};
use super::{Fabric, NodeId};

/// Trap number: link state of a port of the switch has changed.
const LINK_STATE_CHANGE: u16 = 128;
/// How often one trap is sent without being repressed.
const MAX_TRIES: u8 = 20;
/// At least this lies between a trap and its repetition, in nanoseconds.
const REPEAT_NS: u64 = 500_000_000;

/// The trap that a node has to send.
#[derive(Debug, Default)]
pub(super) struct Trap {
    /// Transaction ID of the latest.
    tid: u64,
    /// When it is to be sent next.
    due: Option<u64>,
    /// How often it was sent.
    tries: u8,
    /// No trap before this.
    not_before: u64,
}

impl Fabric {
    /// A switch has something to tell.
    pub(super) fn want_trap(&mut self, node: NodeId, now: u64) {
        if let Some(node) = self.node_mut(node) {
            let trap = &mut node.trap;
            trap.tid = trap.tid.wrapping_add(1);
            trap.tries = 0;
            trap.due = Some(now.max(trap.not_before));
        }
        self.update_trap_due();
    }

    /// The SM has heard.
    pub(super) fn trap_repressed(&mut self, node: NodeId, tid: u64) {
        if let Some(node) = self.node_mut(node) {
            if node.trap.tid == tid {
                node.trap.due = None;
            }
        }
        self.update_trap_due();
    }

    pub(super) fn send_due_traps(&mut self, now: u64) {
        if self.trap_due.is_none_or(|due| due > now) {
            return;
        }
        for index in 0..self.nodes.len() {
            if let Some(packet) = self.due_trap(index, now) {
                self.send_from_switch(NodeId(index as u16), packet);
            }
        }
        self.update_trap_due();
    }

    /// The trap of one node, if it is due now, and plans its repetition.
    fn due_trap(&mut self, index: usize, now: u64) -> Option<Packet> {
        let node = self.nodes.get_mut(index)?;
        node.trap.due.filter(|due| *due <= now)?;
        node.trap.due = None;
        let port0 = node.port(0)?;
        let (lid, sm_lid, sm_sl) = (port0.lid, port0.sm_lid, port0.sm_sl);
        if lid == 0 || sm_lid == 0 {
            // Nobody to tell: the next sweep finds PortStateChange.
            return None;
        }
        let interval = 4096u64 << port0.subnet_timeout.min(31);
        let trap = &mut node.trap;
        trap.tries = trap.tries.saturating_add(1);
        trap.not_before = now.saturating_add(interval);
        if trap.tries < MAX_TRIES {
            trap.due = Some(now.saturating_add(interval.max(REPEAT_NS)));
        }
        let packet = notice(lid, sm_lid, sm_sl, trap.tid);
        if packet.is_none() {
            self.stats.no_room = self.stats.no_room.wrapping_add(1);
        }
        packet
    }

    fn update_trap_due(&mut self) {
        self.trap_due = self.nodes.iter().filter_map(|n| n.trap.due).min();
    }
}

/// The Notice as a packet to the SM; `None` without memory.
fn notice(lid: u16, sm_lid: u16, sm_sl: u8, tid: u64) -> Option<Packet> {
    let mut bytes = [0; MAD_SIZE];
    let mut mad = Mad::request(&mut bytes, CLASS_SMP, METHOD_TRAP, ATTR_NOTICE, tid);
    let d = mad.smp_data();
    // IsGeneric, Type 1 (urgent), ProducerType 2 (switch)
    put32(d, 0, 0x8100_0002);
    put16(d, 4, LINK_STATE_CHANGE);
    // IssuerLID, and LIDADDR in the details
    put16(d, 6, lid);
    put16(d, 10, lid);
    let mut payload = KVec::new();
    payload.extend_from_slice(&bytes, GFP_ATOMIC).ok()?;
    Some(Packet {
        lrh: Lrh {
            vl: VL15,
            sl: sm_sl,
            dlid: sm_lid,
            slid: lid,
        },
        grh: None,
        bth: Bth {
            opcode: Opcode::UdSend,
            solicited: false,
            mig_req: true,
            pkey: 0xffff,
            dest_qp: 0,
            ack_req: false,
            psn: 0,
        },
        deth: Some(Deth::default()),
        reth: None,
        aeth: None,
        imm: None,
        invalidate: None,
        payload,
    })
}
