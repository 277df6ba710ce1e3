// SPDX-License-Identifier: GPL-2.0-only

//! Queue pairs: the object behind core's `ib_qp` (`life` makes and ends it).
//!
//! An `Arc` is held by core's object from create to destroy; the tables, the list of active queue
//! pairs and queued events hold others for a while longer, and find `dead` set.
//!
//! Locks: see `engine`. What is the engine's (`attr`, `rc`) is reached with its state in hand.

use super::bindings;
use super::cq::{Cq, Cqe, QpHandle};
use super::engine::Outbox;
use super::event::Event;
use super::srq::{Srq, Taken};
use super::state::{State, TimerKey};
use super::wq::{RecvQueue, SendQueue};
use crate::model::rc::{self, Rc};
use kernel::list::{impl_list_arc_safe, impl_list_item, AtomicTracker, ListLinks, TryNewListArc};
use kernel::prelude::*;
use kernel::rbtree::RBTreeNodeReservation;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::{new_spinlock_irq, Arc, ArcBorrow, LockedBy, Mutex, SpinLockIrq};

/// Kind of queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// QP0 of a port.
    Smi,
    /// QP1 of a port.
    Gsi,
    /// Unreliable datagram.
    Ud,
    /// Reliable connection.
    Rc,
}

/// What the HCA, not the transport, keeps of a queue pair's attributes.
pub(crate) struct Attr {
    /// `qp_access_flags`
    pub(crate) access: u32,
    pub(crate) qkey: u32,
    pub(crate) pkey_index: u16,
    /// The port that the queue pair uses.
    pub(crate) port: u8,
    /// PSN of the next datagram.
    pub(crate) sq_psn: u32,
    /// Migrations since creation.
    pub(crate) migrations: u32,
    /// The receive taken from the shared queue, where there is one.
    pub(crate) taken: Option<KBox<Taken>>,
    /// When the queued timer will fire.
    timer_at: Option<u64>,
    /// The timer's node, while it is not queued.
    timer_node: Option<RBTreeNodeReservation<TimerKey, ()>>,
}

/// A queue pair.
#[pin_data]
pub(crate) struct Qp {
    /// Core's object; valid until `dead` is set.
    pub(crate) handle: QpHandle,
    pub(crate) dead: Atomic<bool>,
    /// `enum ib_qp_state`, for those who post; the engine sets it.
    state: Atomic<u32>,
    /// Index of the HCA.
    pub(crate) hca: usize,
    pub(crate) qpn: u32,
    pub(crate) kind: Kind,
    /// The port of QP0 and QP1.
    pub(crate) port: u8,
    pub(crate) pd: u32,
    pub(crate) signal_all: bool,
    pub(crate) cap: Cap,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    #[pin]
    pub(crate) sq: SpinLockIrq<SendQueue>,
    #[pin]
    pub(crate) rq: SpinLockIrq<RecvQueue>,
    rc: LockedBy<Option<KBox<Rc>>, State>,
    attr: LockedBy<Attr, State>,
    #[pin]
    links: ListLinks,
    #[pin]
    tracker: AtomicTracker,
}

/// Sizes of the queues (`struct ib_qp_cap`).
#[derive(Clone, Copy)]
pub(crate) struct Cap {
    pub(crate) send_wr: u32,
    pub(crate) recv_wr: u32,
    pub(crate) send_sge: u32,
    pub(crate) recv_sge: u32,
}

// SAFETY: `handle` is only followed by the engine while it holds the delivery lock and `dead` is
// unset; all else is locked, atomic or never changes.
unsafe impl Send for Qp {}
// SAFETY: As above.
unsafe impl Sync for Qp {}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Qp { tracked_by tracker: AtomicTracker; }
}
impl_list_item! {
    impl ListItem<0> for Qp { using ListLinks { self.links }; }
}

