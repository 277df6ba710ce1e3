// SPDX-License-Identifier: GPL-2.0-only

//! Paths: the one in use, and what makes another one an alternate to it.

use super::reason::Reason;
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

/// A port of the local HCA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
