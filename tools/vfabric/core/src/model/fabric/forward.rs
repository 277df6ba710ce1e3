// SPDX-License-Identifier: GPL-2.0-only

//! How packets move: out of a port, across a cable, into a port, through a switch.

use super::super::packet::{Opcode, Packet};
use super::super::topology::Kind;
use super::held::Waiting;
use super::node::{MFT_CAP, NO_PORT};
use super::port::{PortState, LID_MULTICAST, LID_PERMISSIVE};
use super::{Fabric, Flight, NodeId, Output, PortRef};

/// VL of subnet management.
pub(super) const VL15: u8 = 15;
/// Links that a packet may cross; in a switch without a hop count, its lifetime would end it.
const MAX_HOPS: u8 = 64;

/// What becomes of a packet that has entered a node.
pub(super) enum Arrival {
    /// It is for this HCA port.
    Here(Packet),
    /// It crosses another link; the port and the packet.
    Onward(PortRef, Packet),
    /// The same, sent by the switch's own port 0 or along a directed route, which has an end of its
    /// own: links are counted anew.
    Afresh(PortRef, Packet),
    /// Nothing is left to do for this one.
    Done,
}

impl Fabric {
    /// Puts a packet of an HCA on the link of its `port`.
    ///
    /// The VL is set here: 15 for datagrams to QP 0, else what the port's SLtoVLMappingTable says
    /// for `lrh.sl`. A packet to the port's own LID, and a copy of every multicast packet, comes back
    /// to the same port without touching the link. What cannot be sent is counted and dropped.
    pub fn transmit(&mut self, node: NodeId, port: u8, packet: Packet, now_ns: u64) {
        self.now = self.now.max(now_ns);
        let from = PortRef { node, port };
        if is_mad(&packet) {
            self.transmit_mad(from, packet);
        } else {
            self.inject(from, packet);
        }
    }

    /// What [`Fabric::transmit`] does once no rule for MADs stands in the way.
    pub(super) fn inject(&mut self, from: PortRef, mut packet: Packet) {
        let Some(p) = self.port_at(from) else {
            return;
        };
        let smp = is_mad(&packet) && packet.bth.dest_qp == 0;
        let vl = if smp {
            Some(VL15)
        } else {
            p.vl_for(0, packet.lrh.sl)
        };
        let own = p.owns_lid(packet.lrh.dlid);
        let ready = smp || p.state == PortState::Active;
        let Some(vl) = vl.filter(|_| ready) else {
            return self.discard(from);
        };
        packet.lrh.vl = vl;
        if own {
            return self.launch(from, true, 0, packet);
        }
        if is_multicast(packet.lrh.dlid) && !smp {
            match packet.duplicate() {
                Ok(copy) => self.launch(from, true, 0, copy),
                Err(_) => self.no_room(from, vl),
            }
        }
        self.send(from, 0, packet);
    }

    /// The next thing that has happened at an HCA, or `None` until [`Fabric::next_due`].
    pub fn poll(&mut self, now_ns: u64) -> Option<Output> {
        self.now = self.now.max(now_ns);
        self.send_due_traps(now_ns);
        loop {
            if let Some((at, kind)) = self.events.pop() {
                let PortRef { node, port } = at;
                return Some(Output::Event { node, port, kind });
            }
            let flight = match self.held_before_queued() {
                None => self.packets.pop()?,
                Some(Waiting::Cable(flight)) => {
                    self.release(flight.to);
                    flight
                }
                Some(Waiting::Mad(from, packet)) => {
                    self.inject(from, packet);
                    continue;
                }
            };
            if let Some(output) = self.fly(flight, now_ns) {
                return Some(output);
            }
        }
    }

