// SPDX-License-Identifier: GPL-2.0-only

//! The subnet management agent of a node (IBA 14.2): who may ask, what is answered. Tables are in
//! [`super::tables`], PortInfo is in [`super::portinfo`].

use super::super::topology::Kind;
use super::mad::{
    put16, put32, put64, Mad, ATTR_NOTICE, METHOD_GET, METHOD_SET, METHOD_TRAP_REPRESS,
    STATUS_BAD_VERSION, STATUS_OK, STATUS_UNSUPPORTED,
};
use super::port::PKEYS;
use super::{Fabric, PortRef};

const NODE_DESCRIPTION: u16 = 0x0010;
const NODE_INFO: u16 = 0x0011;
const SWITCH_INFO: u16 = 0x0012;
const GUID_INFO: u16 = 0x0014;
const PORT_INFO: u16 = 0x0015;
const PKEY_TABLE: u16 = 0x0016;
const SL_TO_VL: u16 = 0x0017;
const VL_ARBITRATION: u16 = 0x0018;
const LINEAR_FDB: u16 = 0x0019;
const MULTICAST_FDB: u16 = 0x001b;
const SM_INFO: u16 = 0x0020;

/// NodeInfo:VendorID, an OUI with the bit of local administration.
const VENDOR_ID: u32 = 0x02_0fab;

/// What an agent made of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It now is the response.
    Reply,
    /// Done with it; nothing is sent.
    Silence,
    /// It is for somebody else.
    NotMine,
}

impl Fabric {
    /// Answers an SMP that has arrived at a port of `at.node` (`at.port` of an HCA is asked itself,
    /// in a switch it is only where the SMP came in).
    pub(super) fn smp(
        &mut self,
        at: PortRef,
        smp: &mut Mad<'_>,
        ignore_mkey: bool,
        now: u64,
    ) -> Answer {
        let (method, attr) = (smp.method(), smp.attr());
        if method == METHOD_TRAP_REPRESS {
            if attr == ATTR_NOTICE {
                self.trap_repressed(at.node, smp.tid());
            }
            return Answer::Silence;
        }
        let hca = self.node(at.node).is_some_and(|n| n.kind() == Kind::Hca);
        let request = matches!(method, METHOD_GET | METHOD_SET);
        // An SM may live in an HCA, with SMInfo and Notice of its own.
        if !request || (hca && matches!(attr, SM_INFO | ATTR_NOTICE)) {
            return Answer::NotMine;
        }
        if !smp.versions_ok() {
            smp.respond(STATUS_BAD_VERSION);
            return Answer::Reply;
        }
        if !ignore_mkey && !self.mkey_allows(at, smp, now) {
            return Answer::Silence;
        }
        let status = self.attribute(at, smp, ignore_mkey, now);
        smp.respond(status);
        Answer::Reply
    }

    fn attribute(&mut self, at: PortRef, smp: &mut Mad<'_>, ignore_mkey: bool, now: u64) -> u16 {
        match (smp.method() == METHOD_SET, smp.attr()) {
            (false, NODE_DESCRIPTION) => self.node_description(at, smp),
            (false, NODE_INFO) => self.node_info(at, smp),
            (set, SWITCH_INFO) => self.switch_info(at, smp, set),
            (set, GUID_INFO) => self.guid_info(at, smp, set),
            (false, PORT_INFO) => self.get_port_info(at, smp, ignore_mkey),
            (true, PORT_INFO) => self.set_port_info(at, smp, ignore_mkey, now),
            (set, PKEY_TABLE) => self.pkey_table(at, smp, set),
            (set, SL_TO_VL) => self.sl_to_vl(at, smp, set),
            (set, VL_ARBITRATION) => self.vl_arbitration(at, smp, set),
            (set, LINEAR_FDB) => self.linear_fdb(at, smp, set),
            (set, MULTICAST_FDB) => self.multicast_fdb(at, smp, set),
            _ => STATUS_UNSUPPORTED,
        }
    }

    /// The M_Key check of IBA 14.2.4: counts a violation and starts the lease.
    fn mkey_allows(&mut self, at: PortRef, smp: &Mad<'_>, now: u64) -> bool {
        let managed = self.node(at.node).map_or(0, |n| n.managed_port(at.port));
        let at = PortRef {
            node: at.node,
            port: managed,
        };
        let Some(p) = self.port_mut(at) else {
            return false;
        };
        if p.mkey_lease_end.is_some_and(|end| now >= end) {
            p.mkey_protect = 0;
            p.mkey_lease_end = None;
        }
        if p.mkey == 0 || p.mkey == smp.mkey() {
            p.mkey_lease_end = None;
            return true;
        }
        if smp.method() == METHOD_GET && p.mkey_protect < 2 {
            return true;
        }
        p.mkey_violations = p.mkey_violations.saturating_add(1);
        if p.mkey_lease != 0 && p.mkey_lease_end.is_none() {
            p.mkey_lease_end = now.checked_add(u64::from(p.mkey_lease) * 1_000_000_000);
        }
        false
    }

    fn node_description(&self, at: PortRef, smp: &mut Mad<'_>) -> u16 {
        let Some(node) = self.node(at.node) else {
            return STATUS_UNSUPPORTED;
        };
        smp.smp_data().copy_from_slice(&node.desc);
        STATUS_OK
    }

    fn node_info(&self, at: PortRef, smp: &mut Mad<'_>) -> u16 {
        let Some(node) = self.node(at.node) else {
            return STATUS_UNSUPPORTED;
        };
        let port_guid = node
            .port(node.managed_port(at.port))
            .map_or(0, |p| p.guid());
        let (kind, device) = match node.kind() {
            Kind::Hca => (1, 1),
            Kind::Switch => (2, 2),
        };
        let d = smp.smp_data();
        d.fill(0);
        // BaseVersion, ClassVersion, NodeType, NumPorts
        put32(d, 0, u32::from_be_bytes([1, 1, kind, node.port_count()]));
        // SystemImageGUID, NodeGUID, PortGUID
        put64(d, 4, node.guid);
        put64(d, 12, node.guid);
        put64(d, 20, port_guid);
        // PartitionCap, DeviceID, Revision
        put16(d, 28, PKEYS as u16);
        put16(d, 30, device);
        put32(d, 32, 1);
        // LocalPortNum, VendorID
        put32(d, 36, (u32::from(at.port) << 24) | VENDOR_ID);
        STATUS_OK
    }
}
