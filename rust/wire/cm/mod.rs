// SPDX-License-Identifier: GPL-2.0-only

//! Messages of the communication manager (CM; IBA volume 1, chapter 12), each of them one MAD.
//!
//! To take a message apart, do the following:
//!
//! * ask [`attribute`] what it is: it costs a few comparisons, for the one MAD in many that matters;
//! * let `parse` of [`req::Req`], [`req::Rep`], [`lap::Lap`], [`lap::Apr`] or [`lap::Mra`] read it.
//!
//! Sender and receiver call the same port by different names: *local* in a message is local to its
//! sender. [`path::CmPath::reversed`] changes sides.
//!
//! All integers are in host byte order. Layouts: `include/rdma/ibta_vol1_c12.h`, whose offsets count from
//! behind the 24 bytes of the MAD header, as they do here.

use super::{be16, be64, bytes, put, sa::MAD_LEN};

pub(crate) mod lap;
pub(crate) mod path;
pub(crate) mod req;

/// Why a REQ was refused (`enum ib_cm_rej_reason`): the alternate path and nothing else is at fault.
///
/// Invalid alternate GID, LID, SL, traffic class, hop limit, packet rate (18 to 23) and flow label (33).
pub(crate) fn rejects_alternate(reason: u32) -> bool {
    matches!(reason, 18..=23 | 33)
}

/// REP `failover_accepted`: the alternate path of the REQ was taken.
pub(crate) const FAILOVER_ACCEPTED: u8 = 0;
/// REP `failover_accepted`: the passive side does not do path migration.
pub(crate) const FAILOVER_UNSUPPORTED: u8 = 1;
/// REP `failover_accepted`: it does, but not with this alternate path.
pub(crate) const FAILOVER_REJECTED: u8 = 2;

/// Service id of RDS over rdma_cm (port space TCP, port 18634), host byte order.
pub(crate) const SERVICE_RDS: u64 = 0x0106_48ca;

/// Whether a service id (host byte order) is one of IPoIB connected mode, which puts its UD QP
/// number into the low bits (RFC 4755).
pub(crate) fn is_ipoib_cm(service_id: u64) -> bool {
    service_id >> 56 == 0x10
}

const BASE_VERSION: u8 = 1;
const CLASS_CM: u8 = 7;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;
/// Bytes of the MAD header.
const HEADER_LEN: usize = 24;

/// Which message a MAD of the CM carries. The numbers are attribute ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Attribute {
    /// Request for communication.
    Req = 0x10,
    /// Message receipt acknowledgement: the answer takes longer.
    Mra = 0x11,
    /// Reject.
    Rej = 0x12,
    /// Reply to a REQ.
    Rep = 0x13,
    /// Ready to use.
    Rtu = 0x14,
    /// Request to disconnect.
    Dreq = 0x15,
    /// Reply to a DREQ.
    Drep = 0x16,
    /// Load alternate path.
    Lap = 0x19,
    /// Alternate path response.
    Apr = 0x1a,
}

impl Attribute {
    const ALL: [Self; 9] = [
        Self::Req,
        Self::Mra,
        Self::Rej,
        Self::Rep,
        Self::Rtu,
        Self::Dreq,
        Self::Drep,
        Self::Lap,
        Self::Apr,
    ];

    /// Lays out a MAD header, and zeros behind it; `None` only where the buffer is shorter than a MAD.
    fn write(self, tid: u64, mad: &mut [u8]) -> Option<()> {
        mad.get_mut(..MAD_LEN)?.fill(0);
        put(mad, 0, [BASE_VERSION, CLASS_CM, CLASS_VERSION, METHOD_SEND])?;
        put(mad, 8, tid.to_be_bytes())?;
        put(mad, 16, (self as u16).to_be_bytes())
    }
}

/// Which message of the CM a MAD carries; `None` where it is none, or one of service id resolution.
pub(crate) fn attribute(mad: &[u8]) -> Option<Attribute> {
    if *mad.get(1)? != CLASS_CM || *mad.get(3)? != METHOD_SEND {
        return None;
    }
    let id = be16(mad, 16)?;
    Attribute::ALL.into_iter().find(|a| *a as u16 == id)
}

/// The transaction id: an answer has that of its question.
pub(crate) fn tid(mad: &[u8]) -> Option<u64> {
    be64(mad, 8)
}

/// What follows the header of a MAD that carries this message.
fn body(mad: &[u8], wanted: Attribute) -> Option<&[u8]> {
    if attribute(mad) != Some(wanted) {
        return None;
    }
    mad.get(HEADER_LEN..MAD_LEN)
}

/// The communication ids of a message about a connection, as its sender names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ids {
    /// The sender's.
    pub(crate) local: u32,
    /// The receiver's.
    pub(crate) remote: u32,
}

impl Ids {
    fn of(body: &[u8]) -> Option<Self> {
        Some(Self {
            local: be32(body, 0)?,
            remote: be32(body, 4)?,
        })
    }

    fn put(self, body: &mut [u8]) -> Option<()> {
        put(body, 0, self.local.to_be_bytes())?;
        put(body, 4, self.remote.to_be_bytes())
    }

    /// The same as the other end names them.
    pub(crate) fn reversed(self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
        }
    }
}

fn be32(buf: &[u8], offset: usize) -> Option<u32> {
    bytes(buf, offset).map(u32::from_be_bytes)
}

/// 24 bits, as QP numbers have.
fn be24(buf: &[u8], offset: usize) -> Option<u32> {
    be32(buf, offset).map(|word| word >> 8)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests;
