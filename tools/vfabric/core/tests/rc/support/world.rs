// SPDX-License-Identifier: GPL-2.0-only

//! Time and the network.

use super::{copy, lid, Node, LATENCY};
use std::collections::BTreeMap;
use vfabric_core::model::host::{SendOp, SendWqe, Status};
use vfabric_core::model::packet::{Opcode, Packet};
use vfabric_core::model::rc::{Error, MigState, Modify, Rc, State};

/// A packet under way, as a fault decides about it.
pub struct Flight<'a> {
    /// Node that sent it.
    pub from: usize,
    /// Packets that this node has sent before.
    pub count: usize,
    pub now: u64,
    pub packet: &'a Packet,
}

impl Flight<'_> {
    pub fn is_ack(&self) -> bool {
        self.packet.bth.opcode == Opcode::Acknowledge
    }

    pub fn is_response(&self) -> bool {
        matches!(self.packet.bth.opcode, Opcode::ReadResponse(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Deliver,
    Drop,
    Twice,
    /// Takes longer, and so does everything behind it.
    Late(u64),
}

type Fault = Box<dyn FnMut(&Flight<'_>) -> Fate>;

pub struct World {
    pub now: u64,
    pub nodes: [Node; 2],
    pub qps: [Rc; 2],
    /// By arrival and running number: receiving node, its port, the packet.
    flights: BTreeMap<(u64, u64), (usize, u8, Packet)>,
    serial: u64,
    /// When the last packet of a channel (from port LID, to port LID) arrives.
    tail: BTreeMap<(u16, u16), u64>,
    /// Ports (node, port) that nothing comes through.
    pub cut: Vec<(usize, u8)>,
    pub fault: Fault,
    pub sent: [usize; 2],
    /// A copy of every packet sent: node, port, packet.
    pub log: Vec<(usize, u8, Packet)>,
}

impl World {
    /// Both queue pairs in RESET.
    pub fn reset() -> Self {
        World {
            now: 0,
            nodes: [Node::new(0), Node::new(1)],
            qps: [Rc::new(0x40), Rc::new(0x41)],
            flights: BTreeMap::new(),
            serial: 0,
            tail: BTreeMap::new(),
            cut: Vec::new(),
            fault: Box::new(|_| Fate::Deliver),
            sent: [0, 0],
            log: Vec::new(),
        }
    }

    /// Both queue pairs in RTS on the path port 1 to port 1.
    pub fn connected() -> Self {
        Self::connected_with(|_, _| {})
    }

    /// As [`World::connected`], with attributes changed on the way.
    pub fn connected_with(mut change: impl FnMut(usize, &mut Modify)) -> Self {
        let mut w = World::reset();
        for node in 0..2 {
            for mut m in [super::to_init(), super::to_rtr(node), super::to_rts(node)] {
                change(node, &mut m);
                w.modify(node, &m).unwrap();
            }
        }
        w
    }

    /// Connected, with an alternate path at both ends, ARMED.
    pub fn armed() -> Self {
        let mut w = World::connected();
        w.arm();
        w
    }

    /// Loads port 2 to port 2 at both ends and sends something both ways.
    pub fn arm(&mut self) {
        for node in 0..2 {
            self.modify(node, &super::rearm(node)).unwrap();
        }
        for node in 0..2 {
            self.write_nothing(node);
        }
        self.run();
        for qp in &self.qps {
            assert_eq!(qp.query().mig, MigState::Armed);
        }
    }

    pub fn modify(&mut self, node: usize, m: &Modify) -> Result<(), Error> {
        self.call(node, |qp, host| qp.modify(m, host))
    }

    pub fn call<R>(&mut self, node: usize, f: impl FnOnce(&mut Rc, &mut Node) -> R) -> R {
        self.watch(node, false, f)
    }

    /// Hands a packet to a queue pair.
    pub fn deliver(&mut self, node: usize, port: u8, packet: Packet) {
        // It may bring REARM to ARMED, and be the NAK that is one too many.
        let arms = !packet.bth.mig_req;
        self.watch(node, arms, |qp, host| qp.receive(port, packet, host));
    }

    fn watch<R>(&mut self, node: usize, arms: bool, f: impl FnOnce(&mut Rc, &mut Node) -> R) -> R {
        self.nodes[node].now = self.now;
        let before = self.qps[node].query().mig;
        let r = f(&mut self.qps[node], &mut self.nodes[node]);
        let after = self.qps[node].query().mig;
        if self.qps[node].state() != State::Reset {
            // IBA figure 216, whatever happens.
            assert!(arms || (before, after) != (MigState::Rearm, MigState::Migrated));
            assert!(arms || (before, after) != (MigState::Rearm, MigState::Armed));
            assert_ne!((before, after), (MigState::Migrated, MigState::Armed));
        }
        self.transmit(node);
        r
    }

    /// Posts a request and tells the queue pair.
    pub fn post(&mut self, node: usize, wqe: SendWqe, data: Vec<u8>) -> u32 {
        let index = self.nodes[node].push(wqe, data);
        self.call(node, |qp, host| qp.posted(host));
        index
    }

    /// Posts a SEND.
    pub fn send(&mut self, node: usize, data: Vec<u8>) -> u32 {
        self.post(node, super::wqe(SendOp::Send, data.len()), data)
    }

    /// Posts an RDMA WRITE of no bytes: traffic that needs nothing at the peer.
    pub fn write_nothing(&mut self, node: usize) -> u32 {
        let op = SendOp::Write { va: 0, rkey: 0 };
        self.post(node, super::wqe(op, 0), Vec::new())
    }

    fn transmit(&mut self, from: usize) {
        for (port, packet) in std::mem::take(&mut self.nodes[from].out) {
            let fate = (self.fault)(&Flight {
                from,
                count: self.sent[from],
                now: self.now,
                packet: &packet,
            });
            self.sent[from] += 1;
            self.log.push((from, port, copy(&packet)));
            let to = (1..=2).find(|p| lid(1 - from, *p) == packet.lrh.dlid);
            let (Some(to), false) = (to, self.cut.contains(&(from, port))) else {
                continue;
            };
            let (copies, extra) = match fate {
                Fate::Deliver => (1, 0),
                Fate::Drop => (0, 0),
                Fate::Twice => (2, 0),
                Fate::Late(ns) => (1, ns),
            };
            let tail = self
                .tail
                .entry((packet.lrh.slid, packet.lrh.dlid))
                .or_default();
            let arrives = (self.now + LATENCY + extra).max(*tail);
            *tail = arrives;
            for _ in 0..copies {
                self.serial += 1;
                self.flights
                    .insert((arrives, self.serial), (1 - from, to, copy(&packet)));
            }
        }
    }

    /// Lets the next thing happen, no later than `until`; `false` where there is none.
    pub fn step(&mut self, until: u64) -> bool {
        let arrival = self.flights.keys().next().map(|k| k.0);
        let timers = self.qps.iter().filter_map(|qp| qp.timer());
        let Some(next) = timers.chain(arrival).min().filter(|t| *t <= until) else {
            return false;
        };
        self.now = self.now.max(next);
        for node in 0..2 {
            if self.qps[node].timer().is_some_and(|t| t <= self.now) {
                self.call(node, |qp, host| qp.tick(host));
            }
        }
        while let Some(entry) = self.flights.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, port, packet) = entry.remove();
            if !self.cut.contains(&(to, port)) {
                self.deliver(to, port, packet);
            }
        }
        true
    }

    /// Until nothing is under way and no timer runs.
    pub fn run(&mut self) {
        for _ in 0..100_000 {
            if !self.step(u64::MAX) {
                return;
            }
        }
        panic!("it never ends");
    }

    pub fn run_for(&mut self, ns: u64) {
        let until = self.now + ns;
        while self.step(until) {}
        self.now = until;
    }

    pub fn assert_all_sent(&self, node: usize) {
        let n = &self.nodes[node];
        assert_eq!(n.sent.len(), n.sq.len());
        assert!(
            n.sent.iter().all(|s| s.1 == Status::Success),
            "{:?}",
            n.sent
        );
    }

    pub fn states(&self) -> [State; 2] {
        [self.qps[0].state(), self.qps[1].state()]
    }

    pub fn mig(&self) -> [MigState; 2] {
        [self.qps[0].query().mig, self.qps[1].query().mig]
    }

    /// Packets logged that `f` picks.
    pub fn logged(&self, f: impl Fn(usize, &Packet) -> bool) -> usize {
        self.log.iter().filter(|(n, _, p)| f(*n, p)).count()
    }
}
