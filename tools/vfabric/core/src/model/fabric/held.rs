// SPDX-License-Identifier: GPL-2.0-only

//! Packets that have to wait: on a slow cable, or because of a rule for MADs.

use super::super::super::mem::{AllocError, KVVec, GFP_ATOMIC};
use super::super::packet::Packet;
use super::{Fabric, Flight, PortRef};

/// Packets that can wait at once.
const LIMIT: usize = 65536;

/// What waits.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A packet on a cable; it arrives.
    Cable(Flight),
    /// A MAD that has not left its HCA's port yet; it is sent.
    Mad(PortRef, Packet),
}

#[derive(Debug)]
struct Entry {
    due: u64,
    /// Among those due at the same time, the one put here first leaves first.
    seq: u64,
    what: Waiting,
}

impl Entry {
    fn before(&self, other: &Entry) -> bool {
        (self.due, self.seq) < (other.due, other.seq)
    }
}

/// Packets by the time at which their wait ends.
///
/// # Invariants
///
/// `heap` is a binary heap: no entry is due before the one at half its index, rounded down after
/// taking one off.
#[derive(Debug, Default)]
pub(super) struct Held {
    heap: KVVec<Entry>,
}

impl Held {
    /// When the first wait ends, and the number that the first was given.
    pub(super) fn first(&self) -> Option<(u64, u64)> {
        self.heap.first().map(|e| (e.due, e.seq))
    }

    /// Lets `what` wait until `due`. With an error it is gone.
    pub(super) fn push(&mut self, due: u64, seq: u64, what: Waiting) -> Result<(), AllocError> {
        if self.heap.len() >= LIMIT {
            return Err(AllocError);
        }
        self.heap.push(Entry { due, seq, what }, GFP_ATOMIC)?;
        let mut at = self.heap.len() - 1;
        while at > 0 {
            let parent = (at - 1) / 2;
            if !self.before(at, parent) {
                break;
            }
            self.heap.swap(at, parent);
            at = parent;
        }
        Ok(())
    }

    /// Takes the first out.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let last = self.heap.len().checked_sub(1)?;
        self.heap.swap(0, last);
        let entry = self.heap.pop()?;
        let mut at = 0;
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let child = if self.before(right, left) {
                right
            } else {
                left
            };
            if !self.before(child, at) {
                return Some(entry.what);
            }
            self.heap.swap(at, child);
            at = child;
        }
    }

    /// Whether both are there and `a` is due before `b`.
    fn before(&self, a: usize, b: usize) -> bool {
        match (self.heap.get(a), self.heap.get(b)) {
            (Some(a), Some(b)) => a.before(b),
            _ => false,
        }
    }
}

impl Fabric {
    /// Takes the first packet whose wait is over, unless one that is on a cable anyway is older.
    pub(super) fn held_before_queued(&mut self) -> Option<Waiting> {
        let (due, seq) = self.held.first()?;
        let older = self.packets.front().is_some_and(|f| f.seq < seq);
        if due > self.now || older {
            return None;
        }
        self.held.pop()
    }

    /// When a packet that has left by `out` arrives at the far end, if not at once: after the delay
    /// of both ports, and not before one that left earlier.
    pub(super) fn held_up(&mut self, out: PortRef, to: PortRef) -> Option<u64> {
        let arriving = self.port_at(to).map_or(0, |p| p.inward.delay_ns());
        let now = self.now;
        let p = self.port_mut(out)?;
        let delay = p.outward.delay_ns().saturating_add(arriving);
        if delay == 0 && p.held == 0 {
            return None;
        }
        p.held_until = p.held_until.max(now.saturating_add(delay));
        Some(p.held_until)
    }

    /// Keeps a packet on the cable until it is due.
    pub(super) fn hold(&mut self, due: u64, to: PortRef, hops: u8, packet: Packet) {
        let vl = packet.lrh.vl;
        let flight = self.flight(to, false, hops, packet);
        let seq = flight.seq;
        let from = self.port_at(to).and_then(|p| p.peer);
        match self.held.push(due, seq, Waiting::Cable(flight)) {
            Ok(()) => {
                if let Some(p) = from.and_then(|from| self.port_mut(from)) {
                    p.held = p.held.saturating_add(1);
                }
            }
            Err(_) => self.no_room(to, vl),
        }
    }

    /// A packet that was held up on the cable arrives at `to`.
    pub(super) fn release(&mut self, to: PortRef) {
        let from = self.port_at(to).and_then(|p| p.peer);
        if let Some(p) = from.and_then(|from| self.port_mut(from)) {
            p.held = p.held.saturating_sub(1);
        }
    }

    /// Keeps a MAD back for some nanoseconds before it leaves its HCA by `from`.
    pub(super) fn hold_mad(&mut self, from: PortRef, delay: u64, mad: Packet) {
        let (due, vl) = (self.now.saturating_add(delay), mad.lrh.vl);
        let seq = self.next_seq();
        if self.held.push(due, seq, Waiting::Mad(from, mad)).is_err() {
            self.no_room(from, vl);
        }
    }

    fn next_seq(&mut self) -> u64 {
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }

    pub(super) fn downs(&self, at: PortRef) -> u64 {
        self.port_at(at).map_or(0, |p| p.counters.total.link_downed)
    }

    pub(super) fn flight(
        &mut self,
        to: PortRef,
        loopback: bool,
        hops: u8,
        packet: Packet,
    ) -> Flight {
        Flight {
            to,
            loopback,
            hops,
            seq: self.next_seq(),
            downs: self.downs(to),
            packet,
        }
    }
}
