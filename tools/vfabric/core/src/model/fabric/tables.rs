// SPDX-License-Identifier: GPL-2.0-only

//! The table attributes of the subnet management agent: SwitchInfo, GUIDInfo, P_KeyTable,
//! SLtoVLMappingTable, VLArbitrationTable and the forwarding tables (IBA 14.2.5.4 to 14.2.5.11).
//!
//! Each function answers a Get, or carries out a Set and answers with what then holds. It gives the
//! status.

use super::super::topology::Kind;
use super::mad::{get16, get64, put16, put64, Mad, STATUS_INVALID, STATUS_OK, STATUS_UNSUPPORTED};
use super::node::{Node, Switch, LFT_CAP, MFT_CAP};
use super::{Fabric, PortEvent, PortRef};

/// Entries in one block of a linear forwarding table.
const LFT_BLOCK: usize = 64;
/// Entries in one block of a multicast forwarding table.
const MFT_BLOCK: usize = 32;

/// Where the fields of SwitchInfo lie.
mod switch_info {
    pub(super) const LINEAR_CAP: usize = 0;
    pub(super) const MULTICAST_CAP: usize = 4;
    pub(super) const LINEAR_TOP: usize = 6;
    pub(super) const DEFAULTS: usize = 8;
    pub(super) const LIFE_TIME: usize = 11;
    pub(super) const MULTICAST_TOP: usize = 18;
    pub(super) const PORT_STATE_CHANGE: u8 = 1 << 2;
}

impl Fabric {
    fn switch_of(&mut self, at: PortRef) -> Option<&mut Switch> {
        self.node_mut(at.node)?.switch.as_mut()
    }

    /// The port of an attribute whose modifier names it in a switch and which an HCA has per port.
    fn port_of(&self, at: PortRef, in_switch: u32) -> Option<PortRef> {
        let node = self.node(at.node)?;
        let port = match node.kind() {
            Kind::Hca => at.port,
            Kind::Switch => u8::try_from(in_switch).ok()?,
        };
        node.port(port)?;
        Some(PortRef {
            node: at.node,
            port,
        })
    }

    pub(super) fn switch_info(&mut self, at: PortRef, smp: &mut Mad<'_>, set: bool) -> u16 {
        use switch_info::*;
        let d = smp.smp_data();
        let Some(s) = self.switch_of(at) else {
            return STATUS_UNSUPPORTED;
        };
        if set {
            let top = get16(d, LINEAR_TOP);
            if top >= LFT_CAP {
                return STATUS_INVALID;
            }
            s.lft_top = top;
            s.mft_top = get16(d, MULTICAST_TOP);
            let [a, b] = get16(d, DEFAULTS).to_be_bytes();
            let [c, life] = get16(d, DEFAULTS + 2).to_be_bytes();
            s.defaults = [a, b, c];
            s.life_time = life >> 3;
            // Written as 1, it is cleared.
            s.port_state_change &= life & PORT_STATE_CHANGE == 0;
        }
        let change = if s.port_state_change {
            PORT_STATE_CHANGE
        } else {
            0
        };
        d.fill(0);
        put16(d, LINEAR_CAP, LFT_CAP);
        put16(d, MULTICAST_CAP, MFT_CAP);
        put16(d, LINEAR_TOP, s.lft_top);
        put16(
            d,
            DEFAULTS,
            u16::from_be_bytes([s.defaults[0], s.defaults[1]]),
        );
        put16(
            d,
            LIFE_TIME - 1,
            u16::from_be_bytes([s.defaults[2], (s.life_time << 3) | change]),
        );
        put16(d, MULTICAST_TOP, s.mft_top);
        STATUS_OK
    }

    pub(super) fn guid_info(&mut self, at: PortRef, smp: &mut Mad<'_>, set: bool) -> u16 {
        let block = smp.modifier();
        let managed = self.node(at.node).map_or(0, |n| n.managed_port(at.port));
        let at = PortRef {
            node: at.node,
            port: managed,
        };
        let d = smp.smp_data();
        let Some(p) = self.port_mut(at).filter(|_| block == 0) else {
            d.fill(0);
            return STATUS_INVALID;
        };
        let before = p.guids;
        for (i, guid) in p.guids.iter_mut().enumerate() {
            // The first is the port's own and stays.
            if set && i > 0 {
                *guid = get64(d, i * 8);
            }
            put64(d, i * 8, *guid);
        }
        if p.guids != before {
            self.raise(at, PortEvent::GidChange);
        }
        STATUS_OK
    }

