// SPDX-License-Identifier: GPL-2.0-only

//! LAP, APR and MRA: how a connection gets another alternate path (IBA tables 115, 116 and 107).
//!
//! A LAP has 168 bytes of private data, which nobody else is known to use. With zeros there it is what
//! any implementation understands. The other kinds are ours:
//!
//! ```text
//! byte  0        8         9      10        16       24            168
//!       magic    version   kind   zero      nonce    zero
//! ```

use super::super::{be64, bytes, put};
use super::path::CmPath;
use super::{be24, body, Attribute, Ids, HEADER_LEN};

const PRIVATE_DATA: usize = 64;
const MAGIC: [u8; 8] = *b"ib_cmapm";
const VERSION: u8 = 1;
const KIND_NOTICE: u8 = 1;
const KIND_OWN: u8 = 2;
const KIND_DEAD_STANDBY: u8 = 3;
const KIND_PORT_BACK: u8 = 4;

/// What a LAP is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// To load its path as the alternate.
    #[default]
    Ordinary,
    /// "I have migrated to this path: migrate as well."
    Notice,
    /// To oneself, for one's own CM to learn an address; with a number that nobody else can know.
    Own(u64),
    /// "Your alternate ends at a port of mine that is down: look for another one."
    DeadStandby,
    /// "A port of mine is back: there may be a better alternate."
    PortBack,
    /// Marked as ours, by another version of ours.
    Unknown,
}

impl Kind {
    /// Reads the mark in a LAP's private data; `None` where that is too short.
    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        if bytes(data, 0) != Some(MAGIC) {
            return Some(Self::Ordinary);
        }
        Some(match bytes(data, 8)? {
            [VERSION, KIND_NOTICE] => Self::Notice,
            [VERSION, KIND_OWN] => Self::Own(be64(data, 16)?),
            [VERSION, KIND_DEAD_STANDBY] => Self::DeadStandby,
            [VERSION, KIND_PORT_BACK] => Self::PortBack,
            _ => Self::Unknown,
        })
    }

    fn put(self, data: &mut [u8]) -> Option<()> {
        let (kind, nonce) = match self {
            Self::Ordinary | Self::Unknown => return Some(()),
            Self::Notice => (KIND_NOTICE, 0),
            Self::DeadStandby => (KIND_DEAD_STANDBY, 0),
            Self::PortBack => (KIND_PORT_BACK, 0),
            Self::Own(nonce) => (KIND_OWN, nonce),
        };
        put(data, 0, MAGIC)?;
        put(data, 8, [VERSION, kind])?;
        put(data, 16, nonce.to_be_bytes())
    }
}

/// A LAP: load this alternate path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Lap {
    /// Transaction id, to be found again in APR and MRA.
    pub(crate) tid: u64,
    /// The connection.
    pub(crate) ids: Ids,
    /// The receiver's QP number ("remote QPN").
    pub(crate) qpn: u32,
    /// Within what time the receiver answers: 4.096 us x 2^n.
    pub(crate) remote_cm_response_timeout: u8,
    /// The path, as the sender sees it.
    pub(crate) alternate: CmPath,
    /// What it is for.
    pub(crate) kind: Kind,
}

impl Lap {
    /// Reads a LAP; `None` where the MAD is none.
    pub(crate) fn parse(mad: &[u8]) -> Option<Self> {
        let body = body(mad, Attribute::Lap)?;
        Some(Self {
            tid: super::tid(mad)?,
            ids: Ids::of(body)?,
            qpn: be24(body, 12)?,
            remote_cm_response_timeout: body.get(15)? >> 3,
            alternate: CmPath::of_lap(body, 20)?,
            kind: Kind::parse(body.get(PRIVATE_DATA..)?)?,
        })
    }

    /// Lays out the MAD; `None` only where the buffer is shorter than one.
    pub(crate) fn write(&self, mad: &mut [u8]) -> Option<()> {
        Attribute::Lap.write(self.tid, mad)?;
        let body = mad.get_mut(HEADER_LEN..)?;
        self.ids.put(body)?;
        put(body, 12, (self.qpn << 8).to_be_bytes())?;
        put(body, 15, [self.remote_cm_response_timeout << 3])?;
        self.alternate.put_lap(body, 20)?;
        self.kind.put(body.get_mut(PRIVATE_DATA..)?)
    }
}

