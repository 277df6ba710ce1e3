// SPDX-License-Identifier: GPL-2.0-only

//! Bringing the CM along after a migration, so that its own messages (DREQ, DREP) take the path in use.
//!
//! ib_cm keeps two address vectors of a connection to itself. `ib_cm_notify` copies the second over the
//! first, which is right after the first migration; what the second is after that, only a LAP that is
//! received can say. So we send one to ourselves:
//!
//! ```text
//!    attend ── LAP of our own, with a nonce ──▶ own port
//!                                                 │ recv: nonce right? then it comes "from the peer"
//!                                                 ▼
//!                                   ib_cm: both address vectors are the path in use
//!                                                 │ event LAP_RECEIVED, kept from the ULP
//!                                                 ▼
//!                                   followed: lap_state IDLE, ib_cm_notify
//! ```
//!
//! `cm_lap_handler` takes the first vector from the work completion of the MAD. `recv.rs` writes the
//! peer's LID there, or else a DREQ of that moment would be sent to ourselves and answered by ourselves.
//!
//! Locks: the mutex of the connection; see `conn.rs`.

use super::bindings as rdma;
use super::cm;
use super::conn::{Connection, Inner};
use super::device::Device;
use super::service::Service;
use super::stats;
use crate::apm::stats::Stat;
use crate::wire::cm::lap::{Kind, Lap};
use crate::wire::cm::Ids;
use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::atomic::Acquire;

/// How long a LAP to ourselves is waited for, in milliseconds.
const AGAIN_MS: u64 = 200;
/// How often it is sent.
const TRIES: u8 = 5;
/// How long it is waited for a connection that the CM does not regard as established yet.
const NOT_YET_MS: u64 = 100;

/// Whether the CM knows the path in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    /// It does, or cannot be told.
    Done,
    /// It does not.
    Wanted,
    /// A LAP to ourselves is on its way.
    Sent {
        /// By which it is known.
        nonce: u64,
        /// How often it was sent.
        tries: u8,
        /// When it is given up or sent again.
        due: u64,
    },
}

impl Service {
    /// Brings the CM along, where that is wanted; when to come back. `inner` is the connection's, which
    /// is not dead.
    pub(super) fn follow(
        &self,
        device: &Device,
        conn: &Connection,
        inner: &mut Inner,
    ) -> Option<u64> {
        let now = self.pacer.now();
        let (nonce, tries) = match inner.follow {
            Follow::Done => return None,
            Follow::Sent { due, .. } if now < due => return Some(due),
            Follow::Sent { tries, .. } if tries >= TRIES => {
                self.follow_without_lap(conn, inner);
                return None;
            }
            Follow::Sent { nonce, tries, .. } => (nonce, tries),
            Follow::Wanted if self.stopping.load(Acquire) => {
                self.follow_without_lap(conn, inner);
                return None;
            }
            // SAFETY: No preconditions.
            Follow::Wanted => (unsafe { bindings::get_random_u64() }, 0),
        };
        // SAFETY: The mutex is held and the connection not dead.
        let (established, covered) = unsafe {
            (
                cm::is_established(conn.id()),
                self.handlers.covers(conn.id()),
            )
        };
        if !established {
            // Before that the CM sends nothing that could get lost; after that it does not matter.
            let due = now.saturating_add(NOT_YET_MS);
            return (!inner.is_closed()).then_some(due);
        }
        if !covered {
            self.follow_without_lap(conn, inner);
            return None;
        }
        // Lost or not sent is all the same.
        let _ = send_own_lap(device, conn, inner, nonce);
        let due = now.saturating_add(AGAIN_MS.checked_shl(tries.into()).unwrap_or(AGAIN_MS));
        let tries = tries.saturating_add(1);
        inner.follow = Follow::Sent { nonce, tries, due };
        inner.own_nonce = nonce;
        Some(due)
    }

    /// The module is going: what can be done at once for a CM that was not brought along yet.
    pub(super) fn follow_at_last(&self, conn: &Connection) {
        let mut inner = conn.lock();
        if inner.follow != Follow::Done && !inner.dead {
            self.follow_without_lap(conn, &mut inner);
        }
    }

    /// After the first migration the CM's second address vector is right without a LAP.
    fn follow_without_lap(&self, conn: &Connection, inner: &mut Inner) {
        inner.follow = Follow::Done;
        let first = inner.migrations == 1;
        // SAFETY: The mutex is held and the connection not dead.
        let told = unsafe {
            first && cm::is_established(conn.id()) && cm::follow_migration(conn.id()).is_ok()
        };
        stats::count(if told {
            Stat::CmFollowed
        } else {
            Stat::CmFollowFailed
        });
    }
}

/// The LAP has come back, and ib_cm has taken both address vectors from it.
///
/// # Safety
///
/// `id` is the connection's live cm_id, in its handler, and the event a LAP with our mark.
pub(super) unsafe fn followed(id: *mut rdma::ib_cm_id, inner: &mut Inner) {
    // SAFETY: By the function's contract. In LAP_RCVD nobody but the handler changes this; as long as it
    // stands there, later LAPs are dropped by ib_cm.
    unsafe {
        (*id).lap_state = rdma::ib_cm_lap_state_IB_CM_LAP_IDLE;
        if matches!(inner.follow, Follow::Sent { .. }) {
            inner.follow = Follow::Done;
            // With a GRH the first vector came out without one; with this both are the same.
            stats::count(match cm::follow_migration(id) {
                Ok(()) => Stat::CmFollowed,
                Err(_) => Stat::CmFollowFailed,
            });
        }
    }
}

/// Whether a LAP that has come in is the one that we have sent to ourselves for this connection.
pub(super) fn is_own(inner: &Inner, lap: &Lap) -> bool {
    match (lap.kind, inner.follow) {
        (Kind::Own(nonce), Follow::Sent { nonce: sent, .. }) => nonce == sent && !inner.dead,
        _ => false,
    }
}

fn send_own_lap(device: &Device, conn: &Connection, inner: &Inner, nonce: u64) -> Result {
    let path = inner.path;
    let port = device.port(path.port).ok_or(ENODEV)?;
    // SAFETY: The mutex is held and the connection not dead; neither id changes once established.
    let (local_id, remote_id) = unsafe { ((*conn.id()).local_id, (*conn.id()).remote_id) };
    let mut lap = Lap {
        // As if the peer had sent it.
        ids: Ids {
            local: u32::from_be(remote_id),
            remote: u32::from_be(local_id),
        },
        qpn: inner.qpn,
        // As the peer would say it; ib_cm takes one off the timeout.
        alternate: path
            .to_cm(path.packet_life_time.saturating_add(1).min(31))
            .reversed(),
        kind: Kind::Own(nonce),
        ..Default::default()
    };
    let mut own = path;
    own.way.dlid = path.slid;
    own.way.dgid = path.sgid;
    port.cm.send(&own, None, |tid, mad| {
        lap.tid = tid;
        lap.write(mad)
    })?;
    Ok(())
}
