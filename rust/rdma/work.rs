// SPDX-License-Identifier: GPL-2.0-only

//! A workqueue of our own, so that unloading can wait for all that was queued.

use super::bindings as rdma;
use core::ptr::NonNull;
use kernel::bindings;
use kernel::ffi::c_ulong;
use kernel::prelude::*;
use kernel::workqueue::{Queue, RawWorkItem};

/// An unbound workqueue; dropping it runs what is queued to its end.
///
/// # Invariants
///
/// The pointer is a workqueue that lives as long as this.
pub(crate) struct OwnedQueue(NonNull<bindings::workqueue_struct>);

// SAFETY: A workqueue may be used from any task.
unsafe impl Send for OwnedQueue {}
// SAFETY: As above.
unsafe impl Sync for OwnedQueue {}

impl OwnedQueue {
    /// Makes the queue.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No preconditions.
        let queue = unsafe { rdma::apm_alloc_workqueue() };
        // INVARIANT: Just made, freed by `drop` alone.
        Ok(Self(NonNull::new(queue.cast()).ok_or(ENOMEM)?))
    }

    /// Queues `work`. May be called in any context.
    pub(crate) fn enqueue<W, const ID: u64>(&self, work: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        // SAFETY: By the invariant.
        unsafe { Queue::from_raw(self.0.as_ptr()) }.enqueue(work)
    }

    /// Sets the module's one timer to fire in `ms` milliseconds, on this queue (`pacer.rs`).
    pub(crate) fn tick_in(&self, ms: u64) {
        // SAFETY: By the invariant; the timer is stopped before the queue goes.
        unsafe { rdma::apm_tick_in(self.0.as_ptr().cast(), ms as c_ulong) };
    }

    /// Waits until nothing is queued or running, what queues itself again included.
    pub(crate) fn drain(&self) {
        // SAFETY: By the invariant; process context, as for all who stop the module or a device.
        unsafe { bindings::drain_workqueue(self.0.as_ptr()) };
    }
}

impl Drop for OwnedQueue {
    fn drop(&mut self) {
        // SAFETY: By the invariant; nobody can name the queue any more.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}
