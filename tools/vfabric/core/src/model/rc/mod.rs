// SPDX-License-Identifier: GPL-2.0-only

//! Reliable connected queue pair: IBA vol. 1, chapter 9.7, and automatic path migration, 17.2.8.
//!
//! To host one, keep an [`Rc`] for each QP and call it from one place at a time:
//!
//! - [`Rc::modify`] and [`Rc::query`] for the verbs of these names;
//! - [`Rc::posted`] after send requests were posted (in ERR it flushes them), [`Rc::flush`] after
//!   receives were posted to a QP in ERR;
//! - [`Rc::receive`] for each packet that names this QP, with the port it came in by;
//! - [`Rc::tick`] when the time that [`Rc::timer`] gave has come; ask again after every call.
//!
//! All it does to the outside goes by way of the [`Host`] that comes with each call: completions,
//! memory, events, packets. The host must not call back into the QP from there. In RESET the host
//! forgets what was posted; index 0 is the first send request after it.
//!
//! Memory is allocated for payloads only. Where there is none, the packet counts as sent and lost,
//! and is sent again like any other.
//!
//! Not modelled: atomics, memory windows, end-to-end credits, static rate, and the limit on READs at
//! the responder, which answers each at once. Request and response share no bandwidth; how long a
//! packet takes is the link's business.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod attr;
mod modify;
mod path;
mod psn;
mod requester;
mod responder;

use super::super::mem::{AllocError, KVec, GFP_ATOMIC};
use super::host::{Host, QpEvent};
use super::packet::{Bth, Lrh, Opcode, Packet};
pub use attr::{Attributes, Counters, Error, MigState, Modify, Path, Quirks, State};
use path::Paths;
use psn::Psn;
use requester::Requester;
use responder::Responder;

/// The longest message, in bytes: `max_msg_sz` of the port. Half of what IBA 9.7.7.1 allows, so
/// that a READ spans fewer PSNs than can be told from duplicates, whatever the MTU.
pub const MAX_MESSAGE: u32 = 1 << 30;

/// Room for the payload of a packet.
fn buffer(len: u32) -> Result<KVec<u8>, AllocError> {
    match len {
        0 => Ok(KVec::new()),
        n => KVec::<u8>::zeroed(n as usize, GFP_ATOMIC),
    }
}

/// An RC queue pair.
#[derive(Debug)]
pub struct Rc {
    qpn: u32,
    state: State,
    dest_qpn: u32,
    /// Path MTU is 2 to this power.
    mtu_shift: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    sqd_notify: bool,
    paths: Paths,
    req: Requester,
    rsp: Responder,
    quirks: Quirks,
    counters: Counters,
}

impl Rc {
    /// A queue pair in RESET. The number is for the record: packets name their destination only.
    pub const fn new(qpn: u32) -> Self {
        Rc {
            qpn,
            state: State::Reset,
            dest_qpn: 0,
            mtu_shift: 8,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            sqd_notify: false,
            paths: Paths::NONE,
            req: Requester::new(),
            rsp: Responder::new(),
            quirks: Quirks::NONE,
            counters: Counters::ZERO,
        }
    }

    /// QP number.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// State.
    pub fn state(&self) -> State {
        self.state
    }

    /// What happened since RESET.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Makes the QP behave as `quirks` say from now on, RESET or not.
    pub fn set_quirks(&mut self, quirks: Quirks) {
        self.quirks = quirks;
    }

    /// Send requests were posted: transmits what the window allows.
    pub fn posted(&mut self, host: &mut impl Host) {
        match self.state {
            State::Err => self.flush(host),
            _ => self.pump(host),
        }
    }

    /// A packet for this QP came in by `port`.
    pub fn receive(&mut self, port: u8, packet: Packet, host: &mut impl Host) {
        if !self.is_connected() || !self.accept(port, &packet, host) {
            return;
        }
        if self.state == State::Rtr && !self.rsp.established {
            self.rsp.established = true;
            host.event(QpEvent::CommEst);
        }
        match packet.bth.opcode {
            Opcode::Acknowledge => self.acknowledged(&packet, host),
            Opcode::ReadResponse(_) => self.read_response(&packet, host),
            Opcode::Send(_) | Opcode::Write(_) | Opcode::ReadRequest => self.request(&packet, host),
            Opcode::UdSend => {}
        }
        if self.req.take_resend() && self.is_connected() {
            self.resend(host);
        }
    }

    /// When [`Rc::tick`] wants to be called next, in [`Host::now`]'s nanoseconds.
    pub fn timer(&self) -> Option<u64> {
        [self.req.ack_deadline, self.req.rnr_until, self.rsp.ack_due]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what is due by now; harmless when nothing is.
    pub fn tick(&mut self, host: &mut impl Host) {
        let now = host.now();
        let due = |t: Option<u64>| t.is_some_and(|t| t <= now);
        if due(self.rsp.ack_due) {
            self.send_due_ack(host);
        }
        if due(self.req.rnr_until) {
            self.req.rnr_until = None;
            self.pump(host);
        }
        if due(self.req.ack_deadline) {
            self.ack_timeout(host);
        }
    }

    /// In ERR: ends every request that is posted, sends and receives, with a flush. Nothing
    /// otherwise.
    pub fn flush(&mut self, host: &mut impl Host) {
        if self.state == State::Err {
            self.flush_sends(host);
            host.flush_receives();
        }
    }

    /// Whether packets are accepted.
    fn is_connected(&self) -> bool {
        matches!(self.state, State::Rtr | State::Rts | State::Sqd)
    }

    /// The one way into ERR.
    fn enter_err(&mut self, host: &mut impl Host) {
        if self.state != State::Err {
            self.state = State::Err;
            self.req.stop();
            self.rsp.stop();
            self.flush(host);
        }
    }

    /// Path MTU in bytes.
    fn mtu(&self) -> u32 {
        1u32.wrapping_shl(u32::from(self.mtu_shift))
    }

    /// Packets of a message of `len` bytes; an empty one takes one, too.
    fn packets(&self, len: u32) -> u32 {
        len.saturating_sub(1)
            .wrapping_shr(u32::from(self.mtu_shift))
            .saturating_add(1)
    }

    /// Where packet `k` of a message of `len` bytes begins, and how much it carries.
    fn span(&self, k: u32, len: u32) -> (u32, u32) {
        let offset = k.saturating_mul(self.mtu()).min(len);
        (offset, len.saturating_sub(offset).min(self.mtu()))
    }

    /// Sends a packet to the peer on the path in use, after `fill` has put into it what goes beyond
    /// the headers that all have.
    fn send(
        &self,
        host: &mut impl Host,
        opcode: Opcode,
        psn: Psn,
        payload: KVec<u8>,
        fill: impl FnOnce(&mut Packet),
    ) {
        let Some(path) = self.paths.active else {
            return;
        };
        let (base, lmc) = host.port_lid(path.port);
        let mut packet = Packet {
            lrh: Lrh {
                vl: 0,
                sl: path.sl,
                dlid: path.dlid,
                slid: path::own_lid(base, lmc, &path),
            },
            grh: path.grh,
            bth: Bth {
                opcode,
                solicited: false,
                mig_req: self.paths.mig == MigState::Migrated,
                pkey: host.pkey(path.port, path.pkey_index),
                dest_qp: self.dest_qpn,
                ack_req: false,
                psn: psn.get(),
            },
            deth: None,
            reth: None,
            aeth: None,
            imm: None,
            invalidate: None,
            payload,
        };
        fill(&mut packet);
        host.transmit(path.port, packet);
    }
}
