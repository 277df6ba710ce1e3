// SPDX-License-Identifier: GPL-2.0-only

//! A port: what its PortInfo, P_Key table and counters are made of, and the end of a link.

use super::super::super::mem::{AllocError, KVec, GFP_KERNEL};
use super::super::topology::Kind;
use super::counters::Counters;
use super::impair::{Impairment, Ways};
use super::{NodeId, PortRef};

/// Entries of a P_Key table (NodeInfo:PartitionCap).
pub const PKEYS: usize = 32;
/// Entries of a GUID table (PortInfo:GUIDCap).
pub const GUIDS: usize = 8;
/// PortInfo:MTUCap, and NeighborMTU before the SM sets it: code 5, 4096 bytes.
pub const MTU_CAP: u8 = 5;
/// PortInfo:VLCap: code 1, VL0 only.
pub const VL_CAP: u8 = 1;
/// PortInfo:VLArbitrationHighCap and VLArbitrationLowCap.
pub const VLARB_CAP: u8 = 8;
/// PortInfo:LinkWidthSupported: 1x and 4x.
pub const WIDTH_SUPPORTED: u8 = 0x03;
/// PortInfo:LinkSpeedSupported: SDR, DDR and QDR.
pub const SPEED_SUPPORTED: u8 = 0x07;
/// The first multicast LID; unicast LIDs lie below.
pub const LID_MULTICAST: u16 = 0xc000;
/// The permissive LID.
pub const LID_PERMISSIVE: u16 = 0xffff;

/// PortInfo:CapabilityMask, bit 1: a subnet manager runs here.
pub const CAP_IS_SM: u32 = 1 << 1;
/// Bit 3: sends traps.
pub const CAP_TRAP: u32 = 1 << 3;
/// Bit 5: automatic path migration.
pub const CAP_AUTO_MIGRATION: u32 = 1 << 5;
/// Bit 6: has an SLtoVLMappingTable.
pub const CAP_SL_MAPPING: u32 = 1 << 6;
/// Bit 11: SystemImageGUID is given.
pub const CAP_SYSTEM_IMAGE_GUID: u32 = 1 << 11;
/// Bit 25: understands ClientReregister.
pub const CAP_CLIENT_REREGISTER: u32 = 1 << 25;

/// In neither direction.
const NOWHERE: Ways = Ways {
    inward: false,
    outward: false,
};

/// Link state, PortInfo:PortState; the values are those of `enum ib_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PortState {
    /// No link.
    Down = 1,
    /// The link is there: subnet management packets only.
    Init = 2,
    /// Configured by the SM: subnet management packets only.
    Armed = 3,
    /// Everything passes.
    Active = 4,
}

impl PortState {
    /// The name, as in the dump of the ports.
    pub fn as_str(self) -> &'static str {
        match self {
            PortState::Down => "DOWN",
            PortState::Init => "INIT",
            PortState::Armed => "ARMED",
            PortState::Active => "ACTIVE",
        }
    }
}

/// Physical state, PortInfo:PortPhysicalState; the values are those of `enum ib_port_phys_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PhysState {
    /// Put to sleep by the SM.
    Sleep = 1,
    /// Looks for another end.
    Polling = 2,
    /// Switched off by the SM.
    Disabled = 3,
    /// The link has trained.
    LinkUp = 5,
}

impl PhysState {
    /// The name, as in the dump of the ports.
    pub fn as_str(self) -> &'static str {
        match self {
            PhysState::Sleep => "Sleep",
            PhysState::Polling => "Polling",
            PhysState::Disabled => "Disabled",
            PhysState::LinkUp => "LinkUp",
        }
    }
}

