// SPDX-License-Identifier: GPL-2.0-only

//! Searches for an alternate, shared by the connections that want the same one.
//!
//! The first connection starts a search on the workqueue; all who ask for the same path wait for it,
//! at most until `req_hold_ms` after the search began. From then on nobody waits on that port until
//! subnet administration has answered something.
//!
//! Locks: `Cache::list`, then `Resolution::result`; leaves both.

use super::bindings as rdma;
use super::device::{Device, Devices};
use super::sa::Answer;
use super::service::Service;
use super::stats;
use super::sync::Latch;
use super::work::OwnedQueue;
use crate::apm::reason::Reason;
use crate::apm::search::{Alternate, Next, Primary, Search};
use crate::apm::stats::Stat;
use crate::wire::records::{ForwardingRecord, LinkRecord, NodeRecord, PathRecord, PortInfoRecord};
use crate::wire::sa::{Failure, Query};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Release};
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::time::{Instant, Monotonic};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// How long an alternate that was found is used, in milliseconds, if no event says otherwise.
const FOUND_MS: i64 = 30_000;
/// How long it is believed that there is none.
const NONE_MS: i64 = 2_000;
/// Different paths remembered.
const CAPACITY: usize = 512;

type Found = core::result::Result<Alternate, Reason>;

/// One search.
#[pin_data]
pub(crate) struct Resolution {
    device: usize,
    primary: Primary,
    born: Instant<Monotonic>,
    #[pin]
    done: Latch,
    /// With the time at which it was found out; `None` until then, or when the search was given up.
    #[pin]
    result: Mutex<Option<(Found, Instant<Monotonic>)>>,
    #[pin]
    work: Work<Resolution>,
}

impl_has_work! {
    impl HasWork<Self> for Resolution { self.work }
}

impl WorkItem for Resolution {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // SAFETY: A work of the service's own queue.
        let service = unsafe { Service::current() };
        let found = match service.and_then(|s| s.devices.enter(this.device as *mut _)) {
            Some(device) => this.search(&device),
            None => Err(Reason::CmState),
        };
        *this.result.lock() = Some((found, Instant::now()));
        this.done.open();
    }
}

