// SPDX-License-Identifier: GPL-2.0-only

//! Paths: the one in use, and what makes another one an alternate to it.

use super::reason::Reason;
use crate::wire::cm::path::CmPath;
use crate::wire::records::PathRecord;
use crate::wire::Gid;
use core::fmt;

/// First LID that is no unicast LID.
const FIRST_MULTICAST_LID: u16 = 0xc000;
/// The largest number of LIDs that a port can have (LMC 7).
const MAX_LIDS: u16 = 128;
/// The bit of a P_Key that says full membership.
const MEMBERSHIP: u16 = 0x8000;

/// The path in use, and what an alternate must have in common with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Primary {
    /// Local port, from 1.
    pub(crate) port: u32,
    /// GID of the local port.
    pub(crate) sgid: Gid,
    /// GID of the remote port.
    pub(crate) dgid: Gid,
    /// LID of the local port.
    pub(crate) slid: u16,
    /// LID of the remote port.
    pub(crate) dlid: u16,
    /// Partition key of the connection.
    pub(crate) pkey: u16,
    /// Service level.
    pub(crate) sl: u8,
    /// Path MTU (`enum ib_mtu`).
    pub(crate) mtu: u8,
}

impl Primary {
    /// The record of another path, with what a connection has only once: P_Key, SL and MTU.
    pub(crate) fn adopt(&self, rec: &PathRecord) -> PathRecord {
        PathRecord {
            pkey: self.pkey,
            sl: self.sl,
            mtu: self.mtu,
            ..*rec
        }
    }
}

/// A path of a connection as this end sees it: the one in use, or its alternate.
///
/// P_Key and MTU belong to the connection. LIDs of 0 are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FullPath {
    /// Local port, from 1; 0 where only its GID is known yet.
    pub(crate) port: u32,
    /// GID of the local port.
    pub(crate) sgid: Gid,
    /// GID of the remote port.
    pub(crate) dgid: Gid,
    /// LID of the local port.
    pub(crate) slid: u16,
    /// LID of the remote port.
    pub(crate) dlid: u16,
    /// Service level.
    pub(crate) sl: u8,
    /// Packet rate (`enum ib_rate`).
    pub(crate) rate: u8,
    /// For the GRH: 20 bits.
    pub(crate) flow_label: u32,
    /// For the GRH.
    pub(crate) traffic_class: u8,
    /// For the GRH; 0 where none is needed.
    pub(crate) hop_limit: u8,
    /// 4.096 us x 2^n.
    pub(crate) packet_life_time: u8,
}

impl FullPath {
    /// A path that the peer describes in a REQ or LAP, from this end. The port is left to the caller.
    pub(crate) fn from_peer(path: &CmPath) -> Self {
        let own = path.reversed();
        Self {
            port: 0,
            sgid: own.local_gid,
            dgid: own.remote_gid,
            slid: own.local_lid,
            dlid: own.remote_lid,
            sl: own.sl,
            rate: own.rate,
            flow_label: own.flow_label,
            traffic_class: own.traffic_class,
            hop_limit: own.hop_limit,
            // What ib_cm makes of it. The peer has counted its ACK delay in.
            packet_life_time: own.ack_timeout.saturating_sub(1),
        }
    }

    /// The path as a message of this end describes it; `ack_timeout` is how long this end waits for an
    /// ACK on it (4.096 us x 2^n), see [`super::timers::qp_timeout`].
    pub(crate) fn to_cm(self, ack_timeout: u8) -> CmPath {
        CmPath {
            local_lid: self.slid,
            remote_lid: self.dlid,
            local_gid: self.sgid,
            remote_gid: self.dgid,
            flow_label: self.flow_label,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            rate: self.rate,
            sl: self.sl,
            subnet_local: self.hop_limit <= 1,
            ack_timeout,
        }
    }

    /// The path as the search for an alternate to it wants it.
    pub(crate) fn primary(&self, pkey: u16, mtu: u8) -> Primary {
        Primary {
            port: self.port,
            sgid: self.sgid,
            dgid: self.dgid,
            slid: self.slid,
            dlid: self.dlid,
            pkey,
            sl: self.sl,
            mtu,
        }
    }

    /// Whether packets take the same way: GIDs, flow label and the like don't matter for that.
    pub(crate) fn same_way(&self, other: &Self) -> bool {
        self.key() == other.key()
    }

    /// Whether packets go between the same LIDs, which is what a peer can say of a path.
    pub(crate) fn same_lids(&self, other: &Self) -> bool {
        (self.slid, self.dlid) == (other.slid, other.dlid)
    }

    /// What tells paths of one connection from each other.
    pub(crate) fn key(&self) -> Key {
        Key {
            port: self.port,
            slid: self.slid,
            dlid: self.dlid,
        }
    }
}

impl From<&Alternate> for FullPath {
    fn from(alternate: &Alternate) -> Self {
        let rec = &alternate.path;
        Self {
            port: alternate.port,
            sgid: rec.sgid,
            dgid: rec.dgid,
            slid: rec.slid,
            dlid: rec.dlid,
            sl: rec.sl,
            rate: rec.rate,
            flow_label: rec.flow_label,
            traffic_class: rec.traffic_class,
            hop_limit: rec.hop_limit,
            packet_life_time: rec.packet_life_time,
        }
    }
}

/// What tells the paths of one connection from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Local port, from 1.
    pub(crate) port: u32,
    /// LID of the local port.
    pub(crate) slid: u16,
    /// LID of the remote port.
    pub(crate) dlid: u16,
}