/// A port of an HCA, port 0 of a switch (its management port) or an external port of a switch.
///
/// An external port of a switch has no LID, GUID, M_Key, P_Key table or SM of its own; those fields
/// stay 0 there. Ports change only inside the fabric, by SMPs, by control commands and by the calls
/// of [`super::Fabric`] named in the fields; all integers are in host byte order.
#[derive(Debug)]
pub struct Port {
    /// Whose.
    pub node: NodeId,
    /// Number; 0 only for switches.
    pub number: u8,
    /// Link state.
    pub state: PortState,
    /// Physical state.
    pub phys: PhysState,
    /// Base LID, 0 before the SM has given one.
    pub lid: u16,
    /// LID mask control: the port owns 2^lmc LIDs.
    pub lmc: u8,
    /// LID of the master SM.
    pub sm_lid: u16,
    /// SL to reach the master SM by.
    pub sm_sl: u8,
    /// Capability mask; [`super::Fabric::modify_port`] changes it.
    pub cap_mask: u32,
    /// NeighborMTU, the active MTU: code 1 (256) to 5 (4096).
    pub neighbor_mtu: u8,
    /// M_Key, 0: no protection.
    pub mkey: u64,
    /// M_KeyProtectBits.
    pub mkey_protect: u8,
    /// M_KeyLeasePeriod in seconds, 0: for ever.
    pub mkey_lease: u16,
    /// When the lease runs out, in nanoseconds; runs only after an M_Key violation.
    pub mkey_lease_end: Option<u64>,
    /// GidPrefix.
    pub gid_prefix: u64,
    /// GUID table; entry 0 is the port GUID.
    pub guids: [u64; GUIDS],
    /// SubnetTimeOut: 4.096 us x 2^n between two traps.
    pub subnet_timeout: u8,
    /// P_Key table.
    pub pkeys: [u16; PKEYS],
    /// LinkWidthEnabled (bit mask).
    pub width_enabled: u8,
    /// LinkWidthActive.
    pub width_active: u8,
    /// LinkSpeedEnabled (bit mask).
    pub speed_enabled: u8,
    /// LinkSpeedActive.
    pub speed_active: u8,
    /// OperationalVLs, a code like VLCap.
    pub operational_vls: u8,
    /// The four bits beside OperationalVLs: partition enforcement and raw filters.
    pub enforce: u8,
    /// LinkDownDefaultState: 1 sleep, 2 polling.
    pub link_down_default: u8,
    /// VLHighLimit.
    pub vl_high_limit: u8,
    /// VLStallCount and HOQLife, as in PortInfo.
    pub vl_stall_hoq: u8,
    /// InitTypeReply, a nibble.
    pub init_type_reply: u8,
    /// LocalPhyErrors and OverrunErrors thresholds, as in PortInfo.
    pub error_thresholds: u8,
    /// M_KeyViolations.
    pub mkey_violations: u16,
    /// P_KeyViolations; [`super::Fabric::count_bad_pkey`] adds to it.
    pub pkey_violations: u16,
    /// Q_KeyViolations; [`super::Fabric::count_bad_qkey`] adds to it.
    pub qkey_violations: u16,
    /// What has passed and what has not.
    pub counters: Counters,
    /// The other end of the cable.
    pub peer: Option<PortRef>,
    /// The cable is cut (the same at both ends).
    pub cut: bool,
    /// Directions in which all packets are lost.
    pub blackhole: Ways,
    /// What happens to packets that arrive here.
    pub inward: Impairment,
    /// What happens to packets that leave here.
    pub outward: Impairment,
    /// Packets that are held up on the cable, on their way from here to the other end.
    pub(super) held: u32,
    /// When the last of them arrives, in nanoseconds.
    pub(super) held_until: u64,
    /// SLtoVLMappingTable by input port (one entry in an HCA), 16 nibbles each.
    pub(super) sl2vl: KVec<[u8; 8]>,
    /// VLArbitrationTable: the first block of the low and of the high priority half.
    pub(super) vlarb: [[u8; 64]; 2],
}