/// What an APR says of the alternate path: a number of the wire. Those that are never sent (4 redirect, 9 flow
/// label, 10 traffic class) have no name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Status(pub(crate) u8);

impl Status {
    /// It is loaded.
    pub(crate) const LOADED: Self = Self(0);
    /// No such connection.
    pub(crate) const INVALID_COMM_ID: Self = Self(1);
    /// Alternate paths are not supported.
    pub(crate) const UNSUPPORTED: Self = Self(2);
    /// Rejected, for a reason of the receiver's own.
    pub(crate) const REJECTED: Self = Self(3);
    /// It is the path in use.
    pub(crate) const SAME_AS_PRIMARY: Self = Self(5);
    /// QP number.
    pub(crate) const QPN: Self = Self(6);
    /// LID.
    pub(crate) const LID: Self = Self(7);
    /// GID.
    pub(crate) const GID: Self = Self(8);
    /// Hop limit.
    pub(crate) const HOP_LIMIT: Self = Self(11);
    /// Packet rate.
    pub(crate) const RATE: Self = Self(12);
    /// Service level.
    pub(crate) const SL: Self = Self(13);
}

/// Bytes of additional information in an APR.
pub(crate) const INFO_LEN: usize = 72;

/// An APR: the answer to a LAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Apr {
    /// Transaction id: the LAP's.
    pub(crate) tid: u64,
    /// The connection.
    pub(crate) ids: Ids,
    /// Whether the path is loaded, or why not.
    pub(crate) status: Status,
    /// Bytes of `info` that count.
    pub(crate) info_len: u8,
    /// Additional information, by status.
    pub(crate) info: [u8; INFO_LEN],
}

impl Apr {
    /// The answer to `lap`, without additional information.
    pub(crate) fn to(lap: &Lap, status: Status) -> Self {
        Self {
            tid: lap.tid,
            ids: lap.ids.reversed(),
            status,
            info_len: 0,
            info: [0; INFO_LEN],
        }
    }

    /// Reads an APR; `None` where the MAD is none.
    pub(crate) fn parse(mad: &[u8]) -> Option<Self> {
        let body = body(mad, Attribute::Apr)?;
        Some(Self {
            tid: super::tid(mad)?,
            ids: Ids::of(body)?,
            status: Status(*body.get(9)?),
            info_len: *body.get(8)?,
            info: bytes(body, 12)?,
        })
    }

    /// Lays out the MAD; `None` only where the buffer is shorter than one.
    pub(crate) fn write(&self, mad: &mut [u8]) -> Option<()> {
        Attribute::Apr.write(self.tid, mad)?;
        let body = mad.get_mut(HEADER_LEN..)?;
        self.ids.put(body)?;
        put(body, 8, [self.info_len, self.status.0])?;
        put(body, 12, self.info)
    }
}

/// Which message an MRA acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mraed {
    /// The REQ.
    Req,
    /// The REP.
    Rep,
    /// The LAP.
    Lap,
    /// None that there is.
    Reserved,
}

/// An MRA: a message has arrived, and its answer takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mra {
    /// Transaction id: that of the message.
    pub(crate) tid: u64,
    /// The connection.
    pub(crate) ids: Ids,
    /// Which message.
    pub(crate) message: Mraed,
    /// How long from now on: 4.096 us x 2^n.
    pub(crate) service_timeout: u8,
}

impl Mra {
    /// Reads an MRA; `None` where the MAD is none.
    pub(crate) fn parse(mad: &[u8]) -> Option<Self> {
        let body = body(mad, Attribute::Mra)?;
        Some(Self {
            tid: super::tid(mad)?,
            ids: Ids::of(body)?,
            message: match body.get(8)? >> 6 {
                0 => Mraed::Req,
                1 => Mraed::Rep,
                2 => Mraed::Lap,
                _ => Mraed::Reserved,
            },
            service_timeout: body.get(9)? >> 3,
        })
    }
}
