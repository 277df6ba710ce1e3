// SPDX-License-Identifier: GPL-2.0-only

//! What travels on a link.
//!
//! A packet is kept as its header fields (IBA vol. 1, chapters 7 and 9) in host byte order and one
//! payload of at most an MTU; nothing ever serialises it, since both ends of every link live here.
//! What one HCA knows of another is what it finds in here and nothing else.

use super::super::mem::{AllocError, KVec, GFP_ATOMIC};

/// Local route header (IBA 7.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lrh {
    /// Virtual lane: 15 for subnet management, else data.
    pub vl: u8,
    /// Service level.
    pub sl: u8,
    /// Destination LID; 0xffff is the permissive LID of directed routes.
    pub dlid: u16,
    /// Source LID.
    pub slid: u16,
}

/// Global route header (IBA 8.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grh {
    /// Traffic class.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID, in wire order.
    pub sgid: [u8; 16],
    /// Destination GID, in wire order.
    pub dgid: [u8; 16],
}

/// Base transport header (IBA 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Migration state of the sender: true when it is MIGRATED.
    pub mig_req: bool,
    /// P_Key.
    pub pkey: u16,
    /// Destination QP number, 24 bits.
    pub dest_qp: u32,
    /// The responder is asked to acknowledge.
    pub ack_req: bool,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

/// Opcodes (IBA table 38), RC unless it says UD. Position in the message is a part of the opcode
/// there and a field of its own here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// SEND, perhaps with immediate or invalidate in its last packet.
    Send(Position),
    /// RDMA WRITE, perhaps with immediate in its last packet.
    Write(Position),
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse(Position),
    /// Acknowledge: ACK, RNR NAK or NAK, as the AETH says.
    Acknowledge,
    /// UD SEND (always one packet).
    UdSend,
}

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// First and last at once.
    Only,
}

impl Position {
    /// Whether a message begins here.
    pub fn is_first(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Whether a message ends here.
    pub fn is_last(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// RDMA extended transport header (IBA 9.3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// DMA length of the whole message, in bytes.
    pub len: u32,
}

/// ACK extended transport header (IBA 9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What is said.
    pub syndrome: Syndrome,
    /// Message sequence number of the responder, 24 bits.
    pub msn: u32,
}

/// AETH syndrome (IBA 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All up to the PSN has arrived.
    Ack,
    /// No receive posted; try again after this timer code (IBA table 45).
    RnrNak(u8),
    /// Not accepted.
    Nak(NakCode),
}

/// NAK codes (IBA table 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// The PSN in the packet is the one that was expected.
    PsnSequence,
    /// The request makes no sense.
    InvalidRequest,
    /// The memory may not be accessed.
    RemoteAccess,
    /// The responder could not do it.
    RemoteOperational,
}

/// Datagram extended transport header (IBA 9.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Source QP number, 24 bits.
    pub src_qp: u32,
}

/// A packet.
#[derive(Debug)]
pub struct Packet {
    /// Local route header.
    pub lrh: Lrh,
    /// Global route header, where there is one.
    pub grh: Option<Grh>,
    /// Base transport header.
    pub bth: Bth,
    /// Present in UD packets.
    pub deth: Option<Deth>,
    /// Present in the first packet of a WRITE and in READ requests.
    pub reth: Option<Reth>,
    /// Present in acknowledgements and in first, last and only READ responses.
    pub aeth: Option<Aeth>,
    /// Immediate data, in network byte order as the consumer gave it.
    pub imm: Option<u32>,
    /// R_Key to invalidate at the receiver (IETH).
    pub invalidate: Option<u32>,
    /// Data, at most an MTU.
    pub payload: KVec<u8>,
}

impl Packet {
    /// A copy, payload included.
    pub fn duplicate(&self) -> Result<Packet, AllocError> {
        let mut payload = KVec::with_capacity(self.payload.len(), GFP_ATOMIC)?;
        payload.extend_from_slice(&self.payload, GFP_ATOMIC)?;
        Ok(Packet { payload, ..*self })
    }

    /// Length on the wire from the LRH to the ICRC in 32-bit words, as port counters count data.
    pub fn wire_words(&self) -> u64 {
        let optional = |present: bool, words: u64| if present { words } else { 0 };
        let payload = (self.payload.len() as u64).div_ceil(4);
        // LRH 2, GRH 10, BTH 3, DETH 2, RETH 4, AETH 1, immediate 1, IETH 1, ICRC 1
        2 + optional(self.grh.is_some(), 10)
            + 3
            + optional(self.deth.is_some(), 2)
            + optional(self.reth.is_some(), 4)
            + optional(self.aeth.is_some(), 1)
            + optional(self.imm.is_some(), 1)
            + optional(self.invalidate.is_some(), 1)
            + payload
            + 1
    }
}