impl Port {
    pub(super) fn new(
        node: NodeId,
        kind: Kind,
        number: u8,
        guid: u64,
        inputs: usize,
    ) -> Result<Port, AllocError> {
        let managed = kind == Kind::Hca || number == 0;
        let base_port0 = kind == Kind::Switch && number == 0;
        let caps = CAP_TRAP | CAP_SL_MAPPING | CAP_SYSTEM_IMAGE_GUID | CAP_CLIENT_REREGISTER;
        let mut guids = [0; GUIDS];
        let mut pkeys = [0; PKEYS];
        if managed {
            guids[0] = guid;
            pkeys[0] = 0xffff;
        }
        Ok(Port {
            node,
            number,
            // A base port 0 has no link: what the SM asks of it is there from the start.
            state: if base_port0 {
                PortState::Active
            } else {
                PortState::Down
            },
            phys: if base_port0 {
                PhysState::LinkUp
            } else {
                PhysState::Polling
            },
            lid: 0,
            lmc: 0,
            sm_lid: 0,
            sm_sl: 0,
            cap_mask: match (managed, kind) {
                (true, Kind::Hca) => caps | CAP_AUTO_MIGRATION,
                (true, Kind::Switch) => caps,
                (false, _) => 0,
            },
            neighbor_mtu: MTU_CAP,
            mkey: 0,
            mkey_protect: 0,
            mkey_lease: 0,
            mkey_lease_end: None,
            gid_prefix: if managed { 0xfe80_0000_0000_0000 } else { 0 },
            guids,
            subnet_timeout: 0,
            pkeys,
            width_enabled: WIDTH_SUPPORTED,
            width_active: 0x02,
            speed_enabled: SPEED_SUPPORTED,
            speed_active: 0x04,
            operational_vls: VL_CAP,
            enforce: 0,
            link_down_default: 2,
            vl_high_limit: 0,
            vl_stall_hoq: 0,
            init_type_reply: 0,
            error_thresholds: 0x88,
            mkey_violations: 0,
            pkey_violations: 0,
            qkey_violations: 0,
            counters: Counters::default(),
            peer: None,
            cut: false,
            blackhole: NOWHERE,
            inward: Impairment::default(),
            outward: Impairment::default(),
            held: 0,
            held_until: 0,
            sl2vl: KVec::from_elem([0; 8], inputs, GFP_KERNEL)?,
            vlarb: [[0; 64]; 2],
        })
    }

    /// Port GUID (0 for an external port of a switch).
    pub fn guid(&self) -> u64 {
        self.guids[0]
    }

    /// The GID at `index` in wire order, all zero where the entry is empty; `None` past the table.
    pub fn gid(&self, index: usize) -> Option<[u8; 16]> {
        let guid = *self.guids.get(index)?;
        let mut gid = [0; 16];
        if guid != 0 {
            gid[..8].copy_from_slice(&self.gid_prefix.to_be_bytes());
            gid[8..].copy_from_slice(&guid.to_be_bytes());
        }
        Some(gid)
    }

    /// Whether `lid` is one of this port's 2^LMC LIDs.
    pub fn owns_lid(&self, lid: u16) -> bool {
        let count = 1u16 << (self.lmc & 7);
        self.lid != 0 && lid < LID_MULTICAST && lid.wrapping_sub(self.lid) < count
    }

    /// The largest payload, in bytes.
    pub fn mtu_bytes(&self) -> usize {
        128usize << self.neighbor_mtu.min(MTU_CAP)
    }

    /// VL for a packet with `sl` that entered by `input` (0 in an HCA); `None`: to be dropped.
    pub(super) fn vl_for(&self, input: u8, sl: u8) -> Option<u8> {
        let map = self.sl2vl.get(usize::from(input)).or(self.sl2vl.first())?;
        let pair = *map.get(usize::from(sl & 0xf) / 2)?;
        let vl = if sl & 1 == 0 { pair >> 4 } else { pair & 0xf };
        // Codes 1 to 4 are 1, 2, 4 and 8 lanes, 5 is 15 lanes.
        let lanes = match self.operational_vls {
            5 => 15,
            n => 1u8 << (n.clamp(1, 4) - 1),
        };
        (vl < lanes).then_some(vl)
    }

    /// Ends whatever is wrong with the cable, short of a cut.
    pub(super) fn mend(&mut self) {
        self.blackhole = NOWHERE;
        self.inward = Impairment::default();
        self.outward = Impairment::default();
    }

    /// Whether the far end could be reached if the far end wants it too.
    pub(super) fn willing(&self) -> bool {
        !self.cut && !matches!(self.phys, PhysState::Disabled | PhysState::Sleep)
    }
}
