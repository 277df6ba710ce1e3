// SPDX-License-Identifier: GPL-2.0-only

//! REQ and REP: how a connection is asked for and accepted (IBA tables 106 and 110).

use super::super::{be16, be64};
use super::path::CmPath;
use super::{be24, be32, body, Attribute, Ids};

/// `transport` of a reliable connection.
pub(crate) const TRANSPORT_RC: u8 = 0;

/// A REQ: the active side asks for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Req {
    /// The sender's communication id.
    pub(crate) comm_id: u32,
    /// What it wants to talk to.
    pub(crate) service_id: u64,
    /// NodeGUID of the sender's HCA ("local CA GUID").
    pub(crate) ca_guid: u64,
    /// The sender's QP number.
    pub(crate) qpn: u32,
    /// [`TRANSPORT_RC`], 1 for UC, 3 for an extended one.
    pub(crate) transport: u8,
    /// Within what time the receiver answers a message of the CM: 4.096 us x 2^n.
    pub(crate) remote_cm_response_timeout: u8,
    /// Within what time the sender does: 4.096 us x 2^n.
    pub(crate) local_cm_response_timeout: u8,
    /// How often the receiver's QP repeats a packet.
    pub(crate) retry_count: u8,
    /// Partition key.
    pub(crate) pkey: u16,
    /// Path MTU (`enum ib_mtu`).
    pub(crate) mtu: u8,
    /// How often a message of the CM is repeated.
    pub(crate) max_cm_retries: u8,
    /// The path.
    pub(crate) primary: CmPath,
    /// The alternate path, where there is one.
    pub(crate) alternate: Option<CmPath>,
}

impl Req {
    /// Reads a REQ; `None` where the MAD is none.
    pub(crate) fn parse(mad: &[u8]) -> Option<Self> {
        let body = body(mad, Attribute::Req)?;
        let alternate = CmPath::of_req(body, 96)?;
        Some(Self {
            comm_id: be32(body, 0)?,
            service_id: be64(body, 8)?,
            ca_guid: be64(body, 16)?,
            qpn: be24(body, 32)?,
            transport: body.get(43)? >> 1 & 3,
            remote_cm_response_timeout: body.get(43)? >> 3,
            local_cm_response_timeout: body.get(47)? >> 3,
            retry_count: body.get(47)? & 7,
            pkey: be16(body, 48)?,
            mtu: body.get(50)? >> 4,
            max_cm_retries: body.get(51)? >> 4,
            primary: CmPath::of_req(body, 52)?,
            alternate: (alternate.local_lid != 0).then_some(alternate),
        })
    }
}

/// A REP: the passive side accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rep {
    /// The connection.
    pub(crate) ids: Ids,
    /// The sender's QP number.
    pub(crate) qpn: u32,
    /// How long the sender's HCA may take to send an ACK: 4.096 us x 2^n.
    pub(crate) target_ack_delay: u8,
    /// What it does with the REQ's alternate path: [`super::FAILOVER_ACCEPTED`], or not.
    pub(crate) failover_accepted: u8,
    /// NodeGUID of the sender's HCA ("local CA GUID").
    pub(crate) ca_guid: u64,
}

impl Rep {
    /// Reads a REP; `None` where the MAD is none.
    pub(crate) fn parse(mad: &[u8]) -> Option<Self> {
        let body = body(mad, Attribute::Rep)?;
        Some(Self {
            ids: Ids::of(body)?,
            qpn: be24(body, 12)?,
            target_ack_delay: body.get(26)? >> 3,
            failover_accepted: body.get(26)? >> 1 & 3,
            ca_guid: be64(body, 28)?,
        })
    }
}
