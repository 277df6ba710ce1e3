// SPDX-License-Identifier: GPL-2.0-only

//! The connections that were set up since the module was loaded.
//!
//! Each connection is a work of its own: whatever may have changed, it is queued, and [`attend`] looks
//! at how things are and does what follows. So nothing is done twice at once for a connection, and
//! many connections are seen to side by side.
//!
//! Locks, in this order:
//!
//! 1. [`Connection::inner`], one per connection. Held while the CM or the HCA is asked or told
//!    something about this connection, never while a ULP is called.
//! 2. `Table::inner` (`table.rs`) and `Connection::news`, leaves.
//!
//! [`attend`]: super::service::Service::attend

use super::bindings as rdma;
use super::cm::SavedReq;
use super::follow::Follow;
use super::inbox::News;
use super::lap::Laps;
use super::name::Name;
use super::path::Path;
use super::service::Service;
use super::stats;
use crate::apm::failback::Failback;
use crate::apm::rearm::Rearm;
use crate::apm::search::Disjoint;
use crate::apm::state::{step, Action, Actions, Event, State};
use crate::apm::stats::Stat;
use crate::apm::wishes::Wishes;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// Which end of a connection this host is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// It sent the REQ.
    Active,
    /// It got the REQ.
    Passive,
}

impl Side {
    /// The word shown for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Passive => "passive",
        }
    }
}

/// A connection, by its cm_id.
#[pin_data]
pub(crate) struct Connection {
    /// Address of the cm_id; to be used only as [`Inner::dead`] says.
    pub(super) id: usize,
    device: usize,
    /// The communication id by which the peer names this end.
    pub(super) comm_id: u32,
    /// Which end this is.
    pub(crate) side: Side,
    /// What has happened since it was last attended to.
    #[pin]
    news: Mutex<News>,
    #[pin]
    inner: Mutex<Inner>,
    #[pin]
    work: Work<Connection>,
}

impl_has_work! {
    impl HasWork<Self> for Connection { self.work }
}

impl WorkItem for Connection {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // SAFETY: A work of the service's own queue.
        if let Some(service) = unsafe { Service::current() } {
            service.attend(&this);
        }
    }
}

/// What changes about a connection.
pub(crate) struct Inner {
    /// The cm_id, the device or this module is going: neither cm_id nor device may be used any more.
    pub(crate) dead: bool,
    state: State,
    /// Local QP number; 0 on the passive side until the REP.
    pub(crate) qpn: u32,
    /// The peer's QP number; 0 until known.
    pub(crate) peer_qpn: u32,
    /// The ULP.
    pub(crate) ulp: Name,
    /// The path in use.
    pub(crate) path: Path,
    /// The alternate that was offered or loaded.
    pub(crate) alternate: Option<Path>,
    /// What it does not have in common with the path in use, where this end has chosen it.
    pub(crate) disjoint: Option<Disjoint>,
    /// The peer's REQ named an alternate (passive side).
    pub(crate) was_offered: bool,
    /// Left as it would be without the module: attributes are not touched.
    pub(crate) hands_off: bool,
    /// The REQ with the alternate, until it was answered.
    pub(crate) saved: Option<KBox<SavedReq>>,
    /// Migrations of the QP seen.
    pub(crate) migrations: u32,
    /// NodeGUID of the peer's HCA, host byte order; 0 until known.
    pub(crate) peer_node: u64,
    /// NodeGUID of the node that the remote port of the path in use belongs to, as subnet administration
    /// says; 0 until asked.
    pub(crate) peer_sa_node: u64,
    /// How long the peer's HCA may take to send an ACK: 4.096 us x 2^n. Active side.
    pub(crate) peer_ack_delay: u8,
    /// Within what time the peer's CM answers: 4.096 us x 2^n.
    pub(crate) response_timeout: u8,
    /// Whether the CM has been brought along.
    pub(crate) follow: Follow,
    /// Of the last LAP that was sent to ourselves.
    pub(crate) own_nonce: u64,
    /// How it is armed again, where it is served.
    pub(crate) rearm: Option<KBox<Rearm>>,
    /// The way back to the path that it began with: active side.
    pub(crate) failback: Option<Failback>,
    /// The machine has not heard yet that the connection is established.
    pub(crate) is_new: bool,
    /// A migration that the machine has not heard of, and whether the peer has not, either.
    pub(crate) moved: bool,
    /// See `moved`.
    pub(crate) untold: bool,
    /// The machine is to look for another alternate.
    pub(crate) seek: bool,
    /// What the local ports have to do with the alternate.
    pub(crate) wishes: Wishes,
    /// The machine waits for a search.
    pub(crate) searching: bool,
    /// What is remembered of the peer's LAPs.
    pub(crate) laps: Laps,
    /// Number of the nudge whose completion is waited for.
    pub(crate) nudge: Option<u32>,
    /// When it is to be looked at again, on the clock of the pacer, which alone writes this.
    pub(crate) due: Option<u64>,
}

