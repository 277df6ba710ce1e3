// SPDX-License-Identifier: GPL-2.0-only

//! Nudges: a packet of ours on a ULP's connection, so that the peer's HCA sees where it comes from.
//!
//! A nudge is a zero-length RDMA WRITE, signaled, whose `ib_cqe` is ours. After a migration it carries
//! MigReq to the peer at once, and after a re-arm it takes both ends from REARM to ARMED. Nothing is
//! written and no key is checked at the peer, but its QP has to admit RDMA WRITE: the kernel's CM sets
//! that for every connection (`cm_init_qp_init_attr`).
//!
//! # The life of its memory
//!
//! The memory is made with the QP, and is used by the HCA's driver until the completion was delivered.
//! That may be much later (a CQ in IB_POLL_DIRECT is polled when its ULP likes), or never (a driver
//! drops the completions of a destroyed QP). So:
//!
//! * a QP that is destroyed with all nudges completed: the memory is freed when the destruction has
//!   returned;
//! * with one under way: it is an orphan and stays with the CQ until it was completed or the CQ was
//!   freed, after which nothing is delivered;
//! * a module that is unloaded with one under way: `cqe->done` is made to point to
//!   `ib_drain_qp_done` of ib_core, which completes a `struct completion` that follows the `ib_cqe`.
//!   Here one does, and nobody waits for it. The memory, a few hundred bytes, is left behind where the
//!   completion has not come by then.
//!
//! Why that function: it has the type of `done`, and ib_core itself calls it through the pointer, so an
//! indirect call to it passes IBT, kCFI and FineIBT; ib_core is there as long as there is a CQ; it may
//! be called in any context, and touches nothing but what it was given. Where it cannot be found there
//! are no nudges. No reference to the module is held for a nudge: an idle SRP session would pin it.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::bindings as rdma;
use super::events::Hint;
use super::service::Service;
use super::stats;
use crate::apm::stats::Stat;
use core::cell::{Cell, UnsafeCell};
use core::mem::{offset_of, size_of};
use core::ptr::NonNull;
use kernel::bindings;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::barrier::{smp_mb, Write};
use kernel::types::Opaque;

/// The type of `ib_cqe::done`.
type Done = unsafe extern "C" fn(*mut rdma::ib_cq, *mut rdma::ib_wc);

/// One nudge. Begins as `struct ib_drain_cqe` of ib_core does.
#[repr(C)]
struct Nudge {
    cqe: UnsafeCell<rdma::ib_cqe>,
    /// Initialised when the nudge is disowned.
    completion: Opaque<bindings::completion>,
    /// Under way: the driver has its address, or is about to get it.
    posted: Atomic<bool>,
    /// Its number, while it is under way.
    seq: Atomic<u32>,
    owner: NonNull<Inner>,
}

// What `ib_drain_qp_done` relies on.
const _: () = assert!(offset_of!(Nudge, cqe) == 0);
const _: () = assert!(offset_of!(Nudge, completion) == size_of::<rdma::ib_cqe>());

struct Inner {
    device: usize,
    /// Number of the QP, 0 once it is destroyed.
    qpn: Atomic<u32>,
    /// Number of the last nudge begun.
    seq: Atomic<u32>,
    /// Number of the last one that the peer has acknowledged.
    acked: Atomic<u32>,
    disowned: Atomic<bool>,
    nudges: KVec<Nudge>,
    /// The next one of a [`Stack`].
    next: Cell<Option<NonNull<Inner>>>,
}

/// The nudges of one QP.
///
/// Dropping it leaks the memory, since a driver may hold its address: [`Nudges::free`] frees it.
///
/// # Invariants
///
/// The pointer came from `KBox::into_raw` and is owned by this. `nudges` is never moved nor resized.
pub(crate) struct Nudges(NonNull<Inner>);

// SAFETY: Atomics, but for `next`, which only the owner of a `Stack` uses, and `cqe`, written before the
// first post and by `disown`.
unsafe impl Send for Nudges {}
// SAFETY: As above.
unsafe impl Sync for Nudges {}

/// A nudge that was begun: to be posted, exactly once.
pub(crate) struct Begun {
    nudge: NonNull<Nudge>,
    /// Its number.
    pub(crate) seq: u32,
}

