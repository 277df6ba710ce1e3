// SPDX-License-Identifier: GPL-2.0-only

//! Queue pairs: the object behind core's `ib_qp`, its creation and its end, posting.
//!
//! An `Arc` is held by core's object from create to destroy; the tables, the list of active queue
//! pairs and queued events hold others for a while longer, and find `dead` set.
//!
//! Locks: see `engine`. What is the engine's (`attr`, `rc`) is reached with its state in hand.

use super::bindings;
use super::cq::{self, Cq, Cqe, QpHandle};
use super::engine::Outbox;
use super::hca::{self, Hca};
use super::pd;
use super::state::{State, TimerKey};
use super::wq::{RecvQueue, SendQueue, MAX_SGE, MAX_WR};
use crate::model::rc::Rc;
use kernel::list::{impl_list_arc_safe, impl_list_item, AtomicTracker, ListLinks, TryNewListArc};
use kernel::prelude::*;
use kernel::rbtree::RBTreeNodeReservation;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::{new_spinlock_irq, Arc, ArcBorrow, LockedBy, SpinLockIrq};

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

impl Qp {
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
    pub(crate) fn put_rc(&self, st: &mut State, rc: KBox<Rc>) {
        let want = rc.timer();
        self.set_state(super::modify::state_to_ib(rc.state()));
        *self.rc.access_mut(st) = Some(rc);
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

    fn stop_timer(&self, st: &mut State) {
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
            let mut cqe = Cqe::new(self.handle, wr_id);
            cqe.status = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR;
            cqe.opcode = bindings::ib_wc_opcode_IB_WC_RECV;
            self.recv_cq.push(cqe, false, out);
        }
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

/// The queue pair behind core's object.
///
/// # Safety
///
/// `ib` is a queue pair of ours that has been created and not destroyed, for `'a`.
pub(crate) unsafe fn from_ib<'a>(ib: *mut bindings::ib_qp) -> ArcBorrow<'a, Qp> {
    // SAFETY: By the caller's promise `inner` came from `Arc::into_raw` and is still owned.
    unsafe { ArcBorrow::from_raw((*ib.cast::<VQp>()).inner) }
}

/// # Safety
///
/// `ib` is new, `attr` valid, and both are of a device of ours.
unsafe fn try_create(ib: *mut bindings::ib_qp, attr: &mut bindings::ib_qp_init_attr) -> Result {
    // SAFETY: By the caller's promise.
    let hca: ArcBorrow<'_, Hca> = unsafe { hca::from_ib((*ib).device) };
    let kind = match attr.qp_type {
        bindings::ib_qp_type_IB_QPT_SMI => Kind::Smi,
        bindings::ib_qp_type_IB_QPT_GSI => Kind::Gsi,
        bindings::ib_qp_type_IB_QPT_UD => Kind::Ud,
        bindings::ib_qp_type_IB_QPT_RC => Kind::Rc,
        _ => return Err(EOPNOTSUPP),
    };
    if !attr.srq.is_null() || attr.create_flags != 0 {
        return Err(EOPNOTSUPP);
    }
    let c = &mut attr.cap;
    let sge_ok = c.max_send_sge as usize <= MAX_SGE && c.max_recv_sge as usize <= MAX_SGE;
    if !sge_ok || c.max_send_wr > MAX_WR || c.max_recv_wr > MAX_WR || c.max_inline_data != 0 {
        return Err(EINVAL);
    }
    let special = matches!(kind, Kind::Smi | Kind::Gsi);
    let port = if special { attr.port_num } else { 0 };
    if special && (port == 0 || port > u32::from(hca.ports)) {
        return Err(EINVAL);
    }
    let mut cap = Cap {
        send_wr: c.max_send_wr,
        recv_wr: c.max_recv_wr,
        send_sge: c.max_send_sge,
        recv_sge: c.max_recv_sge,
    };
    let round = hca.shared.lock().hca(hca.index).knobs.round_depth;
    if round {
        c.max_send_wr = c.max_send_wr.next_power_of_two();
        cap.send_wr = c.max_send_wr;
    }
    let sq = SendQueue::new(cap.send_wr, cap.send_sge, kind != Kind::Rc)?;
    let rq = RecvQueue::new(cap.recv_wr, cap.recv_sge)?;
    // SAFETY: Core has set these before it calls; queue pairs of ours have both queues.
    let (pd, send_cq, recv_cq) = unsafe {
        if attr.send_cq.is_null() || attr.recv_cq.is_null() {
            return Err(EINVAL);
        }
        (
            pd::id((*ib).pd),
            Arc::<Cq>::from(cq::from_ib(attr.send_cq)),
            Arc::<Cq>::from(cq::from_ib(attr.recv_cq)),
        )
    };
    let signal_all = attr.sq_sig_type == bindings::ib_sig_type_IB_SIGNAL_ALL_WR;
    let mut st = hca.shared.lock();
    let qpn = match kind {
        Kind::Smi => 0,
        Kind::Gsi => 1,
        _ => st.hca(hca.index).take_qpn()?,
    };
    let rc = match kind {
        Kind::Rc => {
            let mut rc = KBox::new(Rc::new(qpn), GFP_KERNEL)?;
            rc.set_quirks(st.hca(hca.index).knobs.rc);
            Some(rc)
        }
        _ => None,
    };
    let lock = hca.shared.mutex();
    let attr = Attr {
        access: 0,
        qkey: 0,
        pkey_index: 0,
        port: port as u8,
        sq_psn: 0,
        migrations: 0,
        timer_at: None,
        timer_node: Some(RBTreeNodeReservation::new(GFP_KERNEL)?),
    };
    let qp = Arc::pin_init(
        pin_init!(Qp {
            handle: QpHandle(ib),
            dead: Atomic::new(false),
            state: Atomic::new(bindings::ib_qp_state_IB_QPS_RESET),
            hca: hca.index,
            qpn,
            kind,
            port: port as u8,
            pd,
            signal_all,
            cap,
            send_cq,
            recv_cq,
            sq <- new_spinlock_irq!(sq),
            rq <- new_spinlock_irq!(rq),
            rc: LockedBy::new(lock, rc),
            attr: LockedBy::new(lock, attr),
            links <- ListLinks::new(),
            tracker <- AtomicTracker::new(),
        }),
        GFP_KERNEL,
    )?;
    st.hca(hca.index).insert(qp.clone())?;
    // SAFETY: Core allocated `size_ib_qp` bytes, which is a `VQp`.
    unsafe {
        (*ib).qp_num = qpn;
        (*ib.cast::<VQp>()).inner = qp.into_raw();
    }
    Ok(())
}

/// `create_qp`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn create(
    ib: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_init_attr,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    // SAFETY: Core hands us a new object and valid attributes.
    match unsafe { try_create(ib, &mut *attr) } {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}

/// `destroy_qp`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn destroy(
    ib: *mut bindings::ib_qp,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    // SAFETY: The device outlives its objects.
    let hca: ArcBorrow<'_, Hca> = unsafe { hca::from_ib((*ib).device) };
    let v = ib.cast::<VQp>();
    // SAFETY: Created earlier, destroyed once: we take back the reference that `create` gave.
    let qp = unsafe { Arc::from_raw((*v).inner) };
    // SAFETY: `v` is ours.
    unsafe { (*v).inner = core::ptr::null() };
    let scrub = {
        let mut st = hca.shared.lock();
        qp.dead.store(true, Release);
        qp.stop_timer(&mut st);
        let h = st.hca(hca.index);
        h.remove(&qp);
        h.knobs.scrub
    };
    hca.shared.wait_for_delivery();
    if scrub {
        qp.send_cq.scrub(qp.handle);
        if !Arc::ptr_eq(&qp.send_cq, &qp.recv_cq) {
            qp.recv_cq.scrub(qp.handle);
        }
    }
    0
}
