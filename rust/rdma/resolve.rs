// SPDX-License-Identifier: GPL-2.0-only

//! What subnet administration is asked for: an alternate to a path, and the node that a port belongs to.
//!
//! A REQ waits for its alternate at most until `req_hold_ms` after the search began. From then on no
//! REQ waits on that port until subnet administration has answered something.
//!
//! Locks: those of `lookup.rs`.

use super::bindings as rdma;
use super::device::{Device, Devices};
use super::lookup::{Cache, Known, Question, Refused};
use super::sa::Answer;
use super::stats;
use super::work::OwnedQueue;
use crate::apm::reason::Reason;
use crate::apm::search::{Alternate, Next, Primary, Search};
use crate::apm::stats::Stat;
use crate::wire::records::{ForwardingRecord, LinkRecord, NodeRecord, PathRecord, PortInfoRecord};
use crate::wire::sa::{Failure, Query};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Full, Release};

/// How long something that was found is used, in milliseconds, if no event says otherwise.
const FOUND_MS: i64 = 30_000;
/// How long it is believed that there is nothing.
const NONE_MS: i64 = 2_000;

/// An alternate, or why there is none.
pub(crate) type Found = core::result::Result<Alternate, Reason>;

impl From<Refused> for Reason {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Stopping => Self::PolicyOff,
            Refused::Busy => Self::SaTimeout,
            Refused::Memory => Self::CmState,
        }
    }
}

/// A few kilobytes: never on the stack while subnet administration is asked.
#[inline(never)]
fn begin(primary: &Primary, device: &Device) -> core::result::Result<KBox<Search>, Reason> {
    let ports = device
        .local_ports(primary.pkey)
        .map_err(|_| Reason::CmState)?;
    KBox::new(Search::new(*primary, &ports), GFP_KERNEL).map_err(|_| Reason::CmState)
}

/// Asks by a port, and remembers whether subnet administration is there.
fn ask(device: &Device, port: u32, query: &Query) -> core::result::Result<Answer, Failure> {
    let port = device.port(port).ok_or(Failure::NoRecords)?;
    let answer = port.sa.ask(query);
    match &answer {
        Err(Failure::Timeout) => port.silent.store(true, Release),
        Err(Failure::Cancelled) => {}
        _ => port.silent.store(false, Release),
    }
    answer
}

impl Question for Primary {
    type Answer = Found;

    fn ask(&self, device: &Device) -> Found {
        stats::count(Stat::Searches);
        let mut search = begin(self, device)?;
        // Several routes pass the same switch.
        let mut heard: KVec<(u32, Query, Answer)> = KVec::new();
        loop {
            let (num, query) = match search.next() {
                Next::Done(found) => return found,
                Next::Ask(num, query) => (num, query),
            };
            let place = match heard.iter().position(|(n, q, _)| (*n, *q) == (num, query)) {
                Some(place) => place,
                None => {
                    let entry = ask(device, num, &query).and_then(|answer| {
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

    fn gone() -> Found {
        Err(Reason::CmState)
    }

    fn keep_ms(answer: &Found) -> i64 {
        if answer.is_ok() {
            FOUND_MS
        } else {
            NONE_MS
        }
    }
}

/// Which node a port belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeOf {
    /// GUID of the port, host byte order.
    pub(crate) guid: u64,
    /// The local port in whose subnet that one is.
    pub(crate) port: u32,
}

impl Question for NodeOf {
    /// The NodeGUID, `None` where there is no such port.
    type Answer = core::result::Result<Option<u64>, Failure>;

    fn ask(&self, device: &Device) -> Self::Answer {
        match ask(device, self.port, &Query::NodeOfPort(self.guid)) {
            Ok(answer) => Ok(answer
                .records()
                .filter_map(NodeRecord::parse)
                .find(|rec| rec.port_guid == self.guid)
                .map(|rec| rec.node_guid)),
            Err(Failure::NoRecords) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    fn gone() -> Self::Answer {
        Err(Failure::Cancelled)
    }

    fn keep_ms(answer: &Self::Answer) -> i64 {
        match answer {
            Ok(Some(_)) => FOUND_MS,
            _ => NONE_MS,
        }
    }
}

impl Cache<Primary> {
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
        if self.is_stopping() {
            return Err(Reason::PolicyOff);
        }
        let asked = match self.get(queue, raw, primary)? {
            Known::Answer(found) => return found,
            Known::Soon(asked) => asked,
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
        let spent = u32::try_from(asked.born.elapsed().as_millis()).unwrap_or(u32::MAX);
        if asked.done.wait_ms(hold_ms.saturating_sub(spent)) {
            // Opened without an answer: the module is going.
            return asked.answer().unwrap_or(Err(Reason::PolicyOff));
        }
        stats::count(Stat::ReqHoldTimeout);
        let _ = silent(Some(true));
        Err(Reason::SaTimeout)
    }
}
