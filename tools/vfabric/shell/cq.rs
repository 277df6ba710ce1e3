// SPDX-License-Identifier: GPL-2.0-only

//! Completion queues: a ring, and what its consumer wants to be told.
//!
//! Locks: the ring's lock is innermost (see `engine`); consumers take it in any context.

use super::bindings;
use super::engine::{Outbox, Shared};
use super::hca;
use crate::model::knobs::Knobs;
use kernel::list::{
    impl_list_arc_safe, impl_list_item, AtomicTracker, ListArc, ListLinks, TryNewListArc,
};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::{new_spinlock_irq, Arc, ArcBorrow, SpinLockIrq};

/// Longest completion queue offered.
pub(crate) const MAX_CQE: u32 = 1 << 18;

/// The consumer's queue pair, as it wants to see it in a completion. Never followed here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct QpHandle(pub(crate) *mut bindings::ib_qp);

// SAFETY: Nothing is read through the pointer; it is an identity that is handed back.
unsafe impl Send for QpHandle {}
// SAFETY: As above.
unsafe impl Sync for QpHandle {}

/// A completion, with the fields of `struct ib_wc`.
#[derive(Clone, Copy)]
pub(crate) struct Cqe {
    pub(crate) qp: QpHandle,
    pub(crate) wr_id: u64,
    pub(crate) status: bindings::ib_wc_status,
    pub(crate) opcode: bindings::ib_wc_opcode,
    pub(crate) byte_len: u32,
    /// Immediate data (network byte order) or the invalidated R_Key, as `flags` says.
    pub(crate) ex: u32,
    pub(crate) src_qp: u32,
    pub(crate) slid: u32,
    pub(crate) flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
    pub(crate) port: u8,
}

impl Cqe {
    /// A completion of `wr_id` with nothing else in it.
    pub(crate) fn new(qp: QpHandle, wr_id: u64) -> Self {
        Self {
            qp,
            wr_id,
            status: bindings::ib_wc_status_IB_WC_SUCCESS,
            opcode: bindings::ib_wc_opcode_IB_WC_SEND,
            byte_len: 0,
            ex: 0,
            src_qp: 0,
            slid: 0,
            flags: 0,
            pkey_index: 0,
            sl: 0,
            dlid_path_bits: 0,
            port: 0,
        }
    }

    /// Fills a consumer's `ib_wc`.
    fn store(&self, wc: &mut bindings::ib_wc) {
        *wc = bindings::ib_wc::default();
        wc.__bindgen_anon_1.bindgen_union_field = self.wr_id;
        wc.status = self.status;
        wc.opcode = self.opcode;
        wc.byte_len = self.byte_len;
        wc.qp = self.qp.0;
        // SAFETY: A number of this size, whichever of its names it goes by.
        unsafe { *wc.ex.imm_data.as_mut() = self.ex };
        wc.src_qp = self.src_qp;
        wc.slid = self.slid;
        wc.wc_flags = self.flags as i32;
        wc.pkey_index = self.pkey_index;
        wc.sl = self.sl;
        wc.dlid_path_bits = self.dlid_path_bits;
        wc.port_num = u32::from(self.port);
    }
}

/// What the consumer asked to be told (`ib_req_notify_cq`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Armed {
    /// Nothing.
    No,
    /// The next solicited or failed completion.
    Solicited,
    /// The next completion.
    Next,
}

struct Ring {
    slots: KVVec<Cqe>,
    head: usize,
    len: usize,
    armed: Armed,
    overrun: bool,
}

/// A completion queue.
#[pin_data]
pub(crate) struct Cq {
    /// Core's object; valid until `dead` is set.
    pub(crate) ib: *mut bindings::ib_cq,
    pub(crate) dead: Atomic<bool>,
    #[pin]
    ring: SpinLockIrq<Ring>,
    #[pin]
    links: ListLinks,
    #[pin]
    tracker: AtomicTracker,
}

// SAFETY: `ib` is only followed by the engine while it holds the delivery lock and `dead` is unset;
// all else in here is locked or atomic.
unsafe impl Send for Cq {}
// SAFETY: As above.
unsafe impl Sync for Cq {}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Cq { tracked_by tracker: AtomicTracker; }
}
impl_list_item! {
    impl ListItem<0> for Cq { using ListLinks { self.links }; }
}

