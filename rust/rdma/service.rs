// SPDX-License-Identifier: GPL-2.0-only

//! The module's state, and how its parts are started and stopped.
//!
//! Unloading, at any time and under load: held REQs are sent, and no more get an alternate; those that
//! have one are answered; all known connections are let go, so that nothing of ours touches a cm_id
//! from here on; CQs get back what was reserved in them; the hooks are taken away, completions that
//! may still come are led past this module, and both are drained; then the device client, which ends
//! all questions to subnet administration; then the workqueue. Only then is this state freed.

use super::bindings as rdma;
use super::device::{device_name, ClientRegistration, Devices};
use super::entry;
use super::entry_qp;
use super::events::{Events, QP_EVENTS};
use super::handlers::{Handlers, NotifierRegistration};
use super::hook::{self, Hook, InFlight, Ops};
use super::lookup::Cache;
use super::nudge::Harmless;
use super::older::Older;
use super::pacer::Pacer;
use super::recv;
use super::requests::Requests;
use super::resolve::{NodeOf, Standbys};
use super::show;
use super::slots::Slots;
use super::table::Table;
use super::work::OwnedQueue;
use crate::apm::path::Primary;
use core::mem::size_of;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::Arc;
use kernel::time::{delay::fsleep, Delta};

/// Address of the state, 0 where there is none.
static CURRENT: Atomic<usize> = Atomic::new(0);

/// The module's state.
#[pin_data]
pub(crate) struct Service {
    /// HCAs with an InfiniBand port.
    #[pin]
    pub(crate) devices: Devices,
    /// Connections.
    #[pin]
    pub(crate) table: Table,
    /// Alternates found and being looked for.
    #[pin]
    pub(crate) cache: Cache<Primary>,
    /// Alternates for connections that are up.
    #[pin]
    pub(crate) standbys: Cache<Standbys>,
    /// Nodes of ports.
    #[pin]
    pub(crate) nodes: Cache<NodeOf>,
    /// Wrapped CM handlers.
    #[pin]
    pub(crate) handlers: Handlers,
    /// REQs of peers.
    #[pin]
    pub(crate) requests: Requests,
    /// Connections older than the module.
    #[pin]
    pub(crate) older: Older,
    /// Connections to be looked at later.
    #[pin]
    pub(crate) pacer: Pacer,
    /// Room for nudges.
    #[pin]
    pub(crate) slots: Slots,
    /// Hints about QPs.
    pub(crate) events: Arc<Events>,
    /// The module is going: nothing new is begun.
    pub(crate) stopping: Atomic<bool>,
    /// Where all work is done that does not belong to a call of somebody else.
    pub(crate) queue: OwnedQueue,
}

impl Service {
    /// The state, for a wrapper.
    pub(crate) fn get(_inflight: &InFlight) -> Option<&Service> {
        // SAFETY: The hooks are drained before the state is freed, and the borrow ends before the
        // wrapper is left.
        unsafe { Self::current() }
    }

    /// The state, for callbacks.
    ///
    /// # Safety
    ///
    /// The caller runs in a hook, a callback or a work whose end is waited for before the state is
    /// freed ([`Running`]), and uses the result only there.
    pub(crate) unsafe fn current<'a>() -> Option<&'a Service> {
        let addr = CURRENT.load(Acquire) as *const Service;
        // SAFETY: By the function's contract; the address was stored when the state was complete.
        unsafe { addr.as_ref() }
    }
}

impl Service {
    /// Forgets what subnet administration has said to a device: something has changed.
    pub(crate) fn forget_answers(&self, dev: *mut rdma::ib_device) {
        self.cache.forget(dev);
        self.standbys.forget(dev);
        self.nodes.forget(dev);
    }

    /// Looks for connections older than the module: at load, before any can be younger.
    fn count_older(&self) -> Result {
        let mut result = Ok(());
        self.devices
            .for_each(|device| match self.older.find(device) {
                Ok(0) => {}
                Ok(count) => {
                    // SAFETY: Inside the device's gate.
                    let name = unsafe { device_name(device.raw()) };
                    pr_info!(
                        "{name}: {count} connections older than the module stay as they are\n"
                    );
                }
                Err(e) => result = Err(e),
            });
        result
    }
}