    pub(super) fn pkey_table(&mut self, at: PortRef, smp: &mut Mad<'_>, set: bool) -> u16 {
        let (port, block) = (smp.modifier() >> 16, smp.modifier() & 0xffff);
        let switch = self.node(at.node).is_some_and(|n| n.kind() == Kind::Switch);
        let place = self.port_of(at, port);
        let d = smp.smp_data();
        // Switches enforce no partitions at their external ports (PartitionEnforcementCap 0).
        let Some(at) = place.filter(|p| block == 0 && (!switch || p.port == 0)) else {
            d.fill(0);
            return STATUS_INVALID;
        };
        let Some(p) = self.port_mut(at) else {
            return STATUS_INVALID;
        };
        let before = p.pkeys;
        for (i, pkey) in p.pkeys.iter_mut().enumerate() {
            if set {
                *pkey = get16(d, i * 2);
            }
            put16(d, i * 2, *pkey);
        }
        if p.pkeys != before {
            self.raise(at, PortEvent::PkeyChange);
        }
        STATUS_OK
    }

    pub(super) fn sl_to_vl(&mut self, at: PortRef, smp: &mut Mad<'_>, set: bool) -> u16 {
        let (input, output) = ((smp.modifier() >> 8) & 0xff, smp.modifier() & 0xff);
        let switch = self.node(at.node).is_some_and(|n| n.kind() == Kind::Switch);
        let input = if switch { input as usize } else { 0 };
        let place = self.port_of(at, output);
        let d = smp.smp_data();
        let map = place
            .and_then(|at| self.port_mut(at))
            .and_then(|p| p.sl2vl.get_mut(input));
        let Some(map) = map else {
            d.fill(0);
            return STATUS_INVALID;
        };
        if set {
            *map = get64(d, 0).to_be_bytes();
        }
        d.fill(0);
        put64(d, 0, u64::from_be_bytes(*map));
        STATUS_OK
    }

    pub(super) fn vl_arbitration(&mut self, at: PortRef, smp: &mut Mad<'_>, set: bool) -> u16 {
        let (block, port) = (smp.modifier() >> 16, smp.modifier() & 0xffff);
        let place = self.port_of(at, port);
        let d = smp.smp_data();
        // Blocks 2 and 4 are the second halves of tables longer than VLArbitrationCap.
        let table = match block {
            1 => Some(0),
            3 => Some(1),
            _ => None,
        };
        let entries = place
            .and_then(|at| self.port_mut(at))
            .zip(table)
            .and_then(|(p, table)| p.vlarb.get_mut(table));
        let Some(entries) = entries else {
            d.fill(0);
            return STATUS_INVALID;
        };
        if set {
            entries.copy_from_slice(d);
        }
        d.copy_from_slice(entries);
        STATUS_OK
    }

    pub(super) fn linear_fdb(&mut self, at: PortRef, smp: &mut Mad<'_>, set: bool) -> u16 {
        let first = usize::try_from(smp.modifier())
            .unwrap_or(usize::MAX)
            .saturating_mul(LFT_BLOCK);
        let d = smp.smp_data();
        let Some(switch) = self.switch_of(at) else {
            return STATUS_UNSUPPORTED;
        };
        let last = first.saturating_add(LFT_BLOCK);
        let Some(block) = switch.lft.get_mut(first..last) else {
            d.fill(0);
            return STATUS_INVALID;
        };
        if set {
            block.copy_from_slice(d);
        }
        d.copy_from_slice(block);
        STATUS_OK
    }

    pub(super) fn multicast_fdb(&mut self, at: PortRef, smp: &mut Mad<'_>, set: bool) -> u16 {
        let (position, block) = (smp.modifier() >> 28, smp.modifier() & 0x1ff);
        let first = block as usize * MFT_BLOCK;
        let positions = self.node(at.node).map_or(0, Node::port_count) / 16;
        let d = smp.smp_data();
        let Some(switch) = self.switch_of(at) else {
            return STATUS_UNSUPPORTED;
        };
        let entries = switch
            .mft
            .get_mut(first..first + MFT_BLOCK)
            .filter(|_| position <= u32::from(positions));
        let Some(entries) = entries else {
            d.fill(0);
            return STATUS_INVALID;
        };
        let shift = position * 16;
        for (i, mask) in entries.iter_mut().enumerate() {
            if set {
                *mask = *mask & !(0xffff << shift) | (u64::from(get16(d, i * 2)) << shift);
            }
            put16(d, i * 2, ((*mask >> shift) & 0xffff) as u16);
        }
        STATUS_OK
    }
}
