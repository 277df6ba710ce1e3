// SPDX-License-Identifier: GPL-2.0-only

//! The fabric: nodes, links, and the packets between them.
//!
//! To use it, make a [`Topology`], then a [`Fabric`] of it. An HCA puts packets on its link with
//! [`Fabric::transmit`]; [`Fabric::poll`] moves packets on and says what arrived where and which
//! port events an HCA has to raise; [`Fabric::next_due`] says when it has something to say again.
//! The agent that answers MADs sent to an HCA port is [`Fabric::process_mad`]; switches answer for
//! themselves, with packets. Links are cut and joined with [`Fabric::control`].
//!
//! Links take no time unless told to. A packet crosses one link at a time, through switches, by their forwarding
//! tables or by its directed route, and each port on the way counts it. All calls are short, none
//! sleeps but [`Fabric::new`]; whoever owns the fabric serialises them.

pub mod control;
pub mod counters;
mod directed;
mod dump;
mod forward;
mod grh;
mod gsi;
mod held;
pub mod impair;
mod link;
mod mad;
mod madlog;
mod madrule;
mod node;
mod pma;
pub mod port;
mod port0;
mod portinfo;
mod ring;
mod sma;
mod tables;
mod trap;

pub use control::Control;
pub use gsi::{MadRequest, MadResult};
pub use node::Node;
pub use port::{Port, PortState};

use super::super::mem::{AllocError, KVec, GFP_KERNEL};
use super::packet::Packet;
use super::topology::{Kind, Topology};
use held::Held;
use ring::Ring;

/// Packets that there is room for from the start, and at most.
const PACKETS: (usize, usize) = (2048, 65536);
/// The same for port events: they pile up only while nobody polls.
const EVENTS: (usize, usize) = (256, 8192);

/// Names a node: its index in the text of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u16);

/// Names a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRef {
    /// Whose.
    pub node: NodeId,
    /// Number.
    pub port: u8,
}

/// What an HCA port has to tell its consumers, with the names of `enum ib_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// IB_EVENT_PORT_ERR: the link is gone.
    PortErr,
    /// IB_EVENT_PORT_ACTIVE: the SM has set the port to Active.
    PortActive,
    /// IB_EVENT_LID_CHANGE: LID or LMC.
    LidChange,
    /// IB_EVENT_SM_CHANGE: LID or SL of the SM.
    SmChange,
    /// IB_EVENT_GID_CHANGE: prefix or GUID table.
    GidChange,
    /// IB_EVENT_PKEY_CHANGE.
    PkeyChange,
    /// IB_EVENT_CLIENT_REREGISTER: the SM has forgotten subscriptions and multicast joins.
    ClientReregister,
}

/// What has happened at an HCA.
#[derive(Debug)]
pub enum Output {
    /// A packet has arrived at a port.
    ///
    /// Unicast to a LID of the port, multicast (whether a QP is attached is for the HCA to see), or
    /// a subnet management packet to the permissive LID.
    Deliver {
        /// The HCA.
        node: NodeId,
        /// Its port.
        port: u8,
        /// The packet.
        packet: Packet,
    },
    /// A port event.
    Event {
        /// The HCA.
        node: NodeId,
        /// Its port.
        port: u8,
        /// What.
        kind: PortEvent,
    },
}

/// A packet on a cable, or in the loop inside an HCA port.
#[derive(Debug)]
struct Flight {
    /// Where it will arrive.
    to: PortRef,
    /// It never leaves the HCA.
    loopback: bool,
    /// Links crossed so far.
    hops: u8,
    /// Packets are numbered as they are put on a cable, so that they keep their order.
    seq: u64,
    /// How often the link had gone down then: once more, and the packet has gone with it.
    downs: u64,
    packet: Packet,
}

/// What went wrong in the fabric itself; 0 unless it is overloaded or badly configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets lost because there was no memory for them, or too many.
    pub no_room: u64,
    /// Packets that went in circles until they were dropped.
    pub looped: u64,
    /// Port events lost because nobody polled.
    pub lost_events: u64,
}

