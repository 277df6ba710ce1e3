// SPDX-License-Identifier: GPL-2.0-only

//! Hints that a QP is worth a look, from any context to the workqueue.
//!
//! `__ib_qp_event_handler` is observed; some drivers call it in hard interrupt context. The observer
//! notes device, QP number and event in a slot of a fixed array, without lock or allocation, and
//! queues the work that queues the connections of those QPs. Where no slot is free all are queued. What
//! is then done follows from the QP's state as the HCA reports it, not from the hint (`attend.rs`).
//!
//! Locks: none of its own.

use super::bindings as rdma;
use super::hook::Ops;
use super::service::Service;
use super::stats;
use super::table::qp_key;
use crate::apm::stats::Stat;
use kernel::ffi::c_ulong;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::Arc;
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

const SLOTS: usize = 2048;
/// Slots tried before giving up.
const PROBES: usize = 32;

/// Why a QP is worth a look.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Hint {
    /// IB_EVENT_PATH_MIG.
    PathMig = 1,
    /// IB_EVENT_PATH_MIG_ERR.
    PathMigErr = 2,
    /// It may have become ARMED, or the CM may be told now what it could not be told before.
    Look = 3,
    /// The peer has acknowledged a nudge.
    Nudged = 4,
}

/// Hints not yet acted on.
#[pin_data]
pub(crate) struct Events {
    /// [`qp_key`] and hint; 0 where free.
    slots: [Atomic<u64>; SLOTS],
    overflow: Atomic<bool>,
    #[pin]
    work: Work<Events>,
}

impl_has_work! {
    impl HasWork<Self> for Events { self.work }
}

impl Events {
    /// No hints.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                slots: [const { Atomic::new(0) }; SLOTS],
                overflow: Atomic::new(false),
                work <- new_work!("Events::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Notes a hint; the caller queues the work. Any context.
    fn note(&self, key: u64, hint: Hint) {
        let value = key << 8 | hint as u64;
        let start = (key as usize) % SLOTS;
        for slot in self.slots.iter().cycle().skip(start).take(PROBES) {
            match slot.cmpxchg(0, value, Full) {
                Ok(_) => return,
                Err(other) if other == value => return,
                Err(_) => {}
            }
        }
        self.overflow.xchg(true, Full);
    }
}

impl WorkItem for Events {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // SAFETY: A work of the service's own queue.
        let Some(service) = (unsafe { Service::current() }) else {
            return;
        };
        if this.overflow.xchg(false, Full) {
            stats::count(Stat::EventOverflow);
            service.table.for_each(|conn| {
                // Whose event was lost is not known: what the QP says decides.
                conn.note(|news| news.path_mig = true);
                service.wake(conn);
            });
        }
        for slot in &this.slots {
            if slot.load(Relaxed) == 0 {
                continue;
            }
            let value = slot.xchg(0, Full);
            let hint = match value & 0xff {
                1 => Hint::PathMig,
                2 => Hint::PathMigErr,
                4 => Hint::Nudged,
                _ => Hint::Look,
            };
            if let Some(conn) = service.table.find_qp(value >> 8) {
                conn.note(|news| match hint {
                    Hint::PathMig => news.path_mig = true,
                    Hint::PathMigErr => news.path_mig_err = true,
                    Hint::Nudged | Hint::Look => {}
                });
                service.wake(&conn);
            }
        }
    }
}

impl Service {
    /// Has a QP looked at soon. Any context.
    pub(crate) fn hint(&self, device: *mut rdma::ib_device, qpn: u32, hint: Hint) {
        self.events.note(qp_key(device, qpn), hint);
        let _ = self.queue.enqueue(self.events.clone());
    }
}

/// Observer of `__ib_qp_event_handler(struct ib_event *, void *)`.
pub(crate) static QP_EVENTS: Ops = Ops::observer(on_qp_event);

/// # Safety
///
/// Called by ftrace at the entry of `__ib_qp_event_handler`, in any context.
unsafe extern "C" fn on_qp_event(
    _ip: c_ulong,
    _parent: c_ulong,
    _ops: *mut rdma::ftrace_ops,
    regs: *mut rdma::ftrace_regs,
) {
    // SAFETY: The first argument is an event of a QP, both valid during the call. The observer is
    // unregistered before the service goes.
    unsafe {
        let event = &*(rdma::apm_arg(regs, 0) as *const rdma::ib_event);
        let hint = match event.event {
            rdma::ib_event_type_IB_EVENT_PATH_MIG => Hint::PathMig,
            rdma::ib_event_type_IB_EVENT_PATH_MIG_ERR => {
                stats::count(Stat::PathMigErr);
                Hint::PathMigErr
            }
            _ => return,
        };
        if let Some(service) = Service::current() {
            service.hint(event.device, (**event.element.qp.as_ref()).qp_num, hint);
        }
    }
}