impl Resolution {
    fn new(device: *mut rdma::ib_device, primary: Primary) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                device: device as usize,
                primary,
                born: Instant::now(),
                done <- Latch::new(),
                result <- new_mutex!(None),
                work <- new_work!("Resolution::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// A few kilobytes: never on the stack while subnet administration is asked.
    #[inline(never)]
    fn begin(&self, device: &Device) -> core::result::Result<KBox<Search>, Reason> {
        let ports = device
            .local_ports(self.primary.pkey)
            .map_err(|_| Reason::CmState)?;
        KBox::new(Search::new(self.primary, &ports), GFP_KERNEL).map_err(|_| Reason::CmState)
    }

    fn search(&self, device: &Device) -> Found {
        stats::count(Stat::Searches);
        let mut search = self.begin(device)?;
        // Several routes pass the same switch.
        let mut heard: KVec<(u32, Query, Answer)> = KVec::new();
        loop {
            let (num, query) = match search.next() {
                Next::Done(found) => return found,
                Next::Ask(num, query) => (num, query),
            };
            let Some(port) = device.port(num) else {
                search.failed(Failure::NoRecords);
                continue;
            };
            let place = match heard.iter().position(|(n, q, _)| (*n, *q) == (num, query)) {
                Some(place) => place,
                None => {
                    let answer = port.sa.ask(&query);
                    match &answer {
                        Err(Failure::Timeout) => port.silent.store(true, Release),
                        Err(Failure::Cancelled) => {}
                        _ => port.silent.store(false, Release),
                    }
                    let entry = answer.and_then(|answer| {
                        heard
                            .push((num, query, answer), GFP_KERNEL)
                            .map_err(|_| Failure::Cancelled)
                    });
                    if let Err(failure) = entry {
                        search.failed(failure);
                        continue;
                    }
                    heard.len().wrapping_sub(1)
                }
            };
            let Some((_, _, answer)) = heard.get(place) else {
                return Err(Reason::CmState);
            };
            let records = answer.records();
            match query {
                Query::NodeOfPort(_) | Query::NodeOfLid(_) | Query::PortsOfNode(_) => {
                    search.nodes(records.filter_map(NodeRecord::parse))
                }
                Query::PortOfLid(_) => search.port(records.filter_map(PortInfoRecord::parse)),
                Query::LinksFrom(_) | Query::LinksByPort(_) => {
                    search.links(records.filter_map(LinkRecord::parse))
                }
                Query::Forwarding { .. } => {
                    search.forwarding(records.filter_map(ForwardingRecord::parse))
                }
                Query::Paths { .. } => search.paths(records.filter_map(PathRecord::parse)),
            }
        }
    }

    /// The result, where there is one that may still be used.
    fn fresh(&self) -> Option<Found> {
        let (found, when) = (*self.result.lock())?;
        let limit = if found.is_ok() { FOUND_MS } else { NONE_MS };
        (when.elapsed().as_millis() < limit).then_some(found)
    }

    fn is_pending(&self) -> bool {
        self.result.lock().is_none()
    }
}

/// Searches in progress and their results.
#[pin_data]
pub(crate) struct Cache {
    #[pin]
    list: Mutex<KVec<Arc<Resolution>>>,
    stopping: Atomic<bool>,
}

impl Cache {
    /// An empty one.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(KVec::new()),
            stopping: Atomic::new(false),
        })
    }

    /// An alternate for a connection that uses `primary`, waiting up to `hold_ms` from the beginning
    /// of the search. Process context; called with no lock held.
    pub(crate) fn alternate(
        &self,
        devices: &Devices,
        queue: &OwnedQueue,
        raw: *mut rdma::ib_device,
        primary: &Primary,
        hold_ms: u32,
    ) -> Found {
        if self.stopping.load(Acquire) {
            return Err(Reason::PolicyOff);
        }
        let resolution = match self.find_or_begin(queue, raw, primary)? {
            Ok(found) => return found,
            Err(resolution) => resolution,
        };
        let silent = |set: Option<bool>| {
            let device = devices.enter(raw)?;
            let port = device.port(primary.port)?;
            match set {
                Some(value) => Some(port.silent.xchg(value, Full)),
                None => Some(port.silent.load(Acquire)),
            }
        };
        if silent(None).unwrap_or(true) {
            return Err(Reason::SaTimeout);
        }
        stats::count(Stat::ReqHeld);
        let spent = u32::try_from(resolution.born.elapsed().as_millis()).unwrap_or(u32::MAX);
        if resolution.done.wait_ms(hold_ms.saturating_sub(spent)) {
            // Opened without a result: the module is going.
            return (*resolution.result.lock()).map_or(Err(Reason::PolicyOff), |(found, _)| found);
        }
        stats::count(Stat::ReqHoldTimeout);
        let _ = silent(Some(true));
        Err(Reason::SaTimeout)
    }

    #[allow(clippy::type_complexity)]
    fn find_or_begin(
        &self,
        queue: &OwnedQueue,
        raw: *mut rdma::ib_device,
        primary: &Primary,
    ) -> core::result::Result<core::result::Result<Found, Arc<Resolution>>, Reason> {
        let mut list = self.list.lock();
        let same = |r: &Arc<Resolution>| r.device == raw as usize && r.primary == *primary;
        if let Some(known) = list.iter().find(|r| same(r)) {
            if let Some(found) = known.fresh() {
                stats::count(Stat::CacheHits);
                return Ok(Ok(found));
            }
            if known.is_pending() {
                return Ok(Err(known.clone()));
            }
        }
        list.retain(|r| !same(r));
        if list.len() >= CAPACITY {
            let Some(oldest) = list.iter().position(|r| !r.is_pending()) else {
                return Err(Reason::SaTimeout);
            };
            let _ = list.remove(oldest);
        }
        if self.stopping.load(Acquire) {
            return Err(Reason::PolicyOff);
        }
        let begun = Resolution::new(raw, *primary).map_err(|_| Reason::CmState)?;
        list.push(begun.clone(), GFP_KERNEL)
            .map_err(|_| Reason::CmState)?;
        let _ = queue.enqueue(begun.clone());
        Ok(Err(begun))
    }

    /// Forgets what was found for a device; searches in progress go on.
    pub(crate) fn forget(&self, raw: *mut rdma::ib_device) {
        self.list.lock().retain(|r| r.device != raw as usize);
    }

    /// Lets all who wait go; nobody waits or gets an alternate any more.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Release);
        // Under the lock: who has not seen the flag has put its search on the list before.
        for resolution in self.list.lock().iter() {
            resolution.done.open();
        }
    }

    /// Number of paths remembered, for display.
    pub(crate) fn len(&self) -> usize {
        self.list.lock().len()
    }
}