impl Nudges {
    /// Memory for `count` nudges of a QP that is about to be made.
    pub(crate) fn new(device: *mut rdma::ib_device, count: u32) -> Result<Self> {
        let inner = KBox::new(
            Inner {
                device: device as usize,
                qpn: Atomic::new(0),
                seq: Atomic::new(0),
                acked: Atomic::new(0),
                disowned: Atomic::new(false),
                nudges: KVec::with_capacity(count as usize, GFP_KERNEL)?,
                next: Cell::new(None),
            },
            GFP_KERNEL,
        )?;
        let owner = NonNull::from(&*inner);
        let mut inner = inner;
        for _ in 0..count {
            let nudge = Nudge {
                cqe: UnsafeCell::new(rdma::ib_cqe { done: Some(done) }),
                completion: Opaque::uninit(),
                posted: Atomic::new(false),
                seq: Atomic::new(0),
                owner,
            };
            inner.nudges.push(nudge, GFP_KERNEL)?;
        }
        let raw = KBox::into_raw(inner);
        // INVARIANT: As said; all nudges were pushed.
        NonNull::new(raw).map(Self).ok_or(ENOMEM)
    }

    fn inner(&self) -> &Inner {
        // SAFETY: By the invariant.
        unsafe { self.0.as_ref() }
    }

    /// How many a QP may have under way.
    pub(crate) fn len(&self) -> u32 {
        // Made for a `u32`.
        self.inner().nudges.len() as u32
    }

    /// Whose nudges these are.
    pub(crate) fn set_qpn(&self, qpn: u32) {
        self.inner().qpn.store(qpn, Relaxed);
    }

    /// Begins a nudge; `None` where all are under way. The caller serialises calls, also with those of
    /// [`Nudges::disown`].
    pub(crate) fn begin(&self) -> Option<Begun> {
        let inner = self.inner();
        let nudge = inner.nudges.iter().find(|n| !n.posted.load(Acquire))?;
        let seq = inner.seq.load(Relaxed).wrapping_add(1);
        inner.seq.store(seq, Relaxed);
        nudge.seq.store(seq, Relaxed);
        nudge.posted.store(true, Relaxed);
        Some(Begun {
            nudge: NonNull::from(nudge),
            seq,
        })
    }

    /// Number of the last nudge that the peer has acknowledged, 0 where none.
    pub(crate) fn acked(&self) -> u32 {
        self.inner().acked.load(Acquire)
    }

    /// The QP is destroyed: what is completed now says nothing about a QP.
    pub(crate) fn orphan(&self) {
        self.inner().qpn.store(0, Relaxed);
    }

    /// Whether no nudge is under way.
    pub(crate) fn idle(&self) -> bool {
        let inner = self.inner();
        let disowned = inner.disowned.load(Acquire);
        inner.nudges.iter().all(|n| {
            !n.posted.load(Acquire)
                // SAFETY: Initialised where disowned.
                || (disowned && unsafe { bindings::completion_done(n.completion.get()) })
        })
    }

    /// Sees to it that a completion from now on does not come to this module; calls that are on their
    /// way still do, until [`super::hook::drain`] has returned. No nudge is begun after this.
    pub(crate) fn disown(&self, harmless: Harmless) {
        let inner = self.inner();
        if inner.disowned.load(Acquire) {
            return;
        }
        for nudge in &inner.nudges {
            // SAFETY: `completion` is looked at by nobody before `done` points to that function. The
            // pointer is read by whoever polls the CQ, at any time, and written in one go.
            unsafe {
                bindings::init_completion(nudge.completion.get());
                let done = &raw mut (*nudge.cqe.get()).done;
                smp_mb(Write);
                done.write_volatile(Some(harmless.0));
            }
        }
        inner.disowned.store(true, Release);
    }

    /// Frees the memory.
    ///
    /// # Safety
    ///
    /// Either none is under way and none is begun any more, or no completion is delivered any more.
    pub(crate) unsafe fn free(self) {
        // SAFETY: By the invariant, and by the function's contract nobody else has the address.
        drop(unsafe { KBox::from_raw(self.0.as_ptr()) });
    }

    /// Leaves the memory behind.
    pub(crate) fn leak(self) {
        // SAFETY: The start of an allocation. What it points to is found through it.
        unsafe { rdma::apm_not_leak(self.0.as_ptr().cast()) };
    }
}

