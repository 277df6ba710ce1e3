// SPDX-License-Identifier: GPL-2.0-only

//! What is done for a connection when something may have changed.
//!
//! [`Service::attend`] asks the HCA how the QP is, reads the states of the ports, and does what follows.
//! It may be called at any time and as often as one likes: what makes it do something is how things
//! are, not who called. Events that say that something has happened can so be late, doubled or missing.
//!
//! Locks: the mutex of the connection; see `conn.rs`.

use super::conn::{Connection, Inner};
use super::device::Device;
use super::follow::Follow;
use super::params;
use super::qp::QpRef;
use super::service::Service;
use super::stats;
use crate::apm::state::{Action, Event, PathMigState};
use crate::apm::stats::Stat;
use kernel::sync::Arc;

impl Service {
    /// Has a connection attended to soon. Any context but a hard interrupt.
    pub(crate) fn wake(&self, conn: &Arc<Connection>) {
        // Queued already is as good.
        let _ = self.queue.enqueue(conn.clone());
    }

    /// Has all connections of a device attended to soon.
    pub(crate) fn wake_all(&self, device: &Device) {
        self.table.for_each(|conn| {
            if conn.device() == device.raw() {
                self.wake(conn);
            }
        });
    }

    /// Looks at a connection and does what follows. Process context, no lock held.
    pub(crate) fn attend(&self, conn: &Arc<Connection>) {
        let Some(device) = self.devices.enter(conn.device()) else {
            return;
        };
        let mut inner = conn.lock();
        if inner.dead || inner.qpn == 0 {
            return;
        }
        let migrated = conn.take_path_mig();
        // SAFETY: Inside the device's gate.
        if let Some(qp) = unsafe { QpRef::find(device.raw(), inner.qpn) } {
            if inner.state().keeps_alternate() {
                sample(&mut inner, &qp, migrated);
            }
            if params::proactive() && on_dead_port(&device, &inner) {
                happen(&mut inner, &qp, Event::Force);
            }
        }
        let due = self.follow(&device, conn, &mut inner);
        self.pacer.set(&self.queue, conn, &mut inner, due);
    }
}

/// Asks the HCA for the state of path migration.
fn sample(inner: &mut Inner, qp: &QpRef, migrated: bool) {
    let Some(now) = qp.path_mig_state(inner.peer_qpn) else {
        return;
    };
    // A PATH_MIG that the QP's state contradicts is one of an earlier QP of this number.
    let event = if migrated && now == PathMigState::Migrated {
        Event::PathMig
    } else {
        Event::Sampled(now)
    };
    happen(inner, qp, event);
}

/// Whether the path in use leaves by a port that is down, and the alternate does not. The HCA would
/// migrate as well, but only when its retries have come to nothing, and not at all where nothing is
/// being sent.
fn on_dead_port(device: &Device, inner: &Inner) -> bool {
    inner.alternate.is_some_and(|alternate| {
        !device.is_active(inner.path.port) && device.is_active(alternate.port)
    })
}

/// Lets something happen to a connection, and does what follows at once. What takes longer is noted.
fn happen(inner: &mut Inner, qp: &QpRef, event: Event) {
    let mut next = Some(event);
    let mut asked = false;
    while let Some(event) = next.take() {
        let actions = inner.apply(event);
        if actions.has(Action::FollowCm) {
            inner.follow = Follow::Wanted;
        }
        if actions.has(Action::Force) {
            next = Some(match qp.migrate() {
                Ok(()) => {
                    stats::count(Stat::Forced);
                    Event::Forced
                }
                // It has moved by itself, or the ULP is ending it.
                Err(_) => {
                    stats::count(Stat::ForceFailed);
                    Event::ForceFailed
                }
            });
        } else if actions.has(Action::Sample) && !asked {
            asked = true;
            next = qp.path_mig_state(inner.peer_qpn).map(Event::Sampled);
        }
    }
}
