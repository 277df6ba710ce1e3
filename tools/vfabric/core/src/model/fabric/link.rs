// SPDX-License-Identifier: GPL-2.0-only

//! Links: how they come up and go down. The one place that changes a link's state but for the SM's
//! way up from Init to Active, which is in [`super::portinfo`].

use super::super::topology::LinkDef;
use super::port::{PhysState, PortState};
use super::{Fabric, NodeId, PortEvent, PortRef};

impl Fabric {
    /// Plugs a cable in and trains it, before anybody looks.
    pub(super) fn connect(&mut self, link: &LinkDef) {
        let end = |(index, port): (usize, u8)| PortRef {
            node: NodeId(u16::try_from(index).unwrap_or(u16::MAX)),
            port,
        };
        let (a, b) = (end(link.a), end(link.b));
        if let Some(p) = self.port_mut(a) {
            p.peer = Some(b);
        }
        if let Some(p) = self.port_mut(b) {
            p.peer = Some(a);
        }
        self.train(a);
    }

    /// Brings the link at `at` to Init where both ends want it; true when that has changed it.
    fn train(&mut self, at: PortRef) -> bool {
        let Some(near) = self.port_at(at) else {
            return false;
        };
        let Some(peer) = near.peer else {
            return false;
        };
        let Some(far) = self.port_at(peer) else {
            return false;
        };
        let width = highest_bit(near.width_enabled & far.width_enabled);
        let speed = highest_bit(near.speed_enabled & far.speed_enabled);
        let both = near.willing() && far.willing() && width != 0 && speed != 0;
        if !both || near.state != PortState::Down {
            return false;
        }
        for end in [at, peer] {
            if let Some(p) = self.port_mut(end) {
                p.state = PortState::Init;
                p.phys = PhysState::LinkUp;
                p.width_active = width;
                p.speed_active = speed;
            }
        }
        true
    }

    /// Trains the link at `at` and lets both ends say so.
    pub(super) fn link_up(&mut self, at: PortRef, now: u64) {
        if self.train(at) {
            self.link_changed(at, now);
        }
    }

    /// Takes the link at `at` down at both ends; `at` ends in the physical state `phys` where one is
    /// asked for, else an end that was up ends in its LinkDownDefaultState.
    pub(super) fn link_down(&mut self, at: PortRef, phys: Option<PhysState>, now: u64) {
        let peer = self.port_at(at).and_then(|p| p.peer);
        let mut lost = false;
        for end in [Some(at), peer].into_iter().flatten() {
            let Some(p) = self.port_mut(end) else {
                continue;
            };
            let was = p.state;
            p.state = PortState::Down;
            // What is on the cable is lost with it: nothing has to queue behind it.
            p.held_until = 0;
            match phys.filter(|_| end == at) {
                Some(phys) => p.phys = phys,
                None if p.phys != PhysState::LinkUp => {}
                None if p.link_down_default == 1 => p.phys = PhysState::Sleep,
                None => p.phys = PhysState::Polling,
            }
            if was != PortState::Down {
                lost = true;
                p.counters.link_lost();
                self.raise(end, PortEvent::PortErr);
            }
        }
        if lost {
            self.link_changed(at, now);
        }
    }

    /// The SM has to learn of a change: by PortStateChange and trap 128 of the switches at the link.
    fn link_changed(&mut self, at: PortRef, now: u64) {
        let peer = self.port_at(at).and_then(|p| p.peer);
        for end in [Some(at), peer].into_iter().flatten() {
            let Some(node) = self.node_mut(end.node) else {
                continue;
            };
            if let Some(switch) = node.switch.as_mut() {
                switch.port_state_change = true;
                self.want_trap(end.node, now);
            }
        }
    }
}

/// The highest bit of a mask of widths or speeds, alone.
fn highest_bit(mask: u8) -> u8 {
    match mask.checked_ilog2() {
        Some(bit) => 1 << bit,
        None => 0,
    }
}
