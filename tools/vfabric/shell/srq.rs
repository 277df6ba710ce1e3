// SPDX-License-Identifier: GPL-2.0-only

//! Shared receive queues (IBA 10.2.9): receives that several RC queue pairs take from.
//!
//! A queue pair takes a receive when a message for it begins and keeps it to the message's end.
//!
//! Locks: the queue's lock is innermost (see `engine`); consumers post in any context.

use super::bindings;
use super::hca;
use super::pd;
use super::wq::{RecvQueue, SgList, MAX_SGE, MAX_WR};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::{new_spinlock_irq, Arc, ArcBorrow, SpinLockIrq};

struct Queue {
    recv: RecvQueue,
    /// The consumer is told once when fewer than these are left; 0: not armed.
    limit: u32,
}

/// A shared receive queue.
#[pin_data]
pub(crate) struct Srq {
    /// Core's object; valid until `dead` is set.
    ib: *mut bindings::ib_srq,
    dead: Atomic<bool>,
    pub(crate) pd: u32,
    max_wr: u32,
    max_sge: u32,
    #[pin]
    queue: SpinLockIrq<Queue>,
}

// SAFETY: `ib` is only followed by the engine while it holds the delivery lock and `dead` is unset;
// all else in here is locked, atomic or never changes.
unsafe impl Send for Srq {}
// SAFETY: As above.
unsafe impl Sync for Srq {}

/// A receive that a queue pair has taken.
pub(crate) struct Taken {
    pub(crate) wr_id: u64,
    pub(crate) list: SgList,
    /// Whether there is one.
    pub(crate) full: bool,
}

impl Taken {
    /// None yet.
    pub(crate) fn new() -> Result<KBox<Self>> {
        let none = Self {
            wr_id: 0,
            list: SgList::new(),
            full: false,
        };
        Ok(KBox::new(none, GFP_KERNEL)?)
    }
}

impl Srq {
    /// Takes the oldest receive. Gives whether there was one, and whether the limit has just been
    /// passed.
    pub(crate) fn take(&self, into: &mut Taken) -> (bool, bool) {
        let mut q = self.queue.lock();
        let (Some(()), Some(wr_id)) = (q.recv.list(&mut into.list), q.recv.pop()) else {
            return (false, false);
        };
        into.wr_id = wr_id;
        into.full = true;
        let low = q.recv.len() < q.limit;
        if low {
            q.limit = 0;
        }
        (true, low)
    }

    /// Tells the consumer that the limit has been passed, unless the queue is gone. Engine only,
    /// delivery lock held.
    pub(crate) fn tell_limit(&self) {
        if self.dead.load(Acquire) {
            return;
        }
        let mut e = bindings::ib_event {
            event: bindings::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
            ..Default::default()
        };
        // SAFETY: Not dead under the delivery lock: `destroy` waits for that lock after it has set
        // `dead`, so core's object is still there.
        unsafe {
            e.device = (*self.ib).device;
            *e.element.srq.as_mut() = self.ib;
            if let Some(handler) = (*self.ib).event_handler {
                handler(&mut e, (*self.ib).srq_context);
            }
        }
    }
}

/// Core's object with ours behind it.
#[repr(C)]
pub(crate) struct VSrq {
    ib: bindings::ib_srq,
    /// From `Arc::into_raw`; null until created.
    inner: *const Srq,
}

/// The queue behind core's object.
///
/// # Safety
///
/// `ib` is a shared receive queue of ours that has been created and not destroyed, for `'a`.
pub(crate) unsafe fn from_ib<'a>(ib: *mut bindings::ib_srq) -> ArcBorrow<'a, Srq> {
    // SAFETY: By the caller's promise `inner` came from `Arc::into_raw` and is still owned.
    unsafe { ArcBorrow::from_raw((*ib.cast::<VSrq>()).inner) }
}

/// # Safety
///
/// `ib` is new and of a device of ours.
unsafe fn try_create(ib: *mut bindings::ib_srq, init: &bindings::ib_srq_init_attr) -> Result {
    let a = &init.attr;
    if init.srq_type != bindings::ib_srq_type_IB_SRQT_BASIC {
        return Err(EOPNOTSUPP);
    }
    if a.max_wr == 0 || a.max_wr > MAX_WR || a.max_sge as usize > MAX_SGE {
        return Err(EINVAL);
    }
    // SAFETY: Core has set the protection domain before it calls.
    let pd = unsafe { pd::id((*ib).pd) };
    let queue = Queue {
        recv: RecvQueue::new(a.max_wr, a.max_sge)?,
        limit: a.srq_limit,
    };
    let srq = Arc::pin_init(
        pin_init!(Srq {
            ib,
            dead: Atomic::new(false),
            pd,
            max_wr: a.max_wr,
            max_sge: a.max_sge,
            queue <- new_spinlock_irq!(queue),
        }),
        GFP_KERNEL,
    )?;
    // SAFETY: Core allocated `size_ib_srq` bytes, which is a `VSrq`.
    unsafe { (*ib.cast::<VSrq>()).inner = srq.into_raw() };
    Ok(())
}

/// `create_srq`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn create(
    ib: *mut bindings::ib_srq,
    init: *mut bindings::ib_srq_init_attr,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    // SAFETY: Core hands us a new object and valid attributes.
    match unsafe { try_create(ib, &*init) } {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}

/// `modify_srq`: the limit; the size stays.
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn modify(
    ib: *mut bindings::ib_srq,
    attr: *mut bindings::ib_srq_attr,
    mask: bindings::ib_srq_attr_mask,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    if mask & bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR != 0 {
        return EOPNOTSUPP.to_errno();
    }
    // SAFETY: A live queue and valid attributes.
    let (srq, limit) = unsafe { (from_ib(ib), (*attr).srq_limit) };
    if limit > srq.max_wr {
        return EINVAL.to_errno();
    }
    srq.queue.lock().limit = limit;
    0
}

/// `query_srq`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn query(
    ib: *mut bindings::ib_srq,
    attr: *mut bindings::ib_srq_attr,
) -> i32 {
    // SAFETY: A live queue, and room for the answer.
    let (srq, a) = unsafe { (from_ib(ib), &mut *attr) };
    a.max_wr = srq.max_wr;
    a.max_sge = srq.max_sge;
    a.srq_limit = srq.queue.lock().limit;
    0
}

/// `destroy_srq`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn destroy(
    ib: *mut bindings::ib_srq,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    let v = ib.cast::<VSrq>();
    // SAFETY: The device outlives its objects; created earlier, destroyed once: we take back the
    // reference that `create` gave.
    let (hca, srq) = unsafe { (hca::from_ib((*ib).device), Arc::from_raw((*v).inner)) };
    // SAFETY: `v` is ours.
    unsafe { (*v).inner = core::ptr::null() };
    srq.dead.store(true, Release);
    hca.shared.wait_for_delivery();
    0
}

/// `post_srq_recv`; any context. Who waits for a receive asks again by itself.
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn post_recv(
    ib: *mut bindings::ib_srq,
    mut wr: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
) -> i32 {
    // SAFETY: A live queue.
    let srq = unsafe { from_ib(ib) };
    let mut q = srq.queue.lock();
    while !wr.is_null() {
        // SAFETY: The consumer's list of valid work requests.
        if let Err(e) = unsafe { q.recv.post(wr) } {
            // SAFETY: The consumer wants to know which one; on success it is left alone.
            unsafe { *bad = wr };
            return e.to_errno();
        }
        // SAFETY: As above.
        wr = unsafe { (&raw const (*wr).next).read_unaligned() };
    }
    0
}
