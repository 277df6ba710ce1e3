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
use crate::apm::path::could_belong;
use crate::apm::rearm::{Candidates, MAX_CANDIDATES};
use crate::apm::reason::Reason;
use crate::apm::search::{Alternate, LocalPort, Next, Primary, Search};
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
fn begin(
    primary: &Primary,
    device: &Device,
    new: fn(Primary, &[LocalPort]) -> Search,
) -> core::result::Result<KBox<Search>, Reason> {
    let ports = device
        .local_ports(primary.pkey)
        .map_err(|_| Reason::CmState)?;
    KBox::new(new(*primary, &ports), GFP_KERNEL).map_err(|_| Reason::CmState)
}

/// What was answered in the course of a search: several routes pass the same switch.
type Heard = KVec<(u32, Query, Answer)>;

/// Goes on with a search, up to its next result.
fn go_on(search: &mut Search, device: &Device, heard: &mut Heard) -> Found {
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
        let mut search = begin(self, device, Search::new)?;
        go_on(&mut search, device, &mut KVec::new())
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

/// Which alternates there are to the path in use of an established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standbys(pub(crate) Primary);

impl Question for Standbys {
    /// The best first; one at least.
    type Answer = core::result::Result<Candidates, Reason>;

    fn ask(&self, device: &Device) -> Self::Answer {
        stats::count(Stat::Searches);
        let mut search = begin(&self.0, device, Search::for_established)?;
        let mut heard = KVec::new();
        let mut candidates = Candidates::default();
        candidates.push(go_on(&mut search, device, &mut heard)?);
        for _ in 1..MAX_CANDIDATES {
            search.resume();
            match go_on(&mut search, device, &mut heard) {
                Ok(alternate) => candidates.push(alternate),
                Err(_) => break,
            }
        }
        Ok(candidates)
    }

    fn gone() -> Self::Answer {
        Err(Reason::CmState)
    }

    fn keep_ms(answer: &Self::Answer) -> i64 {
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
    /// GUID of the port, host byte order; 0 where it isn't known.
    pub(crate) guid: u64,
    /// A LID of the port, by which it is looked for where its GUID leads nowhere (alias GUIDs).
    pub(crate) lid: u16,
    /// The local port in whose subnet that one is.
    pub(crate) port: u32,
}

impl NodeOf {
    fn find(
        &self,
        device: &Device,
        query: &Query,
        fits: impl Fn(&NodeRecord) -> bool,
    ) -> core::result::Result<Option<NodeRecord>, Failure> {
        match ask(device, self.port, query) {
            Ok(answer) => Ok(answer.records().filter_map(NodeRecord::parse).find(fits)),
            Err(Failure::NoRecords) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

impl Question for NodeOf {
    /// The port and its node, `None` where there is no such port.
    type Answer = core::result::Result<Option<NodeRecord>, Failure>;

    fn ask(&self, device: &Device) -> Self::Answer {
        if self.guid != 0 {
            let query = Query::NodeOfPort(self.guid);
            let found = self.find(device, &query, |rec| rec.port_guid == self.guid)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        self.find(device, &Query::NodeOfLid(self.lid), |rec| {
            could_belong(rec.lid, self.lid)
        })
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