    /// When [`Fabric::poll`] has to be called next, in nanoseconds: 0 where something waits already,
    /// `None` where nothing will happen by itself.
    pub fn next_due(&self) -> Option<u64> {
        if !self.events.is_empty() || !self.packets.is_empty() {
            return Some(0);
        }
        let held = self.held.first().map(|(due, _)| due);
        match (self.trap_due, held) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Follows one packet until it arrives or is lost; copies of it are queued.
    fn fly(&mut self, flight: Flight, now: u64) -> Option<Output> {
        let Flight {
            mut to,
            loopback,
            mut hops,
            downs,
            mut packet,
            ..
        } = flight;
        if loopback {
            let PortRef { node, port } = to;
            return Some(Output::Deliver { node, port, packet });
        }
        if self.downs(to) != downs {
            // The cable was cut with the packet on it.
            self.vanish(to);
            return None;
        }
        loop {
            let (out, onward) = match self.receive(to, hops, packet, now) {
                Arrival::Done => return None,
                Arrival::Here(packet) => {
                    let PortRef { node, port } = to;
                    return Some(Output::Deliver { node, port, packet });
                }
                Arrival::Onward(out, onward) => {
                    hops = hops.saturating_add(1);
                    (out, onward)
                }
                Arrival::Afresh(out, onward) => {
                    hops = 0;
                    (out, onward)
                }
            };
            if hops >= MAX_HOPS {
                self.stats.looped = self.stats.looped.wrapping_add(1);
                self.discard(out);
                return None;
            }
            (to, packet) = self.depart(out, onward)?;
            if let Some(due) = self.held_up(out, to) {
                self.hold(due, to, hops, packet);
                return None;
            }
        }
    }

    /// A packet comes out of the cable at `at`.
    fn receive(&mut self, at: PortRef, hops: u8, packet: Packet, now: u64) -> Arrival {
        let Some(p) = self.port_mut(at) else {
            return Arrival::Done;
        };
        let vl15 = packet.lrh.vl == VL15;
        let open = if vl15 {
            p.state != PortState::Down
        } else {
            p.state == PortState::Active
        };
        if !open || p.blackhole.inward {
            p.counters.vanished();
            return Arrival::Done;
        }
        let dlid = packet.lrh.dlid;
        if p.inward.loses() {
            p.counters.spoilt(packet.wire_words(), is_multicast(dlid));
            p.counters.vanished();
            return Arrival::Done;
        }
        p.counters.received(packet.wire_words(), is_multicast(dlid));
        let mine =
            p.owns_lid(dlid) || (is_multicast(dlid) && !vl15) || (dlid == LID_PERMISSIVE && vl15);
        let Some(node) = self.node(at.node) else {
            return Arrival::Done;
        };
        match node.kind() {
            Kind::Hca if mine => Arrival::Here(packet),
            Kind::Hca => {
                self.vanish(at);
                Arrival::Done
            }
            Kind::Switch => self.switch(at, hops, packet, now),
        }
    }

    /// A switch decides about a packet.
    fn switch(&mut self, at: PortRef, hops: u8, packet: Packet, now: u64) -> Arrival {
        let dlid = packet.lrh.dlid;
        let port0 = PortRef {
            node: at.node,
            port: 0,
        };
        let for_port0 = self.port_at(port0).is_some_and(|p| p.owns_lid(dlid));
        if for_port0 || dlid == LID_PERMISSIVE {
            return self.at_port0(at, packet, now);
        }
        if is_multicast(dlid) {
            self.replicate(at, hops, packet);
            return Arrival::Done;
        }
        match self.unicast_out(at.node, dlid) {
            Some(out) if out != at.port => self.relay(at, out, packet),
            _ => {
                self.not_relayed(at);
                Arrival::Done
            }
        }
    }

    /// The port by which a switch reaches a LID, if it is a port that exists and not port 0.
    pub(super) fn unicast_out(&self, node: NodeId, lid: u16) -> Option<u8> {
        let node = self.node(node)?;
        let switch = node.switch.as_ref()?;
        if lid > switch.lft_top {
            return None;
        }
        let out = *switch.lft.get(usize::from(lid))?;
        (out != NO_PORT && out != 0 && out <= node.port_count()).then_some(out)
    }

    /// Lets a packet leave a switch by another port: on the lane that SLtoVLMappingTable says.
    fn relay(&mut self, at: PortRef, out: u8, mut packet: Packet) -> Arrival {
        let out = PortRef {
            node: at.node,
            port: out,
        };
        if packet.lrh.vl != VL15 {
            let vl = self
                .port_at(out)
                .and_then(|p| p.vl_for(at.port, packet.lrh.sl));
            let Some(vl) = vl else {
                self.discard(out);
                return Arrival::Done;
            };
            packet.lrh.vl = vl;
        }
        Arrival::Onward(out, packet)
    }

    /// Sends a copy of a multicast packet to each port of its group but the one it came by.
    fn replicate(&mut self, at: PortRef, hops: u8, packet: Packet) {
        let hops = hops.saturating_add(1);
        if packet.lrh.vl == VL15 || hops >= MAX_HOPS {
            self.stats.looped = self.stats.looped.wrapping_add(u64::from(hops >= MAX_HOPS));
            return self.vanish(at);
        }
        let index = packet.lrh.dlid.wrapping_sub(LID_MULTICAST);
        let mask = self
            .node(at.node)
            .and_then(|n| n.switch.as_ref())
            .filter(|_| index < MFT_CAP)
            .and_then(|s| s.mft.get(usize::from(index)))
            .copied()
            .unwrap_or(0);
        if mask == 0 {
            // A group without members, which is no error.
            return self.vanish(at);
        }
        let count = self.node(at.node).map_or(0, |n| n.port_count());
        let members = (1..=count).filter(|p| *p != at.port && (mask >> p) & 1 == 1);
        let mut previous: Option<u8> = None;
        // The last member gets the packet itself, so that one member needs no copy.
        for member in members {
            if let Some(port) = previous.replace(member) {
                match packet.duplicate() {
                    Ok(copy) => self.forward_copy(at, port, hops, copy),
                    Err(_) => self.no_room(
                        PortRef {
                            node: at.node,
                            port,
                        },
                        packet.lrh.vl,
                    ),
                }
            }
        }
        if let Some(port) = previous {
            self.forward_copy(at, port, hops, packet);
        }
    }

    fn forward_copy(&mut self, at: PortRef, port: u8, hops: u8, packet: Packet) {
        if let Arrival::Onward(out, packet) = self.relay(at, port, packet) {
            self.send(out, hops, packet);
        }
    }

    /// A packet leaves by `out` and is queued as being on the cable.
    pub(super) fn send(&mut self, out: PortRef, hops: u8, packet: Packet) {
        if let Some((to, packet)) = self.depart(out, packet) {
            match self.held_up(out, to) {
                None => self.launch(to, false, hops, packet),
                Some(due) => self.hold(due, to, hops, packet),
            }
        }
    }

    /// A packet leaves by `out`; gives the far end if it is on its way there.
    fn depart(&mut self, out: PortRef, packet: Packet) -> Option<(PortRef, Packet)> {
        let vl15 = packet.lrh.vl == VL15;
        let p = self.port_mut(out)?;
        let open = if vl15 {
            p.state != PortState::Down
        } else {
            p.state == PortState::Active && packet.payload.len() <= p.mtu_bytes()
        };
        let Some(peer) = p.peer.filter(|_| open) else {
            p.counters.discarded();
            return None;
        };
        p.counters
            .sent(packet.wire_words(), is_multicast(packet.lrh.dlid));
        if p.blackhole.outward {
            p.counters.vanished();
            return None;
        }
        if p.outward.loses() {
            p.counters.vanished();
            if let Some(far) = self.port_mut(peer) {
                let multicast = is_multicast(packet.lrh.dlid);
                far.counters.spoilt(packet.wire_words(), multicast);
            }
            return None;
        }
        Some((peer, packet))
    }

    fn launch(&mut self, to: PortRef, loopback: bool, hops: u8, packet: Packet) {
        let flight = self.flight(to, loopback, hops, packet);
        if let Err(lost) = self.packets.push(flight) {
            self.no_room(to, lost.packet.lrh.vl);
        }
    }

    pub(super) fn no_room(&mut self, at: PortRef, vl: u8) {
        self.stats.no_room = self.stats.no_room.wrapping_add(1);
        if let Some(p) = self.port_mut(at) {
            p.counters.no_room(vl == VL15);
        }
    }

    pub(super) fn discard(&mut self, at: PortRef) {
        if let Some(p) = self.port_mut(at) {
            p.counters.discarded();
        }
    }

    pub(super) fn vanish(&mut self, at: PortRef) {
        if let Some(p) = self.port_mut(at) {
            p.counters.vanished();
        }
    }

    fn not_relayed(&mut self, at: PortRef) {
        if let Some(p) = self.port_mut(at) {
            p.counters.not_relayed();
        }
    }
}

/// A management datagram that an HCA sends.
fn is_mad(packet: &Packet) -> bool {
    packet.bth.opcode == Opcode::UdSend && packet.bth.dest_qp <= 1
}

fn is_multicast(lid: u16) -> bool {
    (LID_MULTICAST..LID_PERMISSIVE).contains(&lid)
}
