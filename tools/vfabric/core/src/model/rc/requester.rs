// SPDX-License-Identifier: GPL-2.0-only

//! The sending side: what has been sent and what has been acknowledged (IBA 9.7.2 and 9.7.5).
//!
//! Requests are numbered by the host, packets by PSN. Two places in that sequence are kept: the
//! oldest packet not acknowledged, and the next one to send (the cursor). What lies between is
//! outstanding, a window of it at most; going back is putting the cursor on the former.
//!
//! A READ owns as many PSNs as it has response packets and is acknowledged by each of them.

use super::super::host::{Host, MigrationCause, QpEvent, SendOp, SendWqe, Status};
use super::{MigState, Psn, Rc, State};

mod reply;
mod transmit;

pub(super) use transmit::position;

/// Packets outstanding at most; a READ may go beyond with its responses.
const WINDOW: u32 = 64;

/// State of the sending side.
#[derive(Debug)]
pub(super) struct Requester {
    /// The oldest request that has not ended, and the PSN of its first packet.
    una: u32,
    una_psn: Psn,
    /// Packets of it that are acknowledged.
    acked: u32,
    /// The cursor: a request, a packet of it, the PSN of that.
    cur: u32,
    cur_pkt: u32,
    cur_psn: Psn,
    /// The first request not begun and the first PSN not used.
    high: u32,
    high_psn: Psn,
    /// READs between the oldest request and the cursor.
    reads: u32,
    /// A request that failed before it left: it ends so once all before it have.
    stuck: Option<(u32, Status)>,
    /// The oldest packet was asked for already, by a NAK or by a response gone missing: what else
    /// says so is about the same loss.
    gap: bool,
    /// Times that the oldest packet was sent again, and was answered by an RNR NAK.
    tries: u8,
    rnr_tries: u8,
    /// Packets since the last that asked for an ACK.
    unasked: u32,
    /// A migration wants everything outstanding to be sent again.
    resend: bool,
    /// SQD: requests begun are still outstanding.
    pub(super) draining: bool,
    /// When the ACK timer runs out.
    pub(super) ack_deadline: Option<u64>,
    /// Nothing is sent until then: the peer had no receive.
    pub(super) rnr_until: Option<u64>,
}

impl Requester {
    pub(super) const fn new() -> Self {
        let zero = Psn::new(0);
        Requester {
            una: 0,
            una_psn: zero,
            acked: 0,
            cur: 0,
            cur_pkt: 0,
            cur_psn: zero,
            high: 0,
            high_psn: zero,
            reads: 0,
            stuck: None,
            gap: false,
            tries: 0,
            rnr_tries: 0,
            unasked: 0,
            resend: false,
            draining: false,
            ack_deadline: None,
            rnr_until: None,
        }
    }

    /// Sets the PSN of the first packet; before anything was sent.
    pub(super) fn start_at(&mut self, psn: Psn) {
        self.una_psn = psn;
        self.cur_psn = psn;
        self.high_psn = psn;
    }

    /// PSN of the next packet that is not a repetition.
    pub(super) fn next_psn(&self) -> Psn {
        self.high_psn
    }

    /// PSN of the oldest packet that is not acknowledged.
    fn oldest(&self) -> Psn {
        self.una_psn.plus(self.acked)
    }

    /// PSNs between the oldest packet and the cursor.
    fn outstanding(&self) -> u32 {
        self.cur_psn.beyond(self.oldest()).unsigned_abs()
    }

    /// Whether `psn` has been sent and is not acknowledged.
    fn in_flight(&self, psn: Psn) -> bool {
        psn.beyond(self.oldest()) >= 0 && psn.beyond(self.high_psn) < 0
    }

    /// Goes back to the oldest packet.
    fn rewind(&mut self) {
        self.cur = self.una;
        self.cur_pkt = self.acked;
        self.cur_psn = self.oldest();
        self.reads = 0;
        self.unasked = 0;
        self.ack_deadline = None;
    }

    /// Whether the cursor is past the oldest request.
    fn passed(&self) -> bool {
        (self.cur.wrapping_sub(self.una) as i32) > 0
    }

    /// Something was acknowledged: all retries are to be had again, and the timer starts anew.
    fn progress(&mut self) {
        self.tries = 0;
        self.rnr_tries = 0;
        self.gap = false;
        self.ack_deadline = None;
        // An answer may overtake the repetition of what it answers.
        let behind = (self.una.wrapping_sub(self.cur) as i32) > 0;
        if behind || (self.cur == self.una && self.cur_pkt < self.acked) {
            self.cur = self.una;
            self.cur_pkt = self.acked;
            self.cur_psn = self.oldest();
        }
    }

