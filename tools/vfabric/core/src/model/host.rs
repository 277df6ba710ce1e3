// SPDX-License-Identifier: GPL-2.0-only

//! What a queue pair asks of the HCA it lives in.
//!
//! The transport ([`super::rc`]) holds protocol state only. Work queues, memory, completions, time
//! and the wire belong to its host: `shell/` in the kernel, a few vectors in the tests.

use super::packet::Packet;

/// What a send work request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate data (network byte order, as posted).
    SendImm(u32),
    /// SEND that invalidates an R_Key of the receiver.
    SendInvalidate(u32),
    /// RDMA WRITE to the remote address, with the R_Key.
    Write {
        /// Remote virtual address.
        va: u64,
        /// Remote key.
        rkey: u32,
    },
    /// RDMA WRITE with immediate data.
    WriteImm {
        /// Remote virtual address.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// Immediate data, network byte order.
        imm: u32,
    },
    /// RDMA READ from the remote address, with the R_Key.
    Read {
        /// Remote virtual address.
        va: u64,
        /// Remote key.
        rkey: u32,
    },
    /// Something the HCA does by itself (fast registration, local invalidate): the host carries it
    /// out in order, in [`Host::local_op`].
    Local,
}

/// A send work request, as far as the transport has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWqe {
    /// What to do.
    pub op: SendOp,
    /// Bytes in its scatter/gather list.
    pub len: u32,
    /// Solicited event asked for at the receiver.
    pub solicited: bool,
    /// Waits until earlier RDMA READs are complete (IB_SEND_FENCE).
    pub fence: bool,
}

/// Completion status, with the names of `enum ib_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// Local length error.
    LocLen,
    /// Local QP operation error.
    LocQpOp,
    /// Local protection error.
    LocProt,
    /// Flushed: the QP is in error.
    Flush,
    /// Memory bind error (invalidate of a key that is not valid).
    MwBind,
    /// Remote invalid request.
    RemInvReq,
    /// Remote access error.
    RemAccess,
    /// Remote operation error.
    RemOp,
    /// The ACK timer ran out too often.
    RetryExceeded,
    /// The peer had no receive for too long.
    RnrRetryExceeded,
}

/// How a receive work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvDone {
    /// How.
    pub status: Status,
    /// Bytes received.
    pub len: u32,
    /// Immediate data, network byte order.
    pub imm: Option<u32>,
    /// The R_Key that the sender had invalidated.
    pub invalidated: Option<u32>,
    /// The message was an RDMA WRITE with immediate.
    pub write_imm: bool,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// Source LID of the last packet.
    pub slid: u16,
}

/// Asynchronous QP events, with the names of `enum ib_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// IB_EVENT_COMM_EST.
    CommEst,
    /// IB_EVENT_PATH_MIG.
    PathMig,
    /// IB_EVENT_PATH_MIG_ERR.
    PathMigErr,
    /// IB_EVENT_QP_ACCESS_ERR.
    AccessErr,
    /// IB_EVENT_QP_REQ_ERR.
    ReqErr,
    /// IB_EVENT_QP_FATAL.
    Fatal,
    /// IB_EVENT_SQ_DRAINED.
    SqDrained,
}

/// Why a migration happened, for the fabric's own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationCause {
    /// Retry exhaustion.
    Exhaustion,
    /// A packet with MigReq = 1 on the alternate path.
    Peer,
    /// `modify_qp`.
    Command,
}

/// Why memory could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemError {
    /// No such key, not valid, another protection domain, outside its range, or the access is not
    /// allowed.
    Protection,
    /// The list is shorter than the data.
    Length,
}

/// Access that a remote operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// IB_ACCESS_REMOTE_READ.
    Read,
    /// IB_ACCESS_REMOTE_WRITE.
    Write,
}

/// The HCA around one queue pair, for the duration of one call into the transport.
///
/// Send work requests are named by a running number: the first ever posted since RESET is 0, and it
/// wraps at 2^32; the ring they lie in is the host's business.
pub trait Host {
    /// Time in nanoseconds; never goes back.
    fn now(&self) -> u64;

    /// The send work request `index`, or `None` where nothing has been posted there yet.
    fn send_wqe(&self, index: u32) -> Option<SendWqe>;

    /// Copies from the local memory of request `index`, from `offset` on, into all of `out`.
    fn gather(&mut self, index: u32, offset: u32, out: &mut [u8]) -> Result<(), MemError>;

    /// Copies READ data into the local memory of request `index`, from `offset` on.
    fn scatter(&mut self, index: u32, offset: u32, data: &[u8]) -> Result<(), MemError>;

    /// Carries out a [`SendOp::Local`].
    fn local_op(&mut self, index: u32) -> Result<(), Status>;

    /// Request `index`, the oldest, has ended. Called for each request exactly once and in order;
    /// the host decides by the request's own flags whether that makes a completion (errors always
    /// do).
    fn send_done(&mut self, index: u32, status: Status, len: u32);

    /// Whether a receive is posted (taking from an SRQ where there is one).
    fn recv_ready(&mut self) -> bool;

    /// Copies into the receive at the head, from `offset` on.
    fn recv_scatter(&mut self, offset: u32, data: &[u8]) -> Result<(), MemError>;

    /// The receive at the head has ended.
    fn recv_done(&mut self, done: RecvDone);

    /// Ends every receive that is posted to this QP, one in progress first, with [`Status::Flush`].
    /// Called in ERR, perhaps with none there. Of an SRQ only the receive already taken counts.
    fn flush_receives(&mut self);

    /// Whether `len` bytes at `va` may be accessed by way of `rkey` (validity, protection domain,
    /// bounds, the QP's and the region's access flags).
    fn remote_check(&self, rkey: u32, va: u64, len: u32, access: Access) -> Result<(), MemError>;

    /// Reads `out.len()` bytes of the responder's memory.
    fn remote_read(&mut self, rkey: u32, va: u64, out: &mut [u8]) -> Result<(), MemError>;

    /// Writes to the responder's memory.
    fn remote_write(&mut self, rkey: u32, va: u64, data: &[u8]) -> Result<(), MemError>;

    /// Invalidates `rkey` for a SEND with invalidate.
    fn remote_invalidate(&mut self, rkey: u32) -> Result<(), MemError>;

    /// LID of a port of this HCA (base LID, 0 where the SM has not given one), and its LMC.
    fn port_lid(&self, port: u8) -> (u16, u8);

    /// Whether a port of this HCA is there and ACTIVE: an alternate path on any other port cannot be
    /// migrated to.
    fn port_active(&self, port: u8) -> bool;

    /// P_Key at `index` of the table of `port` (0 where there is none).
    fn pkey(&self, port: u8, index: u16) -> u16;

    /// A packet of the right path came in by `port` with a P_Key that does not match (P_KeyViolations
    /// of its PortInfo).
    fn bad_pkey(&mut self, port: u8);

    /// Puts `packet` on the link of `port`. It is queued: no QP is called from in here.
    fn transmit(&mut self, port: u8, packet: Packet);

    /// Raises an asynchronous event.
    fn event(&mut self, event: QpEvent);

    /// Counts a migration (a log line, a counter): the path in use has just become `port`/`dlid`.
    fn migrated(&mut self, cause: MigrationCause, port: u8, dlid: u16);
}