/// What a queue pair is made of; the fields of [`Qp`] say what they mean.
pub(crate) struct Parts {
    pub(crate) handle: QpHandle,
    pub(crate) hca: usize,
    pub(crate) qpn: u32,
    pub(crate) kind: Kind,
    pub(crate) port: u8,
    pub(crate) pd: u32,
    pub(crate) signal_all: bool,
    pub(crate) cap: Cap,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) sq: SendQueue,
    pub(crate) rq: RecvQueue,
    pub(crate) rc: Option<KBox<Rc>>,
}

impl Qp {
    /// A queue pair in RESET; `lock` is the engine's.
    pub(crate) fn new(p: Parts, lock: &Mutex<State>) -> Result<Arc<Self>> {
        let attr = Attr {
            access: 0,
            qkey: 0,
            pkey_index: 0,
            port: p.port,
            sq_psn: 0,
            migrations: 0,
            taken: p.srq.as_ref().map(|_| Taken::new()).transpose()?,
            timer_at: None,
            timer_node: Some(RBTreeNodeReservation::new(GFP_KERNEL)?),
        };
        Arc::pin_init(
            pin_init!(Self {
                handle: p.handle,
                dead: Atomic::new(false),
                state: Atomic::new(bindings::ib_qp_state_IB_QPS_RESET),
                hca: p.hca,
                qpn: p.qpn,
                kind: p.kind,
                port: p.port,
                pd: p.pd,
                signal_all: p.signal_all,
                cap: p.cap,
                send_cq: p.send_cq,
                recv_cq: p.recv_cq,
                srq: p.srq,
                sq <- new_spinlock_irq!(p.sq),
                rq <- new_spinlock_irq!(p.rq),
                rc: LockedBy::new(lock, p.rc),
                attr: LockedBy::new(lock, attr),
                links <- ListLinks::new(),
                tracker <- AtomicTracker::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// State as `enum ib_qp_state` has it.
    pub(crate) fn state(&self) -> bindings::ib_qp_state {
        self.state.load(Acquire)
    }

    /// The engine has changed the state.
    pub(crate) fn set_state(&self, state: bindings::ib_qp_state) {
        self.state.store(state, Release);
    }

    /// The HCA's attributes.
    pub(crate) fn attr<'a>(&'a self, st: &'a State) -> &'a Attr {
        self.attr.access(st)
    }

    /// The same, to be changed.
    pub(crate) fn attr_mut<'a>(&'a self, st: &'a mut State) -> &'a mut Attr {
        self.attr.access_mut(st)
    }

    /// The transport, for a look.
    pub(crate) fn rc<'a>(&'a self, st: &'a State) -> Option<&'a Rc> {
        self.rc.access(st).as_deref()
    }

    /// `qp_access_flags`
    pub(crate) fn access(&self, st: &State) -> u32 {
        self.attr(st).access
    }

    /// The port that completions name.
    pub(crate) fn port(&self, st: &State) -> u8 {
        self.attr(st).port
    }

    /// Counts a migration, to a path that leaves by `port`.
    pub(crate) fn migrated(&self, st: &mut State, port: u8) {
        let attr = self.attr_mut(st);
        attr.migrations = attr.migrations.wrapping_add(1);
        attr.port = port;
    }

    /// Takes the transport out, to be called; [`Qp::put_rc`] brings it back.
    pub(crate) fn take_rc(&self, st: &mut State) -> Option<KBox<Rc>> {
        if self.dead.load(Relaxed) {
            return None;
        }
        self.rc.access_mut(st).take()
    }

    /// Brings the transport back and queues its timer.
    pub(crate) fn put_rc(self: &Arc<Self>, st: &mut State, rc: KBox<Rc>) {
        let want = rc.timer();
        let failed =
            rc.state() == rc::State::Err && self.state() != bindings::ib_qp_state_IB_QPS_ERR;
        self.set_state(super::modify::state_to_ib(rc.state()));
        *self.rc.access_mut(st) = Some(rc);
        if failed && self.srq.is_some() {
            st.out.event(Event::LastWqe(self.clone()));
        }
        let Some(at) = want else {
            return;
        };
        // A timer that fires too early costs a look; one that is moved on with every packet costs
        // more. So only an earlier one replaces what is queued.
        if self.attr(st).timer_at.is_some_and(|queued| queued <= at) {
            return;
        }
        self.stop_timer(st);
        let attr = self.attr_mut(st);
        if let Some(node) = attr.timer_node.take() {
            attr.timer_at = Some(at);
            st.add_timer((at, self.hca, self.qpn), node);
        }
    }

    /// The queued timer has fired.
    pub(crate) fn timer_fired(
        &self,
        st: &mut State,
        node: Option<RBTreeNodeReservation<TimerKey, ()>>,
    ) {
        let attr = self.attr_mut(st);
        attr.timer_at = None;
        attr.timer_node = node;
    }

    /// Takes the timer back.
    pub(crate) fn stop_timer(&self, st: &mut State) {
        if let Some(at) = self.attr_mut(st).timer_at.take() {
            let node = st.take_timer(&(at, self.hca, self.qpn));
            self.attr_mut(st).timer_node = node;
        }
    }

    /// Ends all receives that are posted, with a flush.
    pub(crate) fn flush_receives(&self, out: &mut Outbox) {
        loop {
            let Some(wr_id) = self.rq.lock().pop() else {
                return;
            };
            self.flushed_receive(wr_id, out);
        }
    }

    /// A receive has ended with a flush.
    pub(crate) fn flushed_receive(&self, wr_id: u64, out: &mut Outbox) {
        let mut cqe = Cqe::new(self.handle, wr_id);
        cqe.status = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR;
        cqe.opcode = bindings::ib_wc_opcode_IB_WC_RECV;
        self.recv_cq.push(cqe, false, out);
    }

    /// Ends all sends of a datagram queue pair that are posted, with a flush.
    pub(crate) fn flush_sends(&self, out: &mut Outbox) {
        loop {
            let Some(slot) = self.sq.lock().pop() else {
                return;
            };
            let mut cqe = Cqe::new(self.handle, slot.wr_id);
            cqe.status = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR;
            self.send_cq.push(cqe, false, out);
        }
    }

    /// Forgets all that was posted, for RESET.
    pub(crate) fn reset_queues(&self) {
        self.sq.lock().reset();
        self.rq.lock().reset();
    }
}

/// Core's object with ours behind it.
#[repr(C)]
pub(crate) struct VQp {
    ib: bindings::ib_qp,
    /// From `Arc::into_raw`; null until created.
    inner: *const Qp,
}

impl VQp {
    /// Puts `qp` behind core's object.
    ///
    /// # Safety
    ///
    /// `ib` is new: core has allocated `size_ib_qp` bytes, which is a `VQp`.
    pub(crate) unsafe fn attach(ib: *mut bindings::ib_qp, qp: Arc<Qp>) {
        // SAFETY: By the caller's promise.
        unsafe { (*ib.cast::<Self>()).inner = qp.into_raw() };
    }

    /// Takes it away again.
    ///
    /// # Safety
    ///
    /// `ib` was given to [`VQp::attach`] and not to this since.
    pub(crate) unsafe fn detach(ib: *mut bindings::ib_qp) -> Arc<Qp> {
        // SAFETY: By the caller's promise the reference that `attach` stored is still there.
        unsafe {
            let v = ib.cast::<Self>();
            let qp = Arc::from_raw((*v).inner);
            (*v).inner = core::ptr::null();
            qp
        }
    }
}

/// The queue pair behind core's object.
///
/// # Safety
///
/// `ib` is a queue pair of ours that has been created and not destroyed, for `'a`.
pub(crate) unsafe fn from_ib<'a>(ib: *mut bindings::ib_qp) -> ArcBorrow<'a, Qp> {
    // SAFETY: By the caller's promise `inner` came from `Arc::into_raw` and is still owned.
    unsafe { ArcBorrow::from_raw((*ib.cast::<VQp>()).inner) }
}