/// A fabric.
#[derive(Debug)]
pub struct Fabric {
    nodes: KVec<Node>,
    /// Time of the latest call, in nanoseconds.
    now: u64,
    packets: Ring<Flight>,
    held: Held,
    seq: u64,
    events: Ring<(PortRef, PortEvent)>,
    stats: Stats,
    mad_rules: madrule::MadRules,
    mad_log: madlog::MadLog,
    /// Least HopLimit of PathRecords.
    grh: u8,
    /// Where the random numbers of losses begin.
    seed: u64,
    /// When the earliest trap of all nodes is due.
    trap_due: Option<u64>,
}

impl Fabric {
    /// Makes the nodes of `topology` and trains its links. May sleep.
    pub fn new(topology: &Topology) -> Result<Fabric, AllocError> {
        let mut nodes = KVec::new();
        for (index, def) in (0..).zip(topology.nodes()) {
            nodes.push(Node::new(NodeId(index), def)?, GFP_KERNEL)?;
        }
        let mut fabric = Fabric {
            nodes,
            now: 0,
            packets: Ring::new(PACKETS.0, PACKETS.1)?,
            held: Held::default(),
            seq: 0,
            events: Ring::new(EVENTS.0, EVENTS.1)?,
            stats: Stats::default(),
            mad_rules: madrule::MadRules::default(),
            mad_log: madlog::MadLog::new()?,
            grh: 0,
            seed: impair::FIRST_SEED,
            trap_due: None,
        };
        for link in topology.links() {
            fabric.connect(link);
        }
        Ok(fabric)
    }

    /// The HCAs, in the order of the text.
    pub fn hcas(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes
            .iter()
            .filter(|n| n.kind() == Kind::Hca)
            .map(|n| (n.id, n))
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(usize::from(node.0))
    }

    /// The node called `name`.
    pub fn find(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.name.as_str() == name)
    }

    /// A port: of an HCA from 1 on, of a switch from 0 on.
    pub fn port(&self, node: NodeId, port: u8) -> Option<&Port> {
        self.node(node)?.port(port)
    }

    /// Losses of the fabric itself.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Sets the description that NodeDescription answers, padded with zeros (`ib_modify_device`).
    pub fn set_node_desc(&mut self, node: NodeId, desc: &[u8]) {
        if let Some(n) = self.nodes.get_mut(usize::from(node.0)) {
            n.desc = node::description(desc);
        }
    }

    /// Changes the capability mask of an HCA port: sets the bits in `set` and clears those in
    /// `clear` (`ib_modify_port`).
    pub fn modify_port(&mut self, node: NodeId, port: u8, set: u32, clear: u32) {
        if let Some(p) = self.port_mut(PortRef { node, port }) {
            p.cap_mask = (p.cap_mask | set) & !clear;
        }
    }

    /// Counts a packet that an HCA port refused because of its P_Key.
    pub fn count_bad_pkey(&mut self, node: NodeId, port: u8) {
        if let Some(p) = self.port_mut(PortRef { node, port }) {
            p.pkey_violations = p.pkey_violations.saturating_add(1);
        }
    }

    /// Counts a packet that an HCA port refused because of its Q_Key.
    pub fn count_bad_qkey(&mut self, node: NodeId, port: u8) {
        if let Some(p) = self.port_mut(PortRef { node, port }) {
            p.qkey_violations = p.qkey_violations.saturating_add(1);
        }
    }

    /// Sets the Q_Key violation counter to 0 (IB_PORT_RESET_QKEY_CNTR).
    pub fn reset_bad_qkey(&mut self, node: NodeId, port: u8) {
        if let Some(p) = self.port_mut(PortRef { node, port }) {
            p.qkey_violations = 0;
        }
    }

    fn node_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(usize::from(node.0))
    }

    fn port_mut(&mut self, at: PortRef) -> Option<&mut Port> {
        self.node_mut(at.node)?.port_mut(at.port)
    }

    fn port_at(&self, at: PortRef) -> Option<&Port> {
        self.port(at.node, at.port)
    }

    /// Notes an event of an HCA port; a switch has nobody to tell.
    fn raise(&mut self, at: PortRef, kind: PortEvent) {
        let hca = self.node(at.node).is_some_and(|n| n.kind() == Kind::Hca);
        if hca && self.events.push((at, kind)).is_err() {
            self.stats.lost_events = self.stats.lost_events.wrapping_add(1);
        }
    }
}
