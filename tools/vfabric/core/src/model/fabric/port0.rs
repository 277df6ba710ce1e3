// SPDX-License-Identifier: GPL-2.0-only

//! Port 0 of a switch: packets for its agents, and packets that it sends.

use super::super::packet::{Opcode, Packet};
use super::directed::Smi;
use super::forward::{Arrival, VL15};
use super::mad::{self, MAD_SIZE};
use super::port::LID_PERMISSIVE;
use super::{Fabric, NodeId, PortRef};

impl Fabric {
    /// A packet for the switch's own port 0: management only.
    pub(super) fn at_port0(&mut self, at: PortRef, mut packet: Packet, now: u64) -> Arrival {
        let vl15 = packet.lrh.vl == VL15;
        let smp = packet.bth.opcode == Opcode::UdSend && packet.bth.dest_qp == 0;
        if vl15 != smp || packet.payload.len() != MAD_SIZE {
            self.vanish(at);
            return Arrival::Done;
        }
        let port0 = PortRef {
            node: at.node,
            port: 0,
        };
        let permissive = packet.lrh.dlid == LID_PERMISSIVE;
        if !permissive {
            let words = packet.wire_words();
            if let Some(p) = self.port_mut(port0) {
                p.counters.received(words, false);
            }
        }
        if !vl15 {
            return match self.gsi(at, &mut packet) {
                true => self.answer(at.node, packet),
                false => Arrival::Done,
            };
        }
        let directed = packet.payload.get(mad::CLASS) == Some(&mad::CLASS_SMP_DIRECTED);
        if directed {
            return match self.smi(at, permissive, &mut packet, now) {
                Smi::Out(port) => Arrival::Afresh(
                    PortRef {
                        node: at.node,
                        port,
                    },
                    packet,
                ),
                Smi::Route => self.answer(at.node, packet),
                Smi::Drop => {
                    self.vanish(at);
                    Arrival::Done
                }
            };
        }
        match self.smp_at_switch(at, &mut packet, now) {
            // An answer to somebody who has no LID yet goes back the way it came.
            true if packet.lrh.dlid == LID_PERMISSIVE => Arrival::Afresh(at, packet),
            true => self.answer(at.node, packet),
            false => Arrival::Done,
        }
    }

    /// Sends a packet of a switch's own to its DLID.
    fn answer(&mut self, node: NodeId, packet: Packet) -> Arrival {
        let port0 = PortRef { node, port: 0 };
        match self.unicast_out(node, packet.lrh.dlid) {
            Some(out) => {
                let words = packet.wire_words();
                if let Some(p) = self.port_mut(port0) {
                    p.counters.sent(words, false);
                }
                Arrival::Afresh(PortRef { node, port: out }, packet)
            }
            None => {
                self.discard(port0);
                Arrival::Done
            }
        }
    }

    /// Sends a packet that a switch has made by itself.
    pub(super) fn send_from_switch(&mut self, node: NodeId, packet: Packet) {
        if let Arrival::Afresh(out, packet) = self.answer(node, packet) {
            self.send(out, 0, packet);
        }
    }
}