    /// The oldest request has ended and took `packets` PSNs.
    fn advance(&mut self, packets: u32) {
        self.una = self.una.wrapping_add(1);
        self.una_psn = self.una_psn.plus(packets);
        self.acked = 0;
    }

    /// After a migration retries start anew.
    pub(super) fn path_changed(&mut self, resend: bool) {
        self.tries = 0;
        self.resend = resend;
    }

    /// Whether a migration wants everything to be sent again; asks once.
    pub(super) fn take_resend(&mut self) -> bool {
        core::mem::take(&mut self.resend)
    }

    /// Stops all timers: ERR.
    pub(super) fn stop(&mut self) {
        self.ack_deadline = None;
        self.rnr_until = None;
        self.draining = false;
        self.resend = false;
        self.stuck = None;
    }
}

impl Rc {
    /// The request at `index`, if it has been begun and not given up.
    fn begun(&self, index: u32, host: &impl Host) -> Option<SendWqe> {
        let given_up = self.req.stuck.is_some_and(|(i, _)| i == index);
        if index == self.req.high || given_up {
            return None;
        }
        host.send_wqe(index)
    }

    /// Ends what can end without the peer: local operations that have become the oldest, a request
    /// that could not be sent. Says when SQD has drained.
    pub(super) fn settle(&mut self, host: &mut impl Host) {
        while let Some(wqe) = self.begun(self.req.una, host) {
            if wqe.op != SendOp::Local {
                break;
            }
            host.send_done(self.req.una, Status::Success, wqe.len);
            self.req.advance(0);
            self.req.progress();
        }
        if let Some((index, status)) = self.req.stuck {
            if index == self.req.una {
                self.fail(status, host);
            }
        }
        if self.req.draining && self.req.una == self.req.high {
            self.req.draining = false;
            if self.sqd_notify {
                host.event(QpEvent::SqDrained);
            }
        }
    }

    /// The oldest request ends with an error, and with it the connection.
    fn fail(&mut self, status: Status, host: &mut impl Host) {
        if host.send_wqe(self.req.una).is_some() {
            host.send_done(self.req.una, status, 0);
            self.req.advance(0);
        }
        self.enter_err(host);
    }

    /// Ends all that is posted.
    pub(super) fn flush_sends(&mut self, host: &mut impl Host) {
        while host.send_wqe(self.req.una).is_some() {
            host.send_done(self.req.una, Status::Flush, 0);
            self.req.advance(0);
        }
        self.req.high = self.req.una;
        self.req.rewind();
    }

    /// Sends everything outstanding again.
    pub(super) fn resend(&mut self, host: &mut impl Host) {
        self.req.rewind();
        self.req.gap = false;
        self.pump(host);
    }

    /// The ACK timer has run out.
    pub(super) fn ack_timeout(&mut self, host: &mut impl Host) {
        self.req.ack_deadline = None;
        self.retry(host);
        self.req.gap = false;
    }

    /// Sends everything outstanding again, if there is a try left.
    fn retry(&mut self, host: &mut impl Host) {
        if self.req.tries >= self.retry_cnt {
            self.exhausted(host);
            return;
        }
        self.req.tries = self.req.tries.saturating_add(1);
        self.counters.retries = self.counters.retries.saturating_add(1);
        self.req.rewind();
        self.pump(host);
    }

    /// The last try has failed: the alternate path is next, if there is one.
    fn exhausted(&mut self, host: &mut impl Host) {
        if self.paths.mig == MigState::Armed {
            if self.is_usable(self.paths.alt, host) {
                self.migrate(MigrationCause::Exhaustion, host);
                if self.req.take_resend() {
                    self.resend(host);
                }
                return;
            }
            host.event(QpEvent::PathMigErr);
        }
        self.fail(Status::RetryExceeded, host);
    }

    /// How long the ACK timer runs, in nanoseconds.
    fn ack_interval(&self) -> Option<u64> {
        let timeout = self.paths.active.map_or(0, |p| p.timeout);
        let stretch = u64::from(self.quirks.timer_stretch.clamp(1, 4));
        (timeout != 0).then(|| {
            4096u64
                .wrapping_shl(u32::from(timeout))
                .saturating_mul(stretch)
        })
    }

    /// Whether requests are sent; in SQD those only that were begun.
    fn may_send(&self) -> bool {
        matches!(self.state, State::Rts | State::Sqd) && self.req.rnr_until.is_none()
    }
}
