// SPDX-License-Identifier: GPL-2.0-only

//! How messages of the CM describe a path.

use super::super::{be16, bytes, put, Gid};
use super::be32;

/// The LID of a port beyond a router, and a port whose LID is not told (IB_LID_PERMISSIVE).
const PERMISSIVE_LID: u16 = 0xffff;

/// A path in a REQ or LAP, as the sender of that message sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CmPath {
    /// LID of the sender's port; 0 where there is no path.
    pub(crate) local_lid: u16,
    /// LID of the receiver's port.
    pub(crate) remote_lid: u16,
    /// GID of the sender's port.
    pub(crate) local_gid: Gid,
    /// GID of the receiver's port.
    pub(crate) remote_gid: Gid,
    /// For the GRH: 20 bits.
    pub(crate) flow_label: u32,
    /// For the GRH.
    pub(crate) traffic_class: u8,
    /// For the GRH; 0 where none is needed.
    pub(crate) hop_limit: u8,
    /// Packet rate as `enum ib_rate` codes it: 6 bits.
    pub(crate) rate: u8,
    /// Service level: 4 bits.
    pub(crate) sl: u8,
    /// Both ports are in one subnet.
    pub(crate) subnet_local: bool,
    /// How long the sender waits for an ACK: 4.096 us x 2^n, 5 bits.
    pub(crate) ack_timeout: u8,
}

/// Offsets inside a path block of 44 bytes of what REQ and LAP have in different order.
struct Order {
    rate: usize,
    traffic_class: usize,
    hop_limit: usize,
}

/// In a REQ: rate, traffic class, hop limit.
const REQ: Order = Order {
    rate: 39,
    traffic_class: 40,
    hop_limit: 41,
};

/// In a LAP: traffic class, hop limit, rate.
const LAP: Order = Order {
    rate: 41,
    traffic_class: 39,
    hop_limit: 40,
};

impl CmPath {
    /// The same path as the other end sees it.
    pub(crate) fn reversed(&self) -> Self {
        Self {
            local_lid: self.remote_lid,
            remote_lid: self.local_lid,
            local_gid: self.remote_gid,
            remote_gid: self.local_gid,
            ..*self
        }
    }

    /// Whether both LIDs are told: not so for a path through a router.
    pub(crate) fn has_lids(&self) -> bool {
        let told = |lid| lid != 0 && lid != PERMISSIVE_LID;
        told(self.local_lid) && told(self.remote_lid)
    }

    pub(super) fn of_req(body: &[u8], offset: usize) -> Option<Self> {
        Self::parse(body.get(offset..)?, &REQ)
    }

    pub(super) fn of_lap(body: &[u8], offset: usize) -> Option<Self> {
        Self::parse(body.get(offset..)?, &LAP)
    }

    fn parse(block: &[u8], order: &Order) -> Option<Self> {
        let service = *block.get(42)?;
        Some(Self {
            local_lid: be16(block, 0)?,
            remote_lid: be16(block, 2)?,
            local_gid: Gid(bytes(block, 4)?),
            remote_gid: Gid(bytes(block, 20)?),
            flow_label: be32(block, 36)? >> 12,
            traffic_class: *block.get(order.traffic_class)?,
            hop_limit: *block.get(order.hop_limit)?,
            rate: *block.get(order.rate)? & 0x3f,
            sl: service >> 4,
            subnet_local: service & 8 != 0,
            ack_timeout: *block.get(43)? >> 3,
        })
    }

    pub(super) fn put_lap(&self, body: &mut [u8], offset: usize) -> Option<()> {
        let block = body.get_mut(offset..)?;
        put(block, 0, self.local_lid.to_be_bytes())?;
        put(block, 2, self.remote_lid.to_be_bytes())?;
        put(block, 4, self.local_gid.0)?;
        put(block, 20, self.remote_gid.0)?;
        // The last byte of this word is one of the fields that follow.
        put(block, 36, (self.flow_label << 12).to_be_bytes())?;
        put(block, LAP.traffic_class, [self.traffic_class])?;
        put(block, LAP.hop_limit, [self.hop_limit])?;
        put(block, LAP.rate, [self.rate & 0x3f])?;
        let local = if self.subnet_local { 8 } else { 0 };
        put(block, 42, [self.sl << 4 | local, self.ack_timeout << 3])
    }
}