impl Begun {
    /// Posts the nudge. In any context.
    ///
    /// # Safety
    ///
    /// `qp` is the QP that the nudge is one of, and is not destroyed during this call.
    pub(crate) unsafe fn post(self, qp: *mut rdma::ib_qp) -> Result {
        // SAFETY: By the function's contract the QP and so the nudge is there.
        let nudge = unsafe { self.nudge.as_ref() };
        // SAFETY: As above. The `ib_cqe` stays until the completion.
        let ret = to_result(unsafe { rdma::apm_post_nudge(qp, nudge.cqe.get()) });
        if ret.is_err() {
            stats::count(Stat::NudgesFailed);
            nudge.posted.store(false, Release);
        } else {
            stats::count(Stat::Nudges);
        }
        ret
    }
}

/// # Safety
///
/// Called for a completion of a nudge that was posted, by whoever polls the CQ, in any context.
unsafe extern "C" fn done(_cq: *mut rdma::ib_cq, wc: *mut rdma::ib_wc) {
    // SAFETY: `wr_cqe` is what was posted, the beginning of a nudge, whose memory stays until `posted` is
    // unset.
    let (device, qpn, ok) = unsafe {
        let nudge = &*((*wc).__bindgen_anon_1.bindgen_union_field as *const Nudge);
        let inner = nudge.owner.as_ref();
        let ok = (*wc).status == rdma::ib_wc_status_IB_WC_SUCCESS;
        if ok {
            inner.acked.store(nudge.seq.load(Relaxed), Release);
        }
        let about = (inner.device, inner.qpn.load(Relaxed), ok);
        // The last access: it may be freed from here on.
        nudge.posted.store(false, Release);
        about
    };
    stats::count(if ok {
        Stat::NudgesAcked
    } else {
        Stat::NudgesFailed
    });
    if ok && qpn != 0 {
        // SAFETY: Unloading disowns all nudges and then waits until nobody is in here.
        if let Some(service) = unsafe { Service::current() } {
            service.hint(device as *mut rdma::ib_device, qpn, Hint::Nudged);
        }
    }
}

/// What `done` is made to point to when the module leaves a nudge behind.
#[derive(Clone, Copy)]
pub(crate) struct Harmless(Done);

impl Harmless {
    /// Name of the function.
    pub(crate) const SYMBOL: &'static CStr = c"ib_drain_qp_done";

    /// The function at `addr`, tried out. EINVAL: it does not do what it should.
    ///
    /// # Safety
    ///
    /// `addr` is the address of ib_core's function of that name.
    pub(crate) unsafe fn new(addr: usize) -> Result<Self> {
        // SAFETY: That function is of this type.
        let function = unsafe { core::mem::transmute::<usize, Done>(addr) };
        let nudges = Nudges::new(core::ptr::null_mut(), 1)?;
        let mut wc = rdma::ib_wc::default();
        let begun = nudges.begin();
        let completed = begun.is_some_and(|begun| {
            wc.__bindgen_anon_1.bindgen_union_field = begun.nudge.as_ptr() as u64;
            nudges.disown(Self(function));
            // SAFETY: What a CQ that is polled calls it with; it does not look at the CQ.
            unsafe { function(core::ptr::null_mut(), &mut wc) };
            nudges.idle()
        });
        // SAFETY: No driver knows of it.
        unsafe { nudges.free() };
        completed.then_some(Self(function)).ok_or(EINVAL)
    }
}

/// Nudges of several QPs, with no memory but their own.
#[derive(Default)]
pub(crate) struct Stack(Option<NonNull<Inner>>);

// SAFETY: Owns what is in it, as `Nudges` does.
unsafe impl Send for Stack {}

impl Stack {
    /// Adds those of one QP.
    pub(crate) fn push(&mut self, nudges: Nudges) {
        nudges.inner().next.set(self.0);
        self.0 = Some(nudges.0);
    }

    /// Takes those of one QP.
    pub(crate) fn pop(&mut self) -> Option<Nudges> {
        // INVARIANT: Ownership goes from the stack to the result.
        let nudges = Nudges(self.0?);
        self.0 = nudges.inner().next.take();
        Some(nudges)
    }

    /// Adds all of another.
    pub(crate) fn append(&mut self, mut other: Stack) {
        while let Some(nudges) = other.pop() {
            self.push(nudges);
        }
    }

    /// Calls `f` for each.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Nudges)) {
        let mut at = self.0;
        while let Some(inner) = at {
            // For this call only; dropping it does nothing.
            let nudges = Nudges(inner);
            f(&nudges);
            at = nudges.inner().next.get();
        }
    }
}
