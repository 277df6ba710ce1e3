// SPDX-License-Identifier: GPL-2.0-only

//! The receiving side: requests in the order of their PSNs, each once (IBA 9.7.3 to 9.7.5).
//!
//! A request is carried out when it is the one expected. One that comes again is acknowledged
//! again, a READ is carried out again. One that comes too early shows that another was lost: it is
//! answered by a NAK, once, and dropped.

use super::super::super::mem::KVec;
use super::super::host::{Access, Host, MemError, QpEvent, RecvDone, Status};
use super::super::packet::{Aeth, NakCode, Opcode, Packet, Position, Reth, Syndrome};
use super::requester::position;
use super::{buffer, Psn, Rc, MAX_MESSAGE};

const MSN_MASK: u32 = 0x00ff_ffff;

/// A message of which the last packet has not come.
#[derive(Clone, Copy, Debug)]
enum Incoming {
    /// None.
    Idle,
    /// SEND, bytes so far.
    Send(u32),
    /// RDMA WRITE, as its first packet said, and bytes so far.
    Write(Reth, u32),
}

/// State of the receiving side.
#[derive(Debug)]
pub(super) struct Responder {
    /// PSN expected next.
    expected: Psn,
    /// Messages completed.
    msn: u32,
    /// A NAK or an RNR NAK was sent for the PSN expected.
    refused: bool,
    /// COMM_EST was raised.
    pub(super) established: bool,
    incoming: Incoming,
    /// When the ACK that is held back has to go.
    pub(super) ack_due: Option<u64>,
}

/// A request that is not carried out: what the peer is told and what is raised here.
struct Refusal(NakCode, Option<QpEvent>);

const INVALID: Refusal = Refusal(NakCode::InvalidRequest, Some(QpEvent::ReqErr));
const ACCESS: Refusal = Refusal(NakCode::RemoteAccess, Some(QpEvent::AccessErr));

impl Responder {
    pub(super) const fn new() -> Self {
        Responder {
            expected: Psn::new(0),
            msn: 0,
            refused: false,
            established: false,
            incoming: Incoming::Idle,
            ack_due: None,
        }
    }

    /// Sets the PSN of the first packet.
    pub(super) fn start_at(&mut self, psn: Psn) {
        self.expected = psn;
    }

    /// PSN expected next.
    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    /// Stops all timers: ERR.
    pub(super) fn stop(&mut self) {
        self.ack_due = None;
        self.incoming = Incoming::Idle;
    }

    fn message_done(&mut self) {
        self.msn = self.msn.wrapping_add(1) & MSN_MASK;
        self.incoming = Incoming::Idle;
    }
}

impl Rc {
    /// A request packet came in.
    pub(super) fn request(&mut self, packet: &Packet, host: &mut impl Host) {
        let psn = Psn::new(packet.bth.psn);
        let ahead = psn.beyond(self.rsp.expected);
        if ahead < 0 {
            self.duplicate(packet, psn, ahead.unsigned_abs(), host);
            return;
        }
        if ahead > 0 {
            if !self.rsp.refused {
                self.rsp.refused = true;
                self.answer(Syndrome::Nak(NakCode::PsnSequence), self.rsp.expected, host);
            }
            return;
        }
        if self.needs_receive(packet) && !host.recv_ready() {
            self.rsp.refused = true;
            self.answer(Syndrome::RnrNak(self.min_rnr_timer), psn, host);
            return;
        }
        self.rsp.refused = false;
        let done = match packet.bth.opcode {
            Opcode::Send(at) => self.take_send(packet, at, host),
            Opcode::Write(at) => self.take_write(packet, at, host),
            Opcode::ReadRequest => self.take_read(packet, psn, host),
            _ => return,
        };
        if let Err(Refusal(code, event)) = done {
            self.answer(Syndrome::Nak(code), psn, host);
            if let Some(event) = event {
                host.event(event);
            }
            self.enter_err(host);
        }
    }