impl Inner {
    /// Where the connection stands.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Whether something is on its way that nobody but us can deal with when it comes back.
    pub(crate) fn is_owed_an_answer(&self) -> bool {
        self.saved.is_some() || matches!(self.follow, Follow::Sent { .. })
    }

    /// Whether it is disconnecting, or gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Lets something happen to the connection; what is to be done about it. The one place where a
    /// state changes.
    pub(crate) fn apply(&mut self, event: Event) -> Actions {
        let (next, actions) = step(self.state, event);
        if actions.has(Action::FollowCm) {
            self.migrations = self.migrations.saturating_add(1);
            stats::count(Stat::Migrations);
            if let Some(alternate) = self.alternate.take() {
                self.path = alternate;
            }
        }
        if next != self.state {
            if let State::Unprotected(reason) = next {
                stats::count_reason(reason);
            }
            if matches!(next, State::Unprotected(_) | State::Migrated(_)) {
                self.alternate = None;
            }
        }
        self.state = next;
        actions
    }
}

impl Connection {
    /// A connection about which nothing is known but its cm_id.
    ///
    /// # Safety
    ///
    /// `id` is a live cm_id.
    pub(crate) unsafe fn new(id: *mut rdma::ib_cm_id, side: Side, ulp: Name) -> Result<Arc<Self>> {
        // SAFETY: By the function's contract.
        let (device, comm_id) = unsafe { ((*id).device, u32::from_be((*id).local_id)) };
        Arc::pin_init(
            pin_init!(Self {
                id: id as usize,
                device: device as usize,
                comm_id,
                side,
                news <- new_mutex!(News::none()),
                inner <- new_mutex!(Inner {
                    dead: false,
                    state: State::NEW,
                    qpn: 0,
                    peer_qpn: 0,
                    ulp,
                    path: Path::default(),
                    alternate: None,
                    disjoint: None,
                    was_offered: false,
                    hands_off: false,
                    saved: None,
                    migrations: 0,
                    peer_node: 0,
                    peer_sa_node: 0,
                    peer_ack_delay: 0,
                    response_timeout: 0,
                    follow: Follow::Done,
                    own_nonce: 0,
                    rearm: None,
                    failback: None,
                    is_new: true,
                    moved: false,
                    untold: false,
                    seek: false,
                    wishes: Wishes::NONE,
                    searching: false,
                    laps: Laps::new(),
                    nudge: None,
                    due: None,
                }),
                work <- new_work!("Connection::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// The cm_id: live while the mutex is held and `dead` is false, and in the ULP's own calls.
    pub(crate) fn id(&self) -> *mut rdma::ib_cm_id {
        self.id as *mut _
    }

    /// The device: to be used inside its gate, or as the cm_id.
    pub(crate) fn device(&self) -> *mut rdma::ib_device {
        self.device as *mut _
    }

    /// Notes something that has happened; to be followed by waking the connection. Process context.
    pub(crate) fn note(&self, write: impl FnOnce(&mut News)) {
        write(&mut self.news.lock());
    }

    /// What was noted since this was last called.
    pub(crate) fn take_news(&self) -> News {
        core::mem::replace(&mut *self.news.lock(), News::none())
    }

    /// Locks the connection.
    pub(crate) fn lock(&self) -> kernel::sync::MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Marks the connection as one whose cm_id or device is no more to be used. When this returns,
    /// nobody uses them.
    pub(crate) fn kill(&self) {
        let mut inner = self.lock();
        inner.dead = true;
        let saved = inner.saved.take();
        drop(inner);
        // Puts a GID reference; no need for the lock.
        drop(saved);
    }
}
