// SPDX-License-Identifier: GPL-2.0-only

//! Returning to the path that a connection began with: carries out what `rust/apm/failback.rs` decides.
//!
//! Locks: the mutex of the connection; see `conn.rs`.

use super::attend::happen;
use super::conn::{Inner, Side};
use super::hook::InFlight;
use super::params;
use super::rearm::Scene;
use super::service::Service;
use super::stats;
use crate::apm::failback::{Failback, Seen};
use crate::apm::state::{Event, State};
use crate::apm::stats::Stat;

impl Service {
    /// Takes note of how a connection is and, if it is time, has it return; when to come back. `asked`: an
    /// operator wants it to return.
    pub(super) fn failback(
        &self,
        scene: &Scene<'_>,
        inner: &mut Inner,
        asked: bool,
    ) -> Option<u64> {
        // If both sides returned, each would undo what the other one has done.
        if scene.conn.side == Side::Passive
            || inner.rearm.is_none()
            || inner.is_new
            || inner.is_closed()
        {
            return None;
        }
        let now = self.pacer.now();
        let (mode, hold) = (params::failback(), params::failback_hold_ms());
        let seen = Seen {
            in_use: inner.path.key(),
            armed_with: inner
                .alternate
                .filter(|a| inner.state() == State::Armed && scene.device.is_active(a.port))
                .map(|alternate| alternate.key()),
        };
        let mut failback = inner
            .failback
            .take()
            .unwrap_or_else(|| Failback::new(seen.in_use, now));
        failback.see(&seen, hold, now);
        let wanted = asked && failback.may_return(mode);
        if wanted || failback.is_due(mode, hold, now) {
            happen(inner, scene.qp, Event::Force);
            if inner.moved {
                stats::count(Stat::FailedBack);
                failback.returned(now);
                self.after_look(scene, inner, None);
            } else {
                // The HCA would not; the path has to prove itself anew.
                failback.trouble();
            }
        }
        let due = failback.deadline(mode, hold);
        inner.failback = Some(failback);
        due.map(|at| at.max(now.saturating_add(1)))
    }
}

/// Has the connections return that may; `false` where the module is starting or going.
#[no_mangle]
extern "C" fn ib_cm_apm_failback_now() -> bool {
    let inflight = InFlight::enter();
    let Some(service) = Service::get(&inflight) else {
        return false;
    };
    service.table.for_each(|conn| {
        conn.note(|news| news.failback = true);
        service.wake(conn);
    });
    true
}
