// SPDX-License-Identifier: GPL-2.0-only

//! Arming again: carries out what the active side's machine (`rust/apm/rearm`) decides.
//!
//! Locks: the mutex of the connection; see `conn.rs`. Nothing here waits for subnet administration or
//! for the peer: the connection is woken when there is something new.

use super::attend::happen;
use super::bindings as rdma;
use super::conn::{Connection, Inner, Side};
use super::device::Device;
use super::lookup::Refused;
use super::params;
use super::path::Path;
use super::qp::QpRef;
use super::resolve::Standbys;
use super::service::Service;
use super::stats;
use crate::apm::path::Alternate;
use crate::apm::rearm::{Action, Event, Rearm, Times};
use crate::apm::reason::Reason;
use crate::apm::state;
use crate::apm::stats::Stat;
use crate::apm::timers::{exhaustion_ms, qp_timeout, Timers};
use crate::wire::cm::lap::{Kind, Lap};
use crate::wire::cm::Ids;
use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::atomic::Acquire;
use kernel::sync::Arc;

/// Where an HCA never gives a packet up, a peer is taken to know of a migration after so long.
const NEVER_MS: u64 = 10_000;

/// A number for what is to be spread evenly.
fn jitter() -> u32 {
    // SAFETY: No preconditions.
    unsafe { bindings::get_random_u32() }
}

/// What a REQ says about time, from one end.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Within what time the other end's CM answers: 4.096 us x 2^n.
    pub(crate) remote_response: u8,
    /// Within what time this end's does.
    pub(crate) local_response: u8,
    /// How often a message of the CM is repeated.
    pub(crate) cm_retries: u8,
    /// What the HCA is told.
    pub(crate) timers: Timers,
}

/// The machine for a connection that is being set up.
///
/// # Safety
///
/// `dev` stays registered during this call.
pub(super) unsafe fn machine(
    dev: *mut rdma::ib_device,
    side: Side,
    patience: &Patience,
) -> Result<KBox<Rearm>> {
    let Timers {
        packet_life_time,
        retry_count,
    } = patience.timers;
    // SAFETY: By the function's contract.
    let timeout = qp_timeout(unsafe { ack_delay(dev) }, packet_life_time);
    let most = exhaustion_ms(timeout, retry_count).map_or(NEVER_MS, |(_, most)| most);
    let times = Times::of_req(
        patience.remote_response,
        patience.local_response,
        packet_life_time,
        patience.cm_retries,
        most,
    );
    // SAFETY: No preconditions.
    let tid = unsafe { bindings::get_random_u64() };
    let machine = match side {
        Side::Active => Rearm::active(times, tid),
        Side::Passive => Rearm::passive(times, tid),
    };
    Ok(KBox::new(machine, GFP_KERNEL)?)
}

/// How long the HCA may take to send an ACK: 4.096 us x 2^n.
///
/// # Safety
///
/// `dev` stays registered during this call.
pub(super) unsafe fn ack_delay(dev: *mut rdma::ib_device) -> u8 {
    // SAFETY: By the function's contract.
    unsafe { (*dev).attrs.local_ca_ack_delay }
}

/// What is at hand while a connection is attended to.
pub(super) struct Scene<'a> {
    pub(super) device: &'a Device,
    pub(super) conn: &'a Arc<Connection>,
    /// The QP, in any state.
    pub(super) qp: &'a QpRef,
    /// It was found in RTS, connected to the peer. It may have left RTS since, but is still the same.
    pub(super) connected: bool,
}

