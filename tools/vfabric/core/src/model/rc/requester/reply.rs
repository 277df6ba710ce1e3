// SPDX-License-Identifier: GPL-2.0-only

//! What comes back to the requester: ACK, NAK, RNR NAK, READ responses.

use super::super::super::host::{Host, SendOp, Status};
use super::super::super::packet::{NakCode, Packet, Syndrome};
use super::super::{Psn, Rc};

/// RNR NAK timer codes in units of 10 us (IBA table 45).
const RNR_DELAY: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Delay of RNR timer `code` in nanoseconds.
fn rnr_delay(code: u8) -> u64 {
    let tens = RNR_DELAY.get(usize::from(code)).copied();
    u64::from(tens.unwrap_or(65536)).saturating_mul(10_000)
}

impl Rc {
    /// An Acknowledge packet came in.
    pub(in super::super) fn acknowledged(&mut self, packet: &Packet, host: &mut impl Host) {
        let psn = Psn::new(packet.bth.psn);
        let Some(aeth) = packet.aeth else {
            return;
        };
        if !self.req.in_flight(psn) {
            return;
        }
        match aeth.syndrome {
            Syndrome::Ack => {
                if !self.complete_through(psn, host) {
                    self.response_lost(host);
                }
            }
            // While it waits it knows already that nothing was taken.
            _ if self.req.rnr_until.is_some() => return,
            // A NAK acknowledges all that comes before it.
            syndrome => {
                if psn != self.req.oldest() && !self.complete_through(psn.prev(), host) {
                    self.response_lost(host);
                } else if self.is_connected() {
                    self.refused(syndrome, host);
                }
            }
        }
        if self.is_connected() {
            self.pump(host);
        }
    }

    /// The oldest packet was not accepted.
    fn refused(&mut self, syndrome: Syndrome, host: &mut impl Host) {
        match syndrome {
            Syndrome::Ack => {}
            Syndrome::RnrNak(code) => {
                self.counters.rnr_naks = self.counters.rnr_naks.saturating_add(1);
                if self.rnr_retry < 7 {
                    if self.req.rnr_tries >= self.rnr_retry {
                        self.fail(Status::RnrRetryExceeded, host);
                        return;
                    }
                    self.req.rnr_tries = self.req.rnr_tries.saturating_add(1);
                }
                self.req.rewind();
                self.req.rnr_until = Some(host.now().saturating_add(rnr_delay(code)));
            }
            Syndrome::Nak(NakCode::PsnSequence) => self.response_lost(host),
            Syndrome::Nak(NakCode::InvalidRequest) => self.fail(Status::RemInvReq, host),
            Syndrome::Nak(NakCode::RemoteAccess) => self.fail(Status::RemAccess, host),
            Syndrome::Nak(NakCode::RemoteOperational) => self.fail(Status::RemOp, host),
        }
    }

    /// The oldest packet or its response did not arrive, as something that came later tells. Only
    /// the first to tell counts.
    fn response_lost(&mut self, host: &mut impl Host) {
        if !self.req.gap && self.req.rnr_until.is_none() {
            self.req.gap = true;
            self.retry(host);
        }
    }

    /// Ends all requests that `psn` acknowledges. `false` where a READ stands in the way, which
    /// only its responses can end.
    fn complete_through(&mut self, psn: Psn, host: &mut impl Host) -> bool {
        let mut free = true;
        let mut moved = false;
        while let Some(wqe) = self.begun(self.req.una, host) {
            if wqe.op == SendOp::Local {
                host.send_done(self.req.una, Status::Success, wqe.len);
                self.req.advance(0);
                moved = true;
                continue;
            }
            if psn.beyond(self.req.oldest()) < 0 {
                break;
            }
            if matches!(wqe.op, SendOp::Read { .. }) {
                free = false;
                break;
            }
            moved = true;
            let n = self.packets(wqe.len);
            let got = psn
                .beyond(self.req.una_psn)
                .unsigned_abs()
                .saturating_add(1);
            if got < n {
                self.req.acked = got;
                break;
            }
            host.send_done(self.req.una, Status::Success, wqe.len);
            self.req.advance(n);
        }
        if moved {
            self.req.progress();
        }
        self.settle(host);
        free
    }

    /// A packet of READ data came in.
    pub(in super::super) fn read_response(&mut self, packet: &Packet, host: &mut impl Host) {
        let psn = Psn::new(packet.bth.psn);
        if !self.req.in_flight(psn) {
            return;
        }
        // It acknowledges what was asked for before.
        if psn != self.req.oldest() && !self.complete_through(psn.prev(), host) {
            self.response_lost(host);
            return;
        }
        let expected = match self.begun(self.req.una, host) {
            Some(wqe) if matches!(wqe.op, SendOp::Read { .. }) => wqe,
            _ => return,
        };
        let (offset, size) = self.span(self.req.acked, expected.len);
        if psn != self.req.oldest() || packet.payload.len() != size as usize {
            return;
        }
        if size > 0 && host.scatter(self.req.una, offset, &packet.payload).is_err() {
            self.fail(Status::LocProt, host);
            return;
        }
        self.req.acked = self.req.acked.saturating_add(1);
        let n = self.packets(expected.len);
        if self.req.acked >= n {
            // None is counted where the cursor has gone back.
            self.req.reads = self.req.reads.saturating_sub(1);
            host.send_done(self.req.una, Status::Success, expected.len);
            self.req.advance(n);
        }
        self.req.progress();
        self.settle(host);
        self.pump(host);
    }
}

#[cfg(test)]
mod tests {
    use super::rnr_delay;

    #[test]
    fn rnr_timer_codes_are_those_of_table_45() {
        assert_eq!(rnr_delay(0), 655_360_000);
        assert_eq!(rnr_delay(1), 10_000);
        assert_eq!(rnr_delay(14), 1_280_000);
        assert_eq!(rnr_delay(31), 491_520_000);
        assert_eq!(rnr_delay(200), 655_360_000);
    }
}
