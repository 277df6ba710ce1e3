// SPDX-License-Identifier: GPL-2.0-only

//! What is done for a connection when something may have changed.
//!
//! [`Service::attend`] asks the HCA how the QP is, reads the states of the ports, and does what follows.
//! It may be called at any time and as often as one likes: what makes it do something is how things
//! are, not who called. Events that say that something has happened can so be late, doubled or missing.
//!
//! Locks: the mutex of the connection; see `conn.rs`.

use super::cm;
use super::conn::{Connection, Inner, Side};
use super::device::Device;
use super::follow::Follow;
use super::inbox::Message;
use super::lap::is_served;
use super::params;
use super::qp::QpRef;
use super::rearm::Scene;
use super::service::Service;
use super::stats;
use crate::apm::path::Disjoint;
use crate::apm::rearm;
use crate::apm::state::{Action, Event, PathMigState, State};
use crate::apm::stats::Stat;
use crate::apm::wishes::{View, Wish};
use crate::wire::cm::lap::Kind;
use kernel::sync::Arc;

/// How soon a connection that is being set up is looked at again, in milliseconds.
const NEW_MS: u64 = 500;

impl Service {
    /// Has a connection attended to soon. Any context but a hard interrupt.
    pub(crate) fn wake(&self, conn: &Arc<Connection>) {
        // Queued already is as good.
        let _ = self.queue.enqueue(conn.clone());
    }