impl Service {
    /// Lets something happen to the machine of a connection, where it has one, and does what follows.
    pub(super) fn rearm(&self, scene: &Scene<'_>, inner: &mut Inner, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let now = self.pacer.now();
            let Some(rearm) = inner.rearm.as_mut() else {
                return;
            };
            let step = rearm.step(event, now, jitter());
            if let Some(event) = step.event {
                inner.apply(event);
            }
            if self.stopping.load(Acquire) {
                return;
            }
            next = match step.action {
                Action::None => None,
                Action::Tell { tid } => self.tell(scene, inner, tid),
                Action::Search { better } => self.search(scene, inner, better),
                Action::Send { tid, alternate } => {
                    self.send_lap(scene, inner, tid, &alternate);
                    None
                }
                Action::Load(alternate) => Some(Event::Loaded(load(scene, inner, &alternate))),
                Action::Nudge => match self.nudge(scene, inner) {
                    true => None,
                    false => Some(Event::NoNudge),
                },
                Action::Sample => {
                    let mig = scene.qp.path_mig_state(inner.peer_qpn);
                    mig.map(|mig| {
                        happen(inner, scene.qp, state::Event::Sampled(mig));
                        Event::Sampled(mig)
                    })
                }
            };
        }
    }

    /// Tells the peer of a migration.
    fn tell(&self, scene: &Scene<'_>, inner: &mut Inner, tid: u64) -> Option<Event> {
        if self.nudge(scene, inner) {
            return None;
        }
        let path = inner.path;
        if self.send(scene, inner, tid, &path, Kind::Notice).is_ok() {
            stats::count(Stat::NoticesSent);
        }
        Some(Event::NoNudge)
    }

    fn search(&self, scene: &Scene<'_>, inner: &mut Inner, better: bool) -> Option<Event> {
        if !params::rearm() {
            // The machine has told the peer; that is all that is wanted of it.
            return Some(Event::NotFound(Reason::NotRearmed));
        }
        if better {
            // What was found before is what is to be bettered.
            let standbys = standbys(inner);
            self.standbys.forget_one(scene.conn.device(), &standbys, 0);
        }
        inner.searching = true;
        self.search_result(scene, inner)
    }

    /// What came of a search, where it is over; else the connection is woken when it is.
    fn search_result(&self, scene: &Scene<'_>, inner: &mut Inner) -> Option<Event> {
        let standbys = standbys(inner);
        let found = match self.standbys.get_later(&self.queue, scene.conn, &standbys) {
            Ok(None) | Err(Refused::Stopping) => return None,
            Ok(Some(found)) => found,
            Err(refused) => Err(refused.into()),
        };
        inner.searching = false;
        Some(match found {
            Ok(candidates) => Event::Found(candidates),
            Err(reason) => Event::NotFound(reason),
        })
    }

    /// Goes on with a search that was waited for.
    pub(super) fn search_again(&self, scene: &Scene<'_>, inner: &mut Inner) {
        if !inner.searching {
            return;
        }
        if let Some(event) = self.search_result(scene, inner) {
            self.rearm(scene, inner, event);
        }
    }

    /// Tells the active side what it does not see. Lost or not sent is all the same.
    pub(super) fn wish(&self, scene: &Scene<'_>, inner: &Inner, path: &Path, kind: Kind) {
        // SAFETY: No preconditions.
        let tid = unsafe { bindings::get_random_u64() };
        if self.send(scene, inner, tid, path, kind).is_ok() {
            stats::count(Stat::WishesSent);
        }
    }

    fn send_lap(&self, scene: &Scene<'_>, inner: &mut Inner, tid: u64, alternate: &Alternate) {
        let path = Path::from(alternate);
        if self.send(scene, inner, tid, &path, Kind::Ordinary).is_ok() {
            stats::count(Stat::LapsSent);
        }
    }

    /// Sends a LAP that names `path`, along the path in use. Lost or not sent is all the same.
    fn send(&self, scene: &Scene<'_>, inner: &Inner, tid: u64, path: &Path, kind: Kind) -> Result {
        let used = inner.path;
        let port = scene.device.port(used.port).ok_or(ENODEV)?;
        let id = scene.conn.id();
        // SAFETY: The mutex is held and the connection not dead; neither id changes once established. The
        // scene has the device's gate.
        let (local, remote, delay) = unsafe {
            (
                u32::from_be((*id).local_id),
                u32::from_be((*id).remote_id),
                ack_delay(scene.device.raw()),
            )
        };
        let life = path.packet_life_time.min(used.packet_life_time);
        let lap = Lap {
            tid,
            ids: Ids { local, remote },
            qpn: inner.peer_qpn,
            remote_cm_response_timeout: inner.response_timeout,
            alternate: path.to_cm(qp_timeout(delay, life)),
            kind,
        };
        port.cm.send(&used, Some(tid), |_, mad| lap.write(mad))?;
        Ok(())
    }

    /// Posts a nudge; whether one is on its way.
    pub(super) fn nudge(&self, scene: &Scene<'_>, inner: &mut Inner) -> bool {
        if !scene.connected {
            // Another one of this number, perhaps.
            return false;
        }
        match self.slots.nudge(scene.qp) {
            Ok(seq) => {
                inner.nudge = Some(seq);
                true
            }
            Err(_) => false,
        }
    }

    /// Whether the peer has acknowledged this nudge, or a later one.
    pub(super) fn is_acked(&self, scene: &Scene<'_>, seq: u32) -> bool {
        self.slots.acked(scene.qp).wrapping_sub(seq) <= u32::MAX / 2
    }
}

/// The search for alternates to the path in use.
pub(super) fn standbys(inner: &Inner) -> Standbys {
    Standbys(inner.path.primary(inner.path.pkey, inner.path.mtu))
}

/// Loads an alternate that the peer has accepted; whether the HCA took it.
fn load(scene: &Scene<'_>, inner: &mut Inner, alternate: &Alternate) -> bool {
    let mut path = Path::from(alternate);
    // The timers are those of the REQ on each path, also when this one is in use and the next one comes.
    let life = path.packet_life_time.min(inner.path.packet_life_time);
    path.way.packet_life_time = life;
    let timeout = qp_timeout(inner.peer_ack_delay, life);
    // What was sampled may be out of date: a QP that is not in RTS, or of another connection, is none of
    // ours.
    if scene.qp.path_mig_state(inner.peer_qpn).is_none() {
        return false;
    }
    // SAFETY: The scene has the device's gate, and the QP is one of that device.
    let loaded = unsafe { scene.qp.load_alternate(scene.device.raw(), &path, timeout) };
    if loaded.is_err() {
        stats::count(Stat::LoadFailed);
        return false;
    }
    inner.alternate = Some(path);
    inner.disjoint = Some(alternate.disjoint);
    true
}