    /// Whether a packet can only be taken with a receive at hand: the first of a SEND, and what
    /// brings immediate data with a WRITE. One that does not fit into its place is refused for
    /// that.
    fn needs_receive(&self, packet: &Packet) -> bool {
        match (packet.bth.opcode, self.rsp.incoming) {
            (Opcode::Send(at), Incoming::Idle) => at.is_first(),
            (Opcode::Write(at), Incoming::Idle) => at == Position::Only && packet.imm.is_some(),
            (Opcode::Write(at), Incoming::Write(..)) => {
                at == Position::Last && packet.imm.is_some()
            }
            _ => false,
        }
    }

    /// Checks that a packet is as long as its place in the message wants it.
    fn check_size(&self, packet: &Packet, at: Position) -> Result<u32, Refusal> {
        let size = u32::try_from(packet.payload.len()).map_err(|_| INVALID)?;
        let mtu = self.mtu();
        let fits = match at {
            Position::First | Position::Middle => size == mtu,
            Position::Last => (1..=mtu).contains(&size),
            Position::Only => size <= mtu,
        };
        fits.then_some(size).ok_or(INVALID)
    }

    fn take_send(
        &mut self,
        packet: &Packet,
        at: Position,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let offset = match (at.is_first(), self.rsp.incoming) {
            (true, Incoming::Idle) => 0,
            (false, Incoming::Send(got)) => got,
            _ => return Err(INVALID),
        };
        let size = self.check_size(packet, at)?;
        let done = RecvDone {
            status: Status::Success,
            len: offset.saturating_add(size),
            imm: packet.imm,
            invalidated: packet.invalidate,
            write_imm: false,
            solicited: packet.bth.solicited,
            slid: packet.lrh.slid,
        };
        if let Err((status, code)) = place(packet, offset, at, host) {
            host.recv_done(RecvDone {
                status,
                imm: None,
                invalidated: None,
                ..done
            });
            return Err(Refusal(code, None));
        }
        if at.is_last() {
            host.recv_done(done);
            self.rsp.message_done();
        } else {
            self.rsp.incoming = Incoming::Send(done.len);
        }
        self.taken(packet, 1, host);
        Ok(())
    }

    fn take_write(
        &mut self,
        packet: &Packet,
        at: Position,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let (reth, got) = match (at.is_first(), self.rsp.incoming) {
            (true, Incoming::Idle) => (packet.reth.ok_or(INVALID)?, 0),
            (false, Incoming::Write(reth, got)) => (reth, got),
            _ => return Err(INVALID),
        };
        let size = self.check_size(packet, at)?;
        let len = got.saturating_add(size);
        let fits = if at.is_last() {
            len == reth.len
        } else {
            len < reth.len
        };
        if !fits || reth.len > MAX_MESSAGE {
            return Err(INVALID);
        }
        // Nothing is accessed by an empty WRITE, and its R_Key means nothing (IBA 9.7.4.1.5).
        if at.is_first() && reth.len > 0 {
            host.remote_check(reth.rkey, reth.va, reth.len, Access::Write)
                .map_err(|_| ACCESS)?;
        }
        if size > 0 {
            let va = reth.va.wrapping_add(u64::from(got));
            host.remote_write(reth.rkey, va, &packet.payload)
                .map_err(|_| ACCESS)?;
        }
        if at.is_last() {
            if packet.imm.is_some() {
                host.recv_done(RecvDone {
                    status: Status::Success,
                    len,
                    imm: packet.imm,
                    invalidated: None,
                    write_imm: true,
                    solicited: packet.bth.solicited,
                    slid: packet.lrh.slid,
                });
            }
            self.rsp.message_done();
        } else {
            self.rsp.incoming = Incoming::Write(reth, len);
        }
        self.taken(packet, 1, host);
        Ok(())
    }

    fn take_read(
        &mut self,
        packet: &Packet,
        psn: Psn,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let reth = packet.reth.ok_or(INVALID)?;
        let idle = matches!(self.rsp.incoming, Incoming::Idle);
        if !idle || reth.len > MAX_MESSAGE || self.max_dest_rd_atomic == 0 {
            return Err(INVALID);
        }
        if reth.len > 0 {
            host.remote_check(reth.rkey, reth.va, reth.len, Access::Read)
                .map_err(|_| ACCESS)?;
        }
        self.rsp.expected = psn.plus(self.packets(reth.len));
        self.rsp.message_done();
        self.respond(psn, &reth, host).map_err(|_| ACCESS)
    }