/// A port of the local HCA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LocalPort {
    /// From 1.
    pub(crate) num: u32,
    /// Its first GID.
    pub(crate) gid: Gid,
    /// Base LID.
    pub(crate) lid: u16,
    /// It has 2^lmc LIDs.
    pub(crate) lmc: u8,
    /// The port is ACTIVE and its link layer is InfiniBand.
    pub(crate) active: bool,
    /// Its P_Key table has the connection's P_Key.
    pub(crate) has_pkey: bool,
}

/// What an alternate does not have in common with the path in use. The best comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Disjoint {
    /// The ports at both ends.
    Ports,
    /// The port at one end.
    Port,
    /// All switches and links between the switches that the two ports are connected to.
    Switches,
    /// All links between those switches, but not all switches.
    Links,
    /// A LID; nothing more is known.
    Lid,
}

impl fmt::Display for Disjoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ports => "ports",
            Self::Port => "port",
            Self::Switches => "switches",
            Self::Links => "links",
            Self::Lid => "lid",
        })
    }
}

/// An alternate path and the local port it leaves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Alternate {
    /// Local port, from 1.
    pub(crate) port: u32,
    /// The path; P_Key, SL and MTU are the primary's.
    pub(crate) path: PathRecord,
    /// How far it is from the path in use.
    pub(crate) disjoint: Disjoint,
    /// SLID and DLID of the path to be used with it: mostly those of the path that the search began
    /// with.
    pub(crate) primary_lids: (u16, u16),
}

impl Alternate {
    /// What tells it from other paths of the connection.
    pub(crate) fn key(&self) -> Key {
        Key {
            port: self.port,
            slid: self.path.slid,
            dlid: self.path.dlid,
        }
    }
}

/// Whether `lid` is one of the 2^lmc LIDs that begin with `base`.
pub(crate) fn in_range(base: u16, lmc: u8, lid: u16) -> bool {
    let mask = u16::MAX.checked_shl(u32::from(lmc & 7)).unwrap_or(0);
    lid & mask == base
}

/// Whether `lid` can be one of the LIDs that begin with `base`, when the LMC is not known. A base LID
/// is a multiple of the number of LIDs.
pub(crate) fn could_belong(base: u16, lid: u16) -> bool {
    let Some(offset) = lid.checked_sub(base).filter(|o| *o < MAX_LIDS) else {
        return false;
    };
    let unicast = base != 0 && lid < FIRST_MULTICAST_LID;
    let count = offset.saturating_add(1).next_power_of_two();
    unicast && base & count.saturating_sub(1) == 0
}

/// Checks what an alternate must have in common with the primary, whichever ports it is between.
pub(crate) fn check(primary: &Primary, rec: &PathRecord) -> Result<(), Reason> {
    if rec.dlid == 0 || rec.dlid >= FIRST_MULTICAST_LID || !rec.reversible || rec.sl != primary.sl {
        return Err(Reason::NoAlternateInSa);
    }
    if rec.pkey & !MEMBERSHIP != primary.pkey & !MEMBERSHIP {
        return Err(Reason::PkeyMissing);
    }
    if rec.mtu < primary.mtu {
        return Err(Reason::MtuMismatch);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lids_of_a_port() {
        assert!(in_range(12, 1, 12) && in_range(12, 1, 13));
        assert!(!in_range(12, 1, 14) && !in_range(12, 0, 13));
        assert!(could_belong(12, 13) && could_belong(12, 15));
        assert!(!could_belong(12, 16) && !could_belong(13, 14) && !could_belong(13, 12));
        assert!(!could_belong(0, 1) && !could_belong(0xbfff, 0xc000));
        assert!(!could_belong(0x100, 0x180));
    }

    #[test]
    fn a_path_from_both_ends() {
        let ours = FullPath {
            port: 2,
            sgid: Gid::new(1, 2),
            dgid: Gid::new(1, 3),
            slid: 4,
            dlid: 5,
            sl: 6,
            rate: 7,
            flow_label: 8,
            traffic_class: 9,
            hop_limit: 1,
            packet_life_time: 14,
        };
        let told = ours.to_cm(16);
        assert_eq!((told.local_lid, told.remote_lid), (4, 5));
        assert_eq!(told.local_gid, Gid::new(1, 2));
        assert!(told.subnet_local);
        let theirs = FullPath::from_peer(&told);
        assert_eq!((theirs.slid, theirs.dlid), (5, 4));
        assert_eq!((theirs.sgid, theirs.dgid), (ours.dgid, ours.sgid));
        assert_eq!((theirs.port, theirs.packet_life_time), (0, 15));
        // And back, but for what only each end knows for itself.
        let again = FullPath::from_peer(&theirs.to_cm(15));
        assert_eq!(FullPath { port: 2, ..again }, ours);
        assert!(again.key() != ours.key() && FullPath { port: 2, ..again }.same_way(&ours));
        let routed = FullPath {
            hop_limit: 2,
            ..ours
        };
        assert!(!routed.to_cm(16).subnet_local);
        assert_eq!(ours.primary(0xffff, 4).sl, 6);
    }

    proptest! {
        #[test]
        fn every_lid_of_a_port_could_belong_to_it(lmc in 0u8..8, number in 1u16..0x100, offset in 0u16..128) {
            let base = number << lmc;
            let lid = base | (offset & ((1 << lmc) - 1));
            prop_assert!(in_range(base, lmc, lid));
            prop_assert!(could_belong(base, lid));
        }
    }
}
