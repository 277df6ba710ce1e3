// SPDX-License-Identifier: GPL-2.0-only

//! Function hooks by ftrace: wrappers, which run instead of a function and may call it, and
//! observers, which see its arguments.
//!
//! To wrap a function, do the following:
//!
//! * write an `extern "C"` function of the same signature that begins with [`InFlight::enter`];
//! * make a static [`Ops::wrapper`] of it;
//! * [`Hook::register`] it at the function's address.
//!
//! A call of the original from within this module is not redirected, so the wrapper just calls it; the
//! call may not be the last thing that the wrapper does (`InFlight` sees to that), or the return
//! address would not lie in this module.
//!
//! Unloading: all hooks are unregistered, then [`drain`] waits until nobody is inside a wrapper.
//!
//! C header: [`include/linux/ftrace.h`](srctree/include/linux/ftrace.h)

use super::bindings as rdma;
use core::cell::UnsafeCell;
use kernel::error::to_result;
use kernel::ffi::{c_ulong, c_void};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full};

/// Calls inside a wrapper.
static INFLIGHT: Atomic<i32> = Atomic::new(0);

/// Held for the whole of a wrapper's body: the module's text and state stay as long as it lives.
pub(crate) struct InFlight(());

impl InFlight {
    /// Enters a wrapper.
    pub(crate) fn enter() -> Self {
        INFLIGHT.fetch_add(1, Full);
        Self(())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        INFLIGHT.fetch_sub(1, Full);
    }
}

/// Waits until no task is inside a wrapper or between a hooked function and its wrapper.
///
/// All hooks are unregistered before. Process context.
pub(crate) fn drain() {
    // SAFETY: Process context. After this no task is on its way from a hooked function into a
    // wrapper: it either has counted itself in, or will not come.
    unsafe { rdma::apm_synchronize_rcu_tasks() };
    while INFLIGHT.load(Acquire) != 0 {
        kernel::time::delay::fsleep(kernel::time::Delta::from_millis(5));
    }
    // SAFETY: As above. After this no task is between its count-out and its return.
    unsafe { rdma::apm_synchronize_rcu_tasks() };
}

/// The `ftrace_ops` of one hook, a static.
#[repr(transparent)]
pub(crate) struct Ops(UnsafeCell<rdma::ftrace_ops>);

// SAFETY: Written by `Hook` alone, and by ftrace under its own locks.
unsafe impl Sync for Ops {}

/// What ftrace calls at the entry of a hooked function.
pub(crate) type Callback =
    unsafe extern "C" fn(c_ulong, c_ulong, *mut rdma::ftrace_ops, *mut rdma::ftrace_regs);

impl Ops {
    const fn new(callback: Callback, flags: u32, private: *const ()) -> Self {
        // SAFETY: All-zero is a valid `struct ftrace_ops`.
        let mut ops: rdma::ftrace_ops = unsafe { core::mem::zeroed() };
        ops.func = Some(callback);
        ops.flags = flags as c_ulong;
        ops.private = private.cast_mut().cast::<c_void>();
        Self(UnsafeCell::new(ops))
    }

    /// Ops that send calls from outside this module to `replacement`, a function of the signature of
    /// the one that is hooked.
    pub(crate) const fn wrapper(replacement: *const ()) -> Self {
        Self::new(
            redirect,
            rdma::FTRACE_OPS_FL_IPMODIFY | rdma::FTRACE_OPS_FL_RECURSION,
            replacement,
        )
    }

    /// Ops that call `callback`, in whatever context the function is called: it must not sleep.
    pub(crate) const fn observer(callback: Callback) -> Self {
        Self::new(callback, rdma::FTRACE_OPS_FL_RECURSION, core::ptr::null())
    }
}

/// Sends a call to the wrapper, unless it comes from the wrapper.
///
/// # Safety
///
/// Called by ftrace with ops made by [`Ops::wrapper`].
unsafe extern "C" fn redirect(
    _ip: c_ulong,
    parent: c_ulong,
    ops: *mut rdma::ftrace_ops,
    regs: *mut rdma::ftrace_regs,
) {
    // SAFETY: `ops` and `regs` are valid during the call; `private` was set by `Ops::wrapper` and
    // does not change.
    unsafe {
        if !rdma::apm_in_module(parent) {
            rdma::apm_set_ip(regs, (*ops).private as c_ulong);
        }
    }
}

/// A hook in place; dropping it takes it away, but does not wait for calls in flight.
///
/// # Invariants
///
/// `ops` is registered at one address, and by this alone.
pub(crate) struct Hook {
    ops: &'static Ops,
}

impl Hook {
    /// Puts the hook at the entry of the function at `addr`.
    ///
    /// EBUSY: something else (a livepatch) modifies the same function.
    pub(crate) fn register(ops: &'static Ops, addr: usize) -> Result<Self> {
        let raw = ops.0.get();
        // SAFETY: `ops` is a static that is not registered: callers give each to one hook at a time.
        unsafe {
            to_result(rdma::ftrace_set_filter_ip(raw, addr as c_ulong, 0, 1))?;
            if let Err(e) = to_result(rdma::register_ftrace_function(raw)) {
                rdma::ftrace_free_filter(raw);
                return Err(e);
            }
        }
        // INVARIANT: Just registered.
        Ok(Self { ops })
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        let raw = self.ops.0.get();
        // SAFETY: By the invariant. Once unregistered no callback runs any more (ftrace waits for
        // them), so the filter may be freed.
        unsafe {
            rdma::unregister_ftrace_function(raw);
            rdma::ftrace_free_filter(raw);
        }
    }
}

/// The address of a function of the kernel or of a module that is not exported; `None` where there is
/// none, or several, of that name.
pub(crate) fn symbol(name: &CStr) -> Option<usize> {
    // SAFETY: A NUL-terminated string; process context.
    let addr = unsafe { rdma::apm_symbol(name.as_char_ptr()) };
    (addr != 0).then_some(addr as usize)
}