    /// The packet expected has been carried out.
    fn taken(&mut self, packet: &Packet, packets: u32, host: &mut impl Host) {
        self.rsp.expected = self.rsp.expected.plus(packets);
        if !packet.bth.ack_req {
            return;
        }
        if self.quirks.ack_delay == 0 {
            self.answer(Syndrome::Ack, self.rsp.expected.prev(), host);
        } else if self.rsp.ack_due.is_none() {
            let delay = u64::from(self.quirks.ack_delay);
            self.rsp.ack_due = Some(host.now().saturating_add(delay));
        }
    }

    /// A request that has been carried out came again, `behind` PSNs late.
    fn duplicate(&mut self, packet: &Packet, psn: Psn, behind: u32, host: &mut impl Host) {
        self.counters.duplicates = self.counters.duplicates.saturating_add(1);
        match (packet.bth.opcode, packet.reth) {
            (Opcode::ReadRequest, Some(reth)) => {
                // What was read once may have been taken back since, and then nobody waits for it.
                let read_before = reth.len <= MAX_MESSAGE && self.packets(reth.len) <= behind;
                let check = |r: &Reth| host.remote_check(r.rkey, r.va, r.len, Access::Read);
                if read_before && (reth.len == 0 || check(&reth).is_ok()) {
                    let _ = self.respond(psn, &reth, host);
                }
            }
            // Its own PSN, not the latest: that may lie beyond a READ of which the responses are
            // still wanted.
            _ if packet.bth.ack_req => self.answer(Syndrome::Ack, psn, host),
            _ => {}
        }
    }

    /// Sends the responses to a READ.
    fn respond(&mut self, psn: Psn, reth: &Reth, host: &mut impl Host) -> Result<(), MemError> {
        // They acknowledge all requests before.
        self.rsp.ack_due = None;
        let msn = self.rsp.msn;
        let n = self.packets(reth.len);
        for k in 0..n {
            let (offset, size) = self.span(k, reth.len);
            let Ok(mut payload) = buffer(size) else {
                continue;
            };
            if size > 0 {
                let va = reth.va.wrapping_add(u64::from(offset));
                host.remote_read(reth.rkey, va, &mut payload)?;
            }
            let at = position(k, n);
            self.send(host, Opcode::ReadResponse(at), psn.plus(k), payload, |p| {
                let syndrome = Syndrome::Ack;
                p.aeth = (at != Position::Middle).then_some(Aeth { syndrome, msn });
            });
        }
        Ok(())
    }

    /// Sends the ACK that was held back.
    pub(super) fn send_due_ack(&mut self, host: &mut impl Host) {
        self.answer(Syndrome::Ack, self.rsp.expected.prev(), host);
    }

    /// Sends an Acknowledge packet; it speaks for all before `psn`, too.
    fn answer(&mut self, syndrome: Syndrome, psn: Psn, host: &mut impl Host) {
        if psn.plus(1).beyond(self.rsp.expected) >= 0 {
            self.rsp.ack_due = None;
        }
        let msn = self.rsp.msn;
        self.send(host, Opcode::Acknowledge, psn, KVec::new(), |p| {
            p.aeth = Some(Aeth { syndrome, msn });
        });
    }
}

/// Puts a packet of a SEND into the receive at the head, and invalidates what it says.
fn place(
    packet: &Packet,
    offset: u32,
    at: Position,
    host: &mut impl Host,
) -> Result<(), (Status, NakCode)> {
    if !packet.payload.is_empty() {
        host.recv_scatter(offset, &packet.payload)
            .map_err(|e| match e {
                MemError::Length => (Status::LocLen, NakCode::InvalidRequest),
                MemError::Protection => (Status::LocProt, NakCode::RemoteOperational),
            })?;
    }
    match packet.invalidate.filter(|_| at.is_last()) {
        Some(rkey) => host
            .remote_invalidate(rkey)
            .map_err(|_| (Status::MwBind, NakCode::RemoteAccess)),
        None => Ok(()),
    }
}
