// SPDX-License-Identifier: GPL-2.0-only

//! Sending requests, from the cursor on.

use super::super::super::super::mem::KVec;
use super::super::super::host::{Host, SendOp, SendWqe, Status};
use super::super::super::packet::{Opcode, Position, Reth};
use super::super::{buffer, Rc, State, MAX_MESSAGE};
use super::WINDOW;

/// An ACK is asked for by one in so many packets at least.
const ASK_EVERY: u32 = 16;

/// Place of packet `k` out of `n`.
pub(in super::super) fn position(k: u32, n: u32) -> Position {
    match (k == 0, k.saturating_add(1) >= n) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

impl Rc {
    /// Sends what the window allows and sees to it that the ACK timer runs while anything is
    /// outstanding.
    pub(in super::super) fn pump(&mut self, host: &mut impl Host) {
        while self.may_send() && self.step(host) {}
        if !self.may_send() || self.req.outstanding() == 0 {
            self.req.ack_deadline = None;
        } else if self.req.ack_deadline.is_none() {
            self.req.ack_deadline = self
                .ack_interval()
                .map(|interval| host.now().saturating_add(interval));
        }
    }

    /// Sends the packet at the cursor; `false` where it has to wait.
    fn step(&mut self, host: &mut impl Host) -> bool {
        let index = self.req.cur;
        if self.req.stuck.is_some_and(|(i, _)| i == index) {
            return false;
        }
        let Some(wqe) = host.send_wqe(index) else {
            return false;
        };
        let fresh = index == self.req.high;
        if fresh && self.state != State::Rts {
            return false;
        }
        if wqe.fence && self.req.reads > 0 {
            return false;
        }
        if wqe.op == SendOp::Local {
            return self.step_local(fresh, host);
        }
        if self.req.outstanding() >= WINDOW {
            return false;
        }
        if wqe.len > MAX_MESSAGE {
            return self.give_up(Status::LocLen, host);
        }
        match wqe.op {
            SendOp::Read { va, rkey } => self.step_read(&wqe, va, rkey, host),
            _ => self.step_data(&wqe, host),
        }
    }

    /// A local operation is carried out when its turn to be sent comes, once.
    fn step_local(&mut self, fresh: bool, host: &mut impl Host) -> bool {
        let index = self.req.cur;
        if fresh {
            if let Err(status) = host.local_op(index) {
                return self.give_up(status, host);
            }
        }
        self.leave_request();
        self.settle(host);
        true
    }

    fn step_read(&mut self, wqe: &SendWqe, va: u64, rkey: u32, host: &mut impl Host) -> bool {
        if self.max_rd_atomic == 0 {
            return self.give_up(Status::LocQpOp, host);
        }
        if self.req.reads >= u32::from(self.max_rd_atomic) {
            return false;
        }
        // Where responses were lost, only what is missing is read again.
        let (offset, _) = self.span(self.req.cur_pkt, wqe.len);
        let reth = Reth {
            va: va.wrapping_add(u64::from(offset)),
            rkey,
            len: wqe.len.saturating_sub(offset),
        };
        self.send(
            host,
            Opcode::ReadRequest,
            self.req.cur_psn,
            KVec::new(),
            |p| p.reth = Some(reth),
        );
        let rest = self.packets(wqe.len).saturating_sub(self.req.cur_pkt);
        self.req.cur_psn = self.req.cur_psn.plus(rest);
        self.req.reads = self.req.reads.saturating_add(1);
        self.leave_request();
        true
    }

    fn step_data(&mut self, wqe: &SendWqe, host: &mut impl Host) -> bool {
        let k = self.req.cur_pkt;
        let n = self.packets(wqe.len);
        let at = position(k, n);
        let (offset, size) = self.span(k, wqe.len);

        if let Ok(mut payload) = buffer(size) {
            if size > 0 && host.gather(self.req.cur, offset, &mut payload).is_err() {
                return self.give_up(Status::LocProt, host);
            }
            let ask = self.asks_for_ack(at.is_last(), host);
            let opcode = match wqe.op {
                SendOp::Write { .. } | SendOp::WriteImm { .. } => Opcode::Write(at),
                _ => Opcode::Send(at),
            };
            self.send(host, opcode, self.req.cur_psn, payload, |p| {
                p.bth.ack_req = ask;
                p.bth.solicited = wqe.solicited && at.is_last();
                match wqe.op {
                    SendOp::Write { va, rkey } | SendOp::WriteImm { va, rkey, .. } => {
                        let len = wqe.len;
                        p.reth = at.is_first().then_some(Reth { va, rkey, len });
                    }
                    _ => {}
                }
                if at.is_last() {
                    match wqe.op {
                        SendOp::SendImm(imm) | SendOp::WriteImm { imm, .. } => p.imm = Some(imm),
                        SendOp::SendInvalidate(rkey) => p.invalidate = Some(rkey),
                        _ => {}
                    }
                }
            });
            self.req.unasked = if ask {
                0
            } else {
                self.req.unasked.saturating_add(1)
            };
        }

        self.req.cur_psn = self.req.cur_psn.plus(1);
        if at.is_last() {
            self.leave_request();
        } else {
            self.req.cur_pkt = k.saturating_add(1);
            self.mark_used(self.req.cur.wrapping_add(1));
        }
        true
    }

    /// The cursor moves on to the next request.
    fn leave_request(&mut self) {
        self.req.cur = self.req.cur.wrapping_add(1);
        self.req.cur_pkt = 0;
        self.mark_used(self.req.cur);
    }

    /// Requests before `high` have been begun now.
    fn mark_used(&mut self, high: u32) {
        if (high.wrapping_sub(self.req.high) as i32) > 0 {
            self.req.high = high;
        }
        if self.req.cur_psn.beyond(self.req.high_psn) > 0 {
            self.req.high_psn = self.req.cur_psn;
        }
    }

    /// Whether the packet at the cursor asks for an ACK. The last one of a message does, unless
    /// another message follows at once and can ask for both.
    fn asks_for_ack(&self, last: bool, host: &impl Host) -> bool {
        self.req.unasked.saturating_add(1) >= ASK_EVERY || last && !self.follows(host)
    }

    /// Whether the request after the one at the cursor is sure to be sent next.
    fn follows(&self, host: &impl Host) -> bool {
        let next = self.req.cur.wrapping_add(1);
        let begun = (self.req.high.wrapping_sub(next) as i32) > 0;
        (begun || self.state == State::Rts)
            && self.req.outstanding().saturating_add(1) < WINDOW
            && self.req.stuck.is_none()
            && host.send_wqe(next).is_some_and(|w| {
                !matches!(w.op, SendOp::Local | SendOp::Read { .. })
                    && w.len <= MAX_MESSAGE
                    && !(w.fence && self.req.reads > 0)
            })
    }

    /// The request at the cursor cannot be sent. It ends with `status` when its turn comes; what
    /// is outstanding before it is sent again, since nothing that could ask for an ACK follows.
    fn give_up(&mut self, status: Status, host: &mut impl Host) -> bool {
        self.req.stuck = Some((self.req.cur, status));
        self.mark_used(self.req.cur.wrapping_add(1));
        let earlier = self.req.passed();
        if earlier && self.req.outstanding() > 0 {
            self.req.rewind();
        }
        self.settle(host);
        earlier
    }
}
