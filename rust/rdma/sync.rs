// SPDX-License-Identifier: GPL-2.0-only

//! Waiting with a deadline, and letting go of a thing that others still use.

use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full};
use kernel::time::msecs_to_jiffies;
use kernel::types::Opaque;

/// Something that happens once and is waited for, with a deadline.
///
/// The kernel crate's `Completion` cannot wait with a deadline.
///
/// C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)
#[pin_data]
pub(crate) struct Latch {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A `struct completion` may be moved to and used from any task.
unsafe impl Send for Latch {}
// SAFETY: As above; it has its own lock.
unsafe impl Sync for Latch {}

impl Latch {
    /// A latch that is not open yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` is valid for writing a `struct completion`.
                unsafe { bindings::init_completion(slot) };
            }),
        })
    }

    /// Wakes all who wait now or later. May be called in any context.
    pub(crate) fn open(&self) {
        // SAFETY: Initialised by `new` and pinned.
        unsafe { bindings::complete_all(self.inner.get()) };
    }

    /// Waits, `ms` milliseconds at the longest; whether the latch is open. Process context.
    pub(crate) fn wait_ms(&self, ms: u32) -> bool {
        // SAFETY: Initialised by `new` and pinned.
        unsafe {
            bindings::wait_for_completion_timeout(self.inner.get(), msecs_to_jiffies(ms)) != 0
        }
    }

    /// Waits without a deadline. Process context.
    pub(crate) fn wait(&self) {
        // SAFETY: Initialised by `new` and pinned.
        unsafe { bindings::wait_for_completion(self.inner.get()) };
    }
}

/// Counts the users of something that goes away: once closed nobody enters, and closing waits for
/// those who are inside.
#[pin_data]
pub(crate) struct Gate {
    /// Users inside, and one for the gate as long as it is not closed.
    users: Atomic<i32>,
    closed: Atomic<bool>,
    #[pin]
    empty: Latch,
}

impl Gate {
    /// An open gate.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            users: Atomic::new(1),
            closed: Atomic::new(false),
            empty <- Latch::new(),
        })
    }

    /// Goes in, where the gate is open. Each success is followed by one [`Gate::leave`].
    pub(crate) fn enter(&self) -> bool {
        self.users.fetch_add(1, Full);
        if self.closed.load(Acquire) {
            self.leave();
            return false;
        }
        true
    }

    /// Goes out.
    pub(crate) fn leave(&self) {
        if self.users.fetch_sub(1, Full) == 1 {
            self.empty.open();
        }
    }

    /// Closes the gate and waits until all have left. Once only; process context.
    pub(crate) fn close(&self) {
        self.closed.xchg(true, Full);
        self.leave();
        self.empty.wait();
    }
}
