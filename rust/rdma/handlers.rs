// SPDX-License-Identifier: GPL-2.0-only

//! Wrappers on the CM handlers of the ULPs, so that an event is seen before the ULP sees it.
//!
//! Which functions these are is learned from the cm_ids that pass; there are few (rdma_cm has one for
//! all that use it). Each gets a slot, until its module leaves or ours does.
//!
//! Locks: `Handlers::slots`, taken with no other lock held; ftrace's own locks are taken under it.

use super::bindings as rdma;
use super::hook::{Hook, InFlight, Ops};
use super::service::Service;
use core::cell::UnsafeCell;
use kernel::bindings;
use kernel::error::to_result;
use kernel::ffi::{c_int, c_ulong, c_void};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::{new_mutex, Mutex};

const SLOTS: usize = 8;

/// A CM handler of a ULP.
type Handler = unsafe extern "C" fn(*mut rdma::ib_cm_id, *const rdma::ib_cm_event) -> c_int;

/// The function that each slot wraps; 0 where none. Set before its hook is there.
static WRAPPED: [Atomic<usize>; SLOTS] = [const { Atomic::new(0) }; SLOTS];
/// The same, once no call of it goes past us any more.
static COVERED: [Atomic<usize>; SLOTS] = [const { Atomic::new(0) }; SLOTS];

fn is_covered(addr: usize) -> bool {
    COVERED.iter().any(|slot| slot.load(Acquire) == addr)
}

static OPS: [Ops; SLOTS] = [
    Ops::wrapper(on_event::<0> as *const ()),
    Ops::wrapper(on_event::<1> as *const ()),
    Ops::wrapper(on_event::<2> as *const ()),
    Ops::wrapper(on_event::<3> as *const ()),
    Ops::wrapper(on_event::<4> as *const ()),
    Ops::wrapper(on_event::<5> as *const ()),
    Ops::wrapper(on_event::<6> as *const ()),
    Ops::wrapper(on_event::<7> as *const ()),
];

/// # Safety
///
/// Runs in the place of the handler in slot `N`, with its arguments.
unsafe extern "C" fn on_event<const N: usize>(
    id: *mut rdma::ib_cm_id,
    event: *const rdma::ib_cm_event,
) -> c_int {
    let inflight = InFlight::enter();
    // SAFETY: The slot was filled before the hook was registered and is emptied only after no call can
    // come here any more. `Handler` is the type of what `cm_id->cm_handler` points to.
    let original: Handler = unsafe {
        core::mem::transmute::<usize, Handler>(match WRAPPED.get(N) {
            Some(slot) => slot.load(Acquire),
            None => return 0,
        })
    };
    let Some(service) = Service::get(&inflight) else {
        // SAFETY: The call as it was.
        return unsafe { original(id, event) };
    };
    // SAFETY: `id` is live and `event` valid during the call.
    let (id_ref, event_ref) = unsafe { (id, &*event) };
    let Some(after) = service.before_event(id_ref, event_ref) else {
        return 0;
    };
    // SAFETY: The call as it was.
    let ret = unsafe { original(id, event) };
    service.after_event(after);
    ret
}

/// The slots.
#[pin_data]
pub(crate) struct Handlers {
    #[pin]
    slots: Mutex<Slots>,
}

struct Slots {
    hooks: [Option<Hook>; SLOTS],
    closed: bool,
}

impl Handlers {
    /// Empty slots.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            slots <- new_mutex!(Slots {
                hooks: [const { None }; SLOTS],
                closed: false,
            }),
        })
    }

    /// Sees to it that the handler of a cm_id is wrapped; whether it is. Process context.
    ///
    /// # Safety
    ///
    /// `id` is a live cm_id.
    pub(crate) unsafe fn cover(&self, id: *mut rdma::ib_cm_id) -> bool {
        // SAFETY: By the function's contract.
        let Some(handler) = (unsafe { (*id).cm_handler }) else {
            return false;
        };
        let addr = handler as usize;
        if is_covered(addr) {
            return true;
        }
        let mut slots = self.slots.lock();
        if slots.closed {
            return false;
        }
        if is_covered(addr) {
            return true;
        }
        let Some((((hook, slot), covered), ops)) = slots
            .hooks
            .iter_mut()
            .zip(&WRAPPED)
            .zip(&COVERED)
            .zip(&OPS)
            .find(|(((hook, _), _), _)| hook.is_none())
        else {
            return false;
        };
        slot.store(addr, Release);
        match Hook::register(ops, addr) {
            Ok(registered) => {
                *hook = Some(registered);
                covered.store(addr, Release);
                true
            }
            Err(e) => {
                slot.store(0, Release);
                pr_warn!("cannot wrap a CM handler: {e:?}\n");
                false
            }
        }
    }

    /// Whether the handler of a cm_id is wrapped.
    ///
    /// # Safety
    ///
    /// `id` is a live cm_id.
    pub(crate) unsafe fn covers(&self, id: *mut rdma::ib_cm_id) -> bool {
        // SAFETY: By the function's contract.
        let handler = unsafe { (*id).cm_handler };
        handler.is_some_and(|h| is_covered(h as usize))
    }

    /// Lets go of the handlers in a module that is leaving. It has destroyed its cm_ids, so no call of
    /// a handler is in flight.
    fn module_going(&self, module: *const bindings::module) {
        let mut slots = self.slots.lock();
        let places = slots.hooks.iter_mut().zip(&WRAPPED).zip(&COVERED);
        for ((hook, slot), covered) in places {
            let addr = slot.load(Acquire);
            // SAFETY: The notifier keeps `module` valid.
            if hook.is_some() && unsafe { rdma::apm_within(addr as c_ulong, module.cast()) } {
                covered.store(0, Release);
                *hook = None;
                slot.store(0, Release);
            }
        }
    }

    /// Takes all wrappers away; calls may still be in flight.
    pub(crate) fn close(&self) {
        let mut slots = self.slots.lock();
        slots.closed = true;
        for (hook, covered) in slots.hooks.iter_mut().zip(&COVERED) {
            covered.store(0, Release);
            *hook = None;
        }
    }
}

struct Notifier(UnsafeCell<bindings::notifier_block>);

// SAFETY: Written by the notifier chain alone, under its own lock.
unsafe impl Sync for Notifier {}

static NOTIFIER: Notifier = {
    // SAFETY: All-zero is a valid `struct notifier_block`.
    let mut block: bindings::notifier_block = unsafe { core::mem::zeroed() };
    block.notifier_call = Some(on_module);
    Notifier(UnsafeCell::new(block))
};

/// The registration for news of modules; dropping it ends it.
pub(crate) struct NotifierRegistration(());

impl NotifierRegistration {
    /// Registers. [`Service::current`] stays until this was dropped.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: A static, registered once at a time.
        to_result(unsafe { bindings::register_module_notifier(NOTIFIER.0.get()) })?;
        Ok(Self(()))
    }
}

impl Drop for NotifierRegistration {
    fn drop(&mut self) {
        // SAFETY: Registered by `new`. No call runs any more when this returns.
        unsafe { bindings::unregister_module_notifier(NOTIFIER.0.get()) };
    }
}

/// # Safety
///
/// Called by the module notifier chain.
unsafe extern "C" fn on_module(
    _block: *mut bindings::notifier_block,
    action: c_ulong,
    module: *mut c_void,
) -> c_int {
    if action as u32 == bindings::module_state_MODULE_STATE_GOING {
        // SAFETY: The notifier is unregistered before the service goes.
        if let Some(service) = unsafe { Service::current() } {
            service.handlers.module_going(module.cast());
        }
    }
    0
}