impl Cq {
    fn new(ib: *mut bindings::ib_cq, cqe: usize) -> Result<Arc<Self>> {
        let slot = Cqe::new(QpHandle(core::ptr::null_mut()), 0);
        let slots = KVVec::from_elem(slot, cqe, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                ib,
                dead: Atomic::new(false),
                ring <- new_spinlock_irq!(Ring {
                    slots,
                    head: 0,
                    len: 0,
                    armed: Armed::No,
                    overrun: false,
                }),
                links <- ListLinks::new(),
                tracker <- AtomicTracker::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Appends a completion; `out` learns when the consumer is to be told.
    pub(crate) fn push(self: &Arc<Self>, cqe: Cqe, solicited: bool, out: &mut Outbox) {
        let tell = {
            let mut r = self.ring.lock();
            let depth = r.slots.len();
            if r.len >= depth {
                if !r.overrun {
                    r.overrun = true;
                    pr_err!("completion queue of {} entries overrun\n", depth);
                }
                return;
            }
            let mut at = r.head + r.len;
            if at >= depth {
                at -= depth;
            }
            r.slots[at] = cqe;
            r.len += 1;
            let failed = cqe.status != bindings::ib_wc_status_IB_WC_SUCCESS;
            let tell = match r.armed {
                Armed::No => false,
                Armed::Solicited => solicited || failed,
                Armed::Next => true,
            };
            if tell {
                r.armed = Armed::No;
            }
            tell
        };
        if tell {
            if let Some(item) = ListArc::try_from_arc_or_drop(self.clone()) {
                out.notify.push_back(item);
            }
        }
    }

    /// Takes up to `wc.len()` completions.
    fn poll(&self, wc: &mut [bindings::ib_wc]) -> usize {
        let mut r = self.ring.lock();
        let depth = r.slots.len();
        let n = wc.len().min(r.len);
        for out in wc.iter_mut().take(n) {
            r.slots[r.head].store(out);
            r.head += 1;
            if r.head == depth {
                r.head = 0;
            }
        }
        r.len -= n;
        n
    }

    /// Removes the completions of a queue pair that goes away, as real HCAs do.
    pub(crate) fn scrub(&self, qp: QpHandle) {
        let mut r = self.ring.lock();
        let depth = r.slots.len();
        let next = |at: usize| if at + 1 == depth { 0 } else { at + 1 };
        let (mut from, mut to, mut kept) = (r.head, r.head, 0);
        for _ in 0..r.len {
            if r.slots[from].qp != qp {
                if from != to {
                    r.slots[to] = r.slots[from];
                }
                to = next(to);
                kept += 1;
            }
            from = next(from);
        }
        r.len = kept;
    }

    fn arm(&self, solicited_only: bool) -> bool {
        let mut r = self.ring.lock();
        let want = if solicited_only {
            Armed::Solicited
        } else {
            Armed::Next
        };
        r.armed = r.armed.max(want);
        r.len != 0
    }

    /// Calls the consumer's handler, unless the queue is gone. Engine only, delivery lock held.
    pub(crate) fn tell(&self) {
        if self.dead.load(Acquire) {
            return;
        }
        // SAFETY: Not dead under the delivery lock: `destroy_cq` waits for that lock after it has
        // set `dead`, so core's object is still there. A handler is called with bottom halves off,
        // as by a driver's tasklet.
        unsafe {
            if let Some(handler) = (*self.ib).comp_handler {
                bindings::vf_bh_disable();
                handler(self.ib, (*self.ib).cq_context);
                bindings::vf_bh_enable();
            }
        }
    }
}

/// Core's object with ours behind it.
#[repr(C)]
pub(crate) struct VCq {
    ib: bindings::ib_cq,
    /// From `Arc::into_raw`; null until created.
    inner: *const Cq,
}

/// The queue behind core's object.
///
/// # Safety
///
/// `ib` is a completion queue of ours that has been created and not destroyed, for `'a`.
pub(crate) unsafe fn from_ib<'a>(ib: *mut bindings::ib_cq) -> ArcBorrow<'a, Cq> {
    // SAFETY: By the caller's promise `inner` came from `Arc::into_raw` and is still owned.
    unsafe { ArcBorrow::from_raw((*ib.cast::<VCq>()).inner) }
}

/// `create_cq`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn create(
    ib: *mut bindings::ib_cq,
    attr: *const bindings::ib_cq_init_attr,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> i32 {
    // SAFETY: Core hands us a valid attribute.
    let cqe = unsafe { (*attr).cqe };
    if cqe == 0 || cqe > MAX_CQE {
        return EINVAL.to_errno();
    }
    // SAFETY: Core has set the device, which outlives its objects.
    let hca = unsafe { hca::from_ib((*ib).device) };
    let limit = hca.shared.lock().hca(hca.index).knobs.max_cqe;
    if !Knobs::allows(limit, cqe) {
        return ENOMEM.to_errno();
    }
    match Cq::new(ib, cqe as usize) {
        Ok(cq) => {
            // SAFETY: Core allocated `size_ib_cq` bytes, which is a `VCq`.
            unsafe {
                (*ib).cqe = cqe as i32;
                (*ib.cast::<VCq>()).inner = cq.into_raw();
            }
            0
        }
        Err(e) => e.to_errno(),
    }
}

/// `destroy_cq`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn destroy(
    ib: *mut bindings::ib_cq,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    // SAFETY: The device outlives its objects.
    let shared: &Shared = unsafe { &hca::from_ib((*ib).device).shared };
    let v = ib.cast::<VCq>();
    // SAFETY: Created earlier, destroyed once: we take back the reference that `create` gave.
    let cq = unsafe { Arc::from_raw((*v).inner) };
    // SAFETY: `v` is ours.
    unsafe { (*v).inner = core::ptr::null() };
    cq.dead.store(true, Release);
    shared.wait_for_delivery();
    0
}

/// `poll_cq`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn poll(
    ib: *mut bindings::ib_cq,
    n: i32,
    wc: *mut bindings::ib_wc,
) -> i32 {
    if n <= 0 {
        return 0;
    }
    // SAFETY: A live queue, and room for `n` completions.
    unsafe { from_ib(ib).poll(core::slice::from_raw_parts_mut(wc, n as usize)) as i32 }
}

/// `req_notify_cq`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn req_notify(
    ib: *mut bindings::ib_cq,
    flags: bindings::ib_cq_notify_flags,
) -> i32 {
    let solicited = flags & bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
        == bindings::ib_cq_notify_flags_IB_CQ_SOLICITED;
    // SAFETY: A live queue.
    let pending = unsafe { from_ib(ib).arm(solicited) };
    let report = flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;
    i32::from(report && pending)
}