/// Makes the state known to callbacks; dropping it takes it back.
struct Published(#[allow(dead_code)] Arc<Service>);

impl Published {
    fn new(service: &Arc<Service>) -> Self {
        CURRENT.store(Arc::as_ptr(service) as usize, Release);
        Self(service.clone())
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        CURRENT.store(0, Release);
    }
}

/// The hooks; dropping them makes sure that nobody is inside a wrapper any more.
struct Hooks {
    service: Arc<Service>,
    list: KVec<Hook>,
}

impl Hooks {
    fn add(&mut self, name: &str, ops: &'static Ops, addr: usize) -> Result {
        let hook = Hook::register(ops, addr).inspect_err(|e| {
            pr_err!("cannot hook {name}: {e:?}\n");
        })?;
        Ok(self.list.push(hook, GFP_KERNEL)?)
    }
}

/// How often, at intervals of 10 ms, it is looked whether REQs with an alternate were answered.
const SETTLE_TRIES: u32 = 200;

impl Hooks {
    /// Waits, for two seconds at the longest, until the REQs with an alternate that were sent are
    /// answered: a peer that refuses one would fail the connection if nobody sent it again. And until
    /// the LAPs to ourselves have come back: ib_cm alone would take them for the peer's.
    fn settle(&self) {
        for _ in 0..SETTLE_TRIES {
            let mut open = false;
            self.service
                .table
                .for_each(|conn| open |= conn.lock().is_owed_an_answer());
            if !open {
                return;
            }
            fsleep(Delta::from_millis(10));
        }
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        // From here on no REQ gets an alternate, none is held, and no LAP begins its way.
        self.service.stopping.store(true, Release);
        self.service.cache.stop();
        self.service.standbys.stop();
        self.service.nodes.stop();
        self.settle();
        self.service
            .table
            .for_each(|conn| self.service.follow_at_last(conn));
        self.service.table.close();
        self.service.slots.close();
        self.list.clear();
        self.service.handlers.close();
        self.service.slots.disown();
        hook::drain();
        self.service.slots.free();
    }
}

/// Runs what is queued to its end when dropped.
struct Drained(Arc<Service>);

impl Drop for Drained {
    fn drop(&mut self) {
        self.0.pacer.close();
        self.0.queue.drain();
    }
}

/// The module at work. The fields are dropped in the order in which they stand here: see the top of
/// this file for why.
pub(crate) struct Running {
    _files: show::Files,
    _hooks: Hooks,
    _notifier: NotifierRegistration,
    _client: ClientRegistration,
    _drained: Drained,
    _published: Published,
}

fn find_symbol(name: &CStr) -> Result<usize> {
    hook::symbol(name).ok_or_else(|| {
        pr_err!(
            "this kernel has no hook point {}\n",
            name.to_str().unwrap_or("?")
        );
        ENOENT
    })
}

/// What completes a nudge once this module is gone; without it there are no nudges.
fn harmless() -> Option<Harmless> {
    let found = hook::symbol(Harmless::SYMBOL).ok_or(ENOENT);
    // SAFETY: The address of that function.
    let harmless = found.and_then(|addr| unsafe { Harmless::new(addr) });
    harmless
        .inspect_err(|e| {
            pr_warn!("ib_drain_qp_done cannot be used, so there are no nudges: {e:?}\n")
        })
        .ok()
}

/// Checks that the bindings were made for this kernel.
fn check_layout() -> Result {
    let mut c = rdma::apm_layout::default();
    // SAFETY: Writes the structure.
    unsafe { rdma::apm_layout(&mut c) };
    let same = c.ib_cm_id == size_of::<rdma::ib_cm_id>()
        && c.ib_qp == size_of::<rdma::ib_qp>()
        && c.ib_qp_attr == size_of::<rdma::ib_qp_attr>()
        && c.ib_cm_event == size_of::<rdma::ib_cm_event>()
        && c.ib_cm_req_param == size_of::<rdma::ib_cm_req_param>()
        && c.ib_cq == size_of::<rdma::ib_cq>()
        && c.ib_qp_init_attr == size_of::<rdma::ib_qp_init_attr>()
        && c.ftrace_ops == size_of::<rdma::ftrace_ops>();
    if !same {
        pr_err!("the Rust bindings do not fit this kernel's structures\n");
        return Err(EINVAL);
    }
    Ok(())
}

impl Running {
    /// Starts. What was started before something fails is stopped again.
    pub(crate) fn new() -> Result<Self> {
        check_layout()?;
        let destroy_id = find_symbol(c"cm_destroy_id")?;
        let recv_handler = find_symbol(c"cm_recv_handler")?;
        let qp_event = find_symbol(c"__ib_qp_event_handler")?;
        let events = Events::new()?;
        let queue = OwnedQueue::new()?;
        let service = Arc::pin_init(
            pin_init!(Service {
                devices <- Devices::new(),
                table <- Table::new(),
                cache <- Cache::new(),
                standbys <- Cache::new(),
                nodes <- Cache::new(),
                handlers <- Handlers::new(),
                requests <- Requests::new(),
                older <- Older::new(),
                pacer <- Pacer::new(),
                slots <- Slots::new(harmless()),
                events,
                stopping: Atomic::new(false),
                queue,
            }),
            GFP_KERNEL,
        )?;
        let published = Published::new(&service);
        let drained = Drained(service.clone());
        let client = ClientRegistration::new()?;
        let notifier = NotifierRegistration::new()?;
        service.count_older()?;
        let mut hooks = Hooks {
            service: service.clone(),
            list: KVec::new(),
        };
        // The end of a cm_id first: no connection is known before it is seen.
        entry::DESTROY_ID.store(destroy_id, Release);
        hooks.add("cm_destroy_id", &entry::DESTROY, destroy_id)?;
        hooks.add("__ib_qp_event_handler", &QP_EVENTS, qp_event)?;
        recv::RECV_HANDLER.store(recv_handler, Release);
        hooks.add("cm_recv_handler", &recv::RECV, recv_handler)?;
        hooks.add(
            "ib_cm_init_qp_attr",
            &entry::ATTR,
            rdma::ib_cm_init_qp_attr as usize,
        )?;
        hooks.add("ib_send_cm_rep", &entry::REP, rdma::ib_send_cm_rep as usize)?;
        hooks.add("ib_send_cm_req", &entry::REQ, rdma::ib_send_cm_req as usize)?;
        // Ends before beginnings here, too.
        for (name, ops, addr) in entry_qp::hooks() {
            hooks.add(name, ops, addr)?;
        }
        let files = show::Files::new(&service)?;
        Ok(Self {
            _files: files,
            _hooks: hooks,
            _notifier: notifier,
            _client: client,
            _drained: drained,
            _published: published,
        })
    }
}
