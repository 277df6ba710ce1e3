// SPDX-License-Identifier: GPL-2.0-only

//! The verbs `modify_qp` and `query_qp`.

use super::super::host::{Host, MigrationCause, QpEvent};
use super::{Attributes, Error, MigState, Modify, Path, Psn, Rc, State};

/// Whether IBA figure 124 has this transition.
fn legal(from: State, to: State) -> bool {
    match to {
        State::Reset | State::Err => true,
        State::Init => matches!(from, State::Reset | State::Init),
        State::Rtr => matches!(from, State::Init | State::Rtr),
        State::Rts => matches!(from, State::Rtr | State::Rts | State::Sqd),
        State::Sqd => matches!(from, State::Rts | State::Sqd),
        State::Sqe => false,
    }
}

fn path_in_range(p: &Path) -> bool {
    p.port != 0 && p.timeout < 32
}

impl Modify {
    fn in_range(&self) -> bool {
        self.path.as_ref().is_none_or(path_in_range)
            && self.alt_path.as_ref().is_none_or(path_in_range)
            && self.timeout.is_none_or(|t| t < 32)
            && self.dest_qpn.is_none_or(|q| q < 1 << 24)
            && self
                .mtu
                .is_none_or(|m| m.is_power_of_two() && (256..=4096).contains(&m))
            && self.retry_cnt.is_none_or(|n| n < 8)
            && self.rnr_retry.is_none_or(|n| n < 8)
            && self.min_rnr_timer.is_none_or(|n| n < 32)
    }
}

fn set<T>(to: &mut T, from: Option<T>) {
    if let Some(v) = from {
        *to = v;
    }
}

impl Rc {
    /// Changes attributes: all of them or, with an error, none.
    ///
    /// The move to ERR flushes both queues before it returns; ARMED to MIGRATED moves the QP to its
    /// alternate path and sends again what is outstanding.
    pub fn modify(&mut self, m: &Modify, host: &mut impl Host) -> Result<(), Error> {
        let next = m.state.unwrap_or(self.state);
        let migrates = self.check(m, next)?;
        if migrates {
            let alt = m.alt_path.or(self.paths.alt);
            if !self.is_usable(alt, host) {
                host.event(QpEvent::PathMigErr);
                return Err(Error::AlternateUnusable);
            }
        }
        if next == State::Reset {
            let quirks = self.quirks;
            *self = Rc::new(self.qpn);
            self.quirks = quirks;
            return Ok(());
        }

        self.apply(m);
        if migrates {
            self.migrate(MigrationCause::Command, host);
        }
        match next {
            State::Err => self.enter_err(host),
            State::Sqd => {
                if self.state != State::Sqd {
                    self.req.draining = true;
                }
                self.state = next;
                self.settle(host);
            }
            _ => {
                self.req.draining = false;
                self.state = next;
            }
        }
        if self.req.take_resend() && self.is_connected() {
            self.resend(host);
        }
        self.pump(host);
        Ok(())
    }

    /// Whether `m` may be carried out; `true` where that makes the QP migrate.
    fn check(&self, m: &Modify, next: State) -> Result<bool, Error> {
        if !m.in_range() {
            return Err(Error::Invalid);
        }
        if !legal(self.state, next) {
            return Err(Error::State);
        }
        if matches!(next, State::Reset | State::Err) {
            // The attributes of a QP that is given up don't matter, but it cannot migrate.
            return match m.mig {
                Some(_) => Err(Error::State),
                None => Ok(false),
            };
        }
        let before_rtr = matches!(self.state, State::Reset | State::Init);
        let before_rts = before_rtr || self.state == State::Rtr;
        if (m.rq_psn.is_some() || m.mtu.is_some()) && !before_rtr {
            return Err(Error::State);
        }
        if m.sq_psn.is_some() && !before_rts {
            return Err(Error::State);
        }
        let connected = matches!(next, State::Rtr | State::Rts | State::Sqd);
        if connected && m.path.or(self.paths.active).is_none() {
            return Err(Error::NoPath);
        }
        match (m.mig, self.paths.mig) {
            (None, _) => Ok(false),
            (Some(MigState::Armed), _) => Err(Error::MigState),
            (Some(MigState::Rearm), _) => match m.alt_path.or(self.paths.alt) {
                Some(_) => Ok(false),
                None => Err(Error::NoAlternate),
            },
            (Some(MigState::Migrated), MigState::Armed) => Ok(true),
            // What it is from the start; a driver may be told so while it connects.
            (Some(MigState::Migrated), MigState::Migrated) if before_rts => Ok(false),
            (Some(MigState::Migrated), _) => Err(Error::MigState),
        }
    }

    fn apply(&mut self, m: &Modify) {
        if m.path.is_some() {
            self.paths.active = m.path;
        }
        if let (Some(t), Some(path)) = (m.timeout, self.paths.active.as_mut()) {
            path.timeout = t;
        }
        if m.alt_path.is_some() {
            self.paths.alt = m.alt_path;
            self.paths.complained = false;
        }
        if m.mig == Some(MigState::Rearm) {
            self.paths.mig = MigState::Rearm;
        }
        set(&mut self.dest_qpn, m.dest_qpn);
        if let Some(psn) = m.sq_psn {
            self.req.start_at(Psn::new(psn));
        }
        if let Some(psn) = m.rq_psn {
            self.rsp.start_at(Psn::new(psn));
        }
        if let Some(mtu) = m.mtu {
            // At most 12: the range was checked.
            self.mtu_shift = mtu.trailing_zeros() as u8;
        }
        set(&mut self.retry_cnt, m.retry_cnt);
        set(&mut self.rnr_retry, m.rnr_retry);
        set(&mut self.min_rnr_timer, m.min_rnr_timer);
        set(&mut self.max_rd_atomic, m.max_rd_atomic);
        set(&mut self.max_dest_rd_atomic, m.max_dest_rd_atomic);
        set(&mut self.sqd_notify, m.sqd_notify);
    }

    /// The path in use, whatever [`Rc::query`] is made to say.
    pub fn path_in_use(&self) -> Option<Path> {
        self.paths.active
    }

    /// The attributes in force.
    pub fn query(&self) -> Attributes {
        let (path, alt_path) = self.paths.reported(self.quirks.query_swaps_paths);
        Attributes {
            state: self.state,
            sq_draining: self.req.draining,
            mig: self.paths.mig,
            path,
            alt_path,
            dest_qpn: self.dest_qpn,
            sq_psn: self.req.next_psn().get(),
            rq_psn: self.rsp.expected().get(),
            // At most 4096.
            mtu: self.mtu() as u16,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            min_rnr_timer: self.min_rnr_timer,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
        }
    }

    /// The path in use and the alternate, whatever the quirks let [`Rc::query`] say.
    pub fn paths(&self) -> (Option<Path>, Option<Path>) {
        (self.paths.active, self.paths.alt)
    }
}
