// SPDX-License-Identifier: GPL-2.0-only

//! Connections that want to be looked at again later.
//!
//! One timer for all of them: it can be cancelled when the module goes, and ten thousand connections
//! that wait cost no ten thousand timers. A connection has one deadline at most; its own record of it
//! ([`Inner::due`](super::conn::Inner::due)) is written under the connection's mutex together with the
//! plan here.
//!
//! Locks: `Pacer::plan` is a leaf, taken with a connection's mutex held.

use super::bindings as rdma;
use super::conn::{Connection, Inner};
use super::service::Service;
use super::work::OwnedQueue;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::time::{Instant, Monotonic};

/// After how many milliseconds all connections are looked at when memory for a deadline was short.
const FALLBACK_MS: u64 = 1000;

/// Deadlines, and the clock that they are measured by.
#[pin_data]
pub(crate) struct Pacer {
    epoch: Instant<Monotonic>,
    #[pin]
    plan: Mutex<Plan>,
}

struct Plan {
    /// By deadline and address of the connection.
    due: RBTree<(u64, usize), Arc<Connection>>,
    /// When the timer fires; `None` where it is not set.
    timer: Option<u64>,
    /// A deadline could not be noted: all are looked at when the timer fires.
    everybody: bool,
    closed: bool,
}

impl Pacer {
    /// Without deadlines.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            epoch: Instant::now(),
            plan <- new_mutex!(Plan {
                due: RBTree::new(),
                timer: None,
                everybody: false,
                closed: false,
            }),
        })
    }

    /// Milliseconds since the module was loaded.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(0)
    }

    /// Has a connection looked at again at `due`, in place of an earlier wish; `None`: no more. `inner`
    /// is that connection's.
    pub(crate) fn set(
        &self,
        queue: &OwnedQueue,
        conn: &Arc<Connection>,
        inner: &mut Inner,
        due: Option<u64>,
    ) {
        if inner.due == due {
            return;
        }
        let place = Arc::as_ptr(conn) as usize;
        // Before the lock: may wait for memory.
        let node = due.map(|due| RBTreeNode::new((due, place), conn.clone(), GFP_KERNEL));
        let mut plan = self.plan.lock();
        let old = inner
            .due
            .take()
            .and_then(|before| plan.due.remove(&(before, place)));
        let mut late = None;
        if !plan.closed {
            match (due, node) {
                (Some(at), Some(Ok(node))) => {
                    late = plan.due.insert(node);
                    inner.due = Some(at);
                    self.arm(&mut plan, queue, at);
                }
                (Some(_), _) => {
                    plan.everybody = true;
                    let at = self.now().saturating_add(FALLBACK_MS);
                    self.arm(&mut plan, queue, at);
                }
                (None, _) => {}
            }
        }
        drop(plan);
        // The last reference to another connection may go here.
        drop((old, late));
    }

    /// Sets the timer, where it is not set to an earlier time.
    fn arm(&self, plan: &mut Plan, queue: &OwnedQueue, at: u64) {
        if plan.timer.is_some_and(|timer| timer <= at) {
            return;
        }
        plan.timer = Some(at);
        queue.tick_in(at.saturating_sub(self.now()));
    }

    /// Queues the connections whose time has come.
    fn tick(&self, service: &Service) {
        let now = self.now();
        let everybody = {
            let mut plan = self.plan.lock();
            plan.timer = None;
            core::mem::take(&mut plan.everybody)
        };
        if everybody {
            service.table.for_each(|conn| service.wake(conn));
        }
        loop {
            let mut plan = self.plan.lock();
            if plan.closed {
                return;
            }
            let first = plan
                .due
                .cursor_lower_bound(&(0, 0))
                .map(|cursor| *cursor.current().0);
            match first {
                None => return,
                Some((due, _)) if due > now => return self.arm(&mut plan, &service.queue, due),
                Some(key) => {
                    let conn = plan.due.remove(&key);
                    drop(plan);
                    if let Some(conn) = conn {
                        service.wake(&conn);
                    }
                }
            }
        }
    }

    /// Drops all deadlines and takes no more. Process context.
    pub(crate) fn close(&self) {
        let mut plan = self.plan.lock();
        plan.closed = true;
        let due = core::mem::replace(&mut plan.due, RBTree::new());
        drop(plan);
        drop(due);
        // SAFETY: Process context; waits for a tick that runs.
        unsafe { rdma::apm_tick_stop() };
    }
}

/// The timer of the C side has fired. Runs on the service's own queue.
///
/// # Safety
///
/// Called by the timer's work only.
#[no_mangle]
unsafe extern "C" fn ib_cm_apm_tick() {
    // SAFETY: The timer is stopped by `Pacer::close` before the state goes.
    if let Some(service) = unsafe { Service::current() } {
        service.pacer.tick(service);
    }
}
