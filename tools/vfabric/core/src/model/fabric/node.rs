// SPDX-License-Identifier: GPL-2.0-only

//! A node: an HCA or a switch, with its ports and tables.

use super::super::super::mem::{AllocError, KVVec, KVec, GFP_KERNEL};
use super::super::topology::{Kind, Name, NodeDef};
use super::port::{Port, LID_MULTICAST};
use super::trap::Trap;
use super::NodeId;

/// SwitchInfo:LinearFDBCap, in entries.
pub(super) const LFT_CAP: u16 = LID_MULTICAST;
/// SwitchInfo:MulticastFDBCap, in entries.
pub(super) const MFT_CAP: u16 = 1024;
/// The LFT entry of a LID that leads nowhere.
pub(super) const NO_PORT: u8 = 0xff;

/// NodeGUID of the first node is this plus 0x100, of the next this plus 0x200 ...
const GUID_BASE: u64 = 0x0002_c903_0000_0000;

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Its index.
    pub id: NodeId,
    /// Its name in the topology.
    pub name: Name,
    /// NodeGUID; port p of an HCA has this plus p, port 0 of a switch this.
    pub guid: u64,
    /// NodeDescription, padded with zeros; [`super::Fabric::set_node_desc`] changes it.
    pub desc: [u8; 64],
    /// From number 1 on in an HCA, from 0 on in a switch.
    pub(super) ports: KVec<Port>,
    /// What only a switch has.
    pub(super) switch: Option<Switch>,
    /// The trap that the node has to send.
    pub(super) trap: Trap,
}

/// Tables and SwitchInfo of a switch.
#[derive(Debug)]
pub(super) struct Switch {
    /// Linear forwarding table: the port by LID.
    pub(super) lft: KVVec<u8>,
    /// Multicast forwarding table: a mask of ports by MLID less 0xc000.
    pub(super) mft: KVVec<u64>,
    /// LinearFDBTop: packets to LIDs above it are dropped.
    pub(super) lft_top: u16,
    /// DefaultPort, DefaultMulticastPrimaryPort, DefaultMulticastNotPrimaryPort.
    pub(super) defaults: [u8; 3],
    /// LifeTimeValue, 5 bits.
    pub(super) life_time: u8,
    /// PortStateChange.
    pub(super) port_state_change: bool,
    /// MulticastFDBTop; kept for the SM, not used.
    pub(super) mft_top: u16,
}

impl Node {
    pub(super) fn new(id: NodeId, def: &NodeDef) -> Result<Node, AllocError> {
        let guid = GUID_BASE.wrapping_add((u64::from(id.0) + 1) * 0x100);
        let mut ports = KVec::new();
        let (first, inputs) = match def.kind {
            Kind::Hca => (1, 1),
            Kind::Switch => (0, usize::from(def.ports) + 1),
        };
        for number in first..=def.ports {
            let port_guid = match def.kind {
                Kind::Hca => guid.wrapping_add(u64::from(number)),
                Kind::Switch => guid,
            };
            let port = Port::new(id, def.kind, number, port_guid, inputs)?;
            ports.push(port, GFP_KERNEL)?;
        }
        let switch = match def.kind {
            Kind::Hca => None,
            Kind::Switch => Some(Switch {
                lft: KVVec::from_elem(NO_PORT, usize::from(LFT_CAP), GFP_KERNEL)?,
                mft: KVVec::from_elem(0, usize::from(MFT_CAP), GFP_KERNEL)?,
                lft_top: 0,
                defaults: [0; 3],
                life_time: 0,
                port_state_change: false,
                mft_top: 0,
            }),
        };
        Ok(Node {
            id,
            name: def.name,
            guid,
            desc: description(def.name.as_str().as_bytes()),
            ports,
            switch,
            trap: Trap::default(),
        })
    }

    /// HCA or switch.
    pub fn kind(&self) -> Kind {
        if self.switch.is_some() {
            Kind::Switch
        } else {
            Kind::Hca
        }
    }

    /// Its ports: from 1 on for an HCA, from 0 on for a switch.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// The number of the last port, which is the number of ports without port 0.
    pub fn port_count(&self) -> u8 {
        self.ports.last().map_or(0, |p| p.number)
    }

    /// The port with this number.
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(self.index(number)?)
    }

    pub(super) fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        let index = self.index(number)?;
        self.ports.get_mut(index)
    }

    /// The port whose LID, M_Key and SM are meant by an SMP that arrives at `number`: that port in
    /// an HCA, port 0 in a switch.
    pub(super) fn managed_port(&self, number: u8) -> u8 {
        if self.switch.is_some() {
            0
        } else {
            number
        }
    }

    fn index(&self, number: u8) -> Option<usize> {
        let number = usize::from(number);
        if self.switch.is_some() {
            Some(number)
        } else {
            number.checked_sub(1)
        }
    }
}

/// `text`, as far as it fits, padded with zeros.
pub(super) fn description(text: &[u8]) -> [u8; 64] {
    let mut desc = [0; 64];
    for (to, from) in desc.iter_mut().zip(text) {
        *to = *from;
    }
    desc
}