    /// Has all connections of a device attended to soon: a port or the subnet has changed.
    pub(crate) fn kick(&self, device: &Device) {
        self.table.for_each(|conn| {
            if conn.device() == device.raw() {
                conn.note(|news| news.kick = true);
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
        let news = conn.take_news();
        let (mut back, mut standby) = (None, None);
        // SAFETY: Inside the device's gate.
        let qp = unsafe { QpRef::find(device.raw(), inner.qpn) };
        if let Some(qp) = &qp {
            let mut scene = Scene {
                device: &device,
                conn,
                qp,
                connected: false,
            };
            let sampled = look(&scene, &mut inner, news.path_mig);
            scene.connected = sampled.is_some();
            if news.path_mig_err {
                happen(&mut inner, qp, Event::PathMigErr);
            }
            if scene.connected && params::proactive() && on_dead_port(&device, &inner) {
                happen(&mut inner, qp, Event::Force);
            }
            self.after_look(&scene, &mut inner, sampled);
            for message in news.messages() {
                self.message(&scene, &mut inner, message);
            }
            if news.kick {
                self.rearm(&scene, &mut inner, rearm::Event::Kick);
            }
            self.search_again(&scene, &mut inner);
            self.judge(&scene, &mut inner);
            // A LAP may have forced it.
            self.after_look(&scene, &mut inner, None);
            standby = self.wishes(&scene, &mut inner);
            self.rearm(&scene, &mut inner, rearm::Event::Tick);
            // That may have asked the QP, and found a migration.
            self.after_look(&scene, &mut inner, None);
            back = self.failback(&scene, &mut inner, news.failback);
        }
        let follow = self.follow(&device, conn, &mut inner);
        let rearm = inner.rearm.as_ref().and_then(|rearm| rearm.deadline());
        // Nobody says when the ULP is through with setting up.
        let is_starting = inner.is_new && inner.rearm.is_some() && !inner.is_closed();
        let new = is_starting.then(|| self.pacer.now().saturating_add(NEW_MS));
        let due = [follow, rearm, back, standby, new];
        let due = due.into_iter().flatten().min();
        self.pacer.set(&self.queue, conn, &mut inner, due);
    }

    /// Tells the machine that arms again what was seen of the QP.
    pub(super) fn after_look(
        &self,
        scene: &Scene<'_>,
        inner: &mut Inner,
        sampled: Option<PathMigState>,
    ) {
        if inner.is_closed() {
            // The machine has nothing more to do; its memory goes with the connection.
            return self.rearm(scene, inner, rearm::Event::Close);
        }
        // SAFETY: The mutex is held and the connection not dead.
        if inner.is_new && sampled.is_some() && unsafe { cm::is_established(scene.conn.id()) } {
            inner.is_new = false;
            // What was not chosen here is as good as it gets.
            let disjoint = inner.disjoint.unwrap_or(Disjoint::Ports);
            let loaded = inner
                .alternate
                .filter(|_| inner.state().may_migrate())
                .map(|alternate| (alternate.key(), disjoint));
            self.rearm(scene, inner, rearm::Event::Established(loaded));
            let may_pass = matches!(inner.state(), State::Unprotected(reason) if reason.may_pass());
            if may_pass && params::rearm() {
                self.rearm(scene, inner, rearm::Event::Seek);
            }
        }
        if core::mem::take(&mut inner.moved) {
            let told = !core::mem::take(&mut inner.untold);
            inner.nudge = None;
            inner.searching = false;
            inner.seek = false;
            self.rearm(scene, inner, rearm::Event::Migrated { told });
        }
        if core::mem::take(&mut inner.seek) && params::rearm() {
            self.rearm(scene, inner, rearm::Event::Seek);
        }
        if let Some(mig) = sampled {
            self.rearm(scene, inner, rearm::Event::Sampled(mig));
        }
        if inner.nudge.is_some_and(|seq| self.is_acked(scene, seq)) {
            inner.nudge = None;
            self.rearm(scene, inner, rearm::Event::Nudged);
        }
    }

    /// Does what is to be done about an alternate whose local port is down, or when a port is back; when to
    /// come back.
    fn wishes(&self, scene: &Scene<'_>, inner: &mut Inner) -> Option<u64> {
        if !params::rearm() || !is_served(inner) {
            return None;
        }
        let alternate = inner.alternate.filter(|_| inner.state().may_migrate());
        let view = View {
            active: scene.conn.side == Side::Active,
            used: inner.path.port,
            alternate: alternate.map(|path| path.port),
            up: scene.device.active_ports(),
        };
        let (wish, due) = inner.wishes.look(&view, self.pacer.now());
        match wish {
            None => {}
            Some(Wish::Seek) => self.rearm(scene, inner, rearm::Event::Seek),
            Some(Wish::DeadStandby) => {
                let path = alternate.unwrap_or(inner.path);
                self.wish(scene, inner, &path, Kind::DeadStandby);
            }
            Some(Wish::PortBack) => {
                let path = inner.path;
                self.wish(scene, inner, &path, Kind::PortBack);
            }
        }
        due
    }

    fn message(&self, scene: &Scene<'_>, inner: &mut Inner, message: &Message) {
        let event = match message {
            Message::Lap(arrived) => return self.lap(scene, inner, arrived),
            Message::Rep => rearm::Event::RepAgain,
            Message::Apr(apr) => rearm::Event::Apr {
                tid: apr.tid,
                status: apr.status,
            },
            Message::Mra(mra) => rearm::Event::Mra {
                tid: mra.tid,
                service_timeout: mra.service_timeout,
            },
        };
        self.rearm(scene, inner, event);
    }
}

/// Asks the HCA for the state of path migration, and lets what it says happen.
fn look(scene: &Scene<'_>, inner: &mut Inner, migrated: bool) -> Option<PathMigState> {
    let now = scene.qp.path_mig_state(inner.peer_qpn)?;
    if inner.state().keeps_alternate() {
        // A PATH_MIG that the QP's state contradicts is one of an earlier QP of this number.
        let event = if migrated && now == PathMigState::Migrated {
            Event::PathMig
        } else {
            Event::Sampled(now)
        };
        happen(inner, scene.qp, event);
    }
    Some(now)
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
pub(super) fn happen(inner: &mut Inner, qp: &QpRef, event: Event) {
    let mut next = Some(event);
    let mut asked = false;
    while let Some(event) = next.take() {
        let actions = inner.apply(event);
        if actions.has(Action::FollowCm) {
            inner.follow = Follow::Wanted;
            inner.moved = true;
        }
        inner.untold |= actions.has(Action::TellPeer);
        inner.seek |= actions.has(Action::Seek);
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
