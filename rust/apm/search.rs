// SPDX-License-Identifier: GPL-2.0-only

//! The search for an alternate path, as a conversation with subnet administration.
//!
//! To find an alternate, do the following:
//!
//! * make a [`Search`] from the path in use and the ports of this same HCA;
//! * as long as [`Search::next`] says [`Next::Ask`], put the question to subnet administration by the
//!   port it names, and hand the answer to [`Search::nodes`], [`Search::paths`] or [`Search::failed`];
//! * [`Next::Done`] has the path, or the reason why there is none.
//!
//! Both ends keep their HCA: candidates are the ports of this HCA and those of the peer's node (by
//! NodeGUID). Tried in this order: other port at both ends, other port here, other port there, other
//! LIDs of the same ports ([`Lids`]). A path identical to the one in use is never taken.

use super::lids::Lids;
use super::path::{check, could_belong, in_range};
pub(crate) use super::path::{Alternate, Disjoint, LocalPort, Primary};
use super::ports::{Ports, Remote};
use super::reason::Reason;
use crate::wire::records::{ForwardingRecord, LinkRecord, NodeRecord, PathRecord, PortInfoRecord};
use crate::wire::sa::{Failure, Query};
use crate::wire::Gid;

/// What the search needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The answer to a question, asked by this local port.
    Ask(u32, Query),
    /// Nothing: this is the result.
    Done(Result<Alternate, Reason>),
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    NodeByPort,
    NodeByLid,
    Ports {
        node: u64,
        local: usize,
    },
    Paths {
        node: u64,
        pair: usize,
    },
    /// Between the ports of the path in use.
    Lids,
    Done(Result<Alternate, Reason>),
}

/// A search in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    ports: Ports,
    phase: Phase,
    /// The search between the ports of the path in use, once it has begun.
    lids: Option<Lids>,
    /// The most telling reason why a candidate fell out.
    worst: Reason,
    /// Where to go on after a result.
    rest: Option<(u64, usize)>,
    /// The path in use cannot be replaced: the connection is established.
    fixed: bool,
}

/// How much a reason tells when several candidates fell out for different ones.
fn weight(reason: Reason) -> u8 {
    match reason {
        Reason::NoAlternateInSa => 1,
        Reason::SinglePortHca => 2,
        Reason::AlternateNotDisjoint => 3,
        Reason::PortDown => 4,
        Reason::PkeyMissing => 5,
        Reason::MtuMismatch => 6,
        _ => 0,
    }
}

impl Search {
    /// Begins a search. `locals` are all ports of the HCA, the one in use included; of more than
    /// four the first count.
    pub(crate) fn new(primary: Primary, locals: &[LocalPort]) -> Self {
        let mut search = Self {
            ports: Ports::new(primary),
            phase: Phase::NodeByPort,
            lids: None,
            worst: Reason::NoAlternateInSa,
            rest: None,
            fixed: false,
        };
        if locals.len() < 2 {
            search.fell_out(Reason::SinglePortHca);
        }
        for local in locals {
            if !local.active {
                search.fell_out(Reason::PortDown);
            } else if !local.has_pkey {
                search.fell_out(Reason::PkeyMissing);
            } else {
                search.ports.add_local(*local);
            }
        }
        search
    }

    /// The same for an established connection, whose path in use stays as it is.
    pub(crate) fn for_established(primary: Primary, locals: &[LocalPort]) -> Self {
        Self {
            fixed: true,
            ..Self::new(primary, locals)
        }
    }

    /// After a result: goes on with what comes behind it in the order, so that [`Search::next`] leads to
    /// the next best alternate, or to the reason why there is none.
    pub(crate) fn resume(&mut self) {
        self.phase = match self.rest.take() {
            Some((node, pair)) => Phase::Paths { node, pair },
            None => Phase::Done(Err(self.worst)),
        };
    }

    /// What comes next.
    // Not inlined, nor are the others: what they need of the stack is not to add up in a caller that
    // waits for the answers.
    #[inline(never)]
    pub(crate) fn next(&mut self) -> Next {
        loop {
            match self.phase {
                Phase::NodeByPort => {
                    return Next::Ask(
                        self.ports.primary.port,
                        Query::NodeOfPort(self.ports.primary.dgid.guid()),
                    )
                }
                Phase::NodeByLid => {
                    return Next::Ask(
                        self.ports.primary.port,
                        Query::NodeOfLid(self.ports.primary.dlid),
                    )
                }
                Phase::Ports { node, local } => {
                    let Some(port) = self.ports.local(local) else {
                        self.phase = Phase::Paths { node, pair: 0 };
                        continue;
                    };
                    if self.ports.subnet_known(local) {
                        self.phase = Phase::Ports {
                            node,
                            local: local.saturating_add(1),
                        };
                        continue;
                    }
                    return Next::Ask(port.num, Query::PortsOfNode(node));
                }
                Phase::Paths { node, pair } => match self.ports.pair(pair) {
                    None => self.begin_lids(),
                    Some(None) => {
                        self.phase = Phase::Paths {
                            node,
                            pair: pair.saturating_add(1),
                        }
                    }
                    Some(Some((local, remote))) => {
                        return Next::Ask(
                            local.num,
                            Query::Paths {
                                sgid: self.ports.source(&local),
                                dgid: Gid::new(remote.prefix, remote.guid),
                                pkey: self.ports.primary.pkey,
                                sl: self.ports.primary.sl,
                            },
                        )
                    }
                },
                Phase::Lids => {
                    let Some(lids) = self.lids.as_mut() else {
                        self.phase = Phase::Done(Err(self.worst));
                        continue;
                    };
                    if let Some(query) = lids.next() {
                        return Next::Ask(self.ports.primary.port, query);
                    }
                    let result = lids.result().map_err(|reason| {
                        self.fell_out(reason);
                        self.worst
                    });
                    self.phase = Phase::Done(result);
                }
                Phase::Done(result) => return Next::Done(result),
            }
        }
    }

    /// Takes the NodeRecords that answer the question last asked.
    #[inline(never)]
    pub(crate) fn nodes(&mut self, records: impl Iterator<Item = NodeRecord>) {
        let mut records = records.filter(|r| r.node_type == NodeRecord::CHANNEL_ADAPTER);
        match self.phase {
            Phase::NodeByPort => {
                let guid = self.ports.primary.dgid.guid();
                self.phase = match records.find(|r| r.port_guid == guid) {
                    Some(rec) => Phase::Ports {
                        node: rec.node_guid,
                        local: 0,
                    },
                    None => Phase::NodeByLid,
                };
            }
            Phase::NodeByLid => {
                // LMC: the base LID of the port may be lower than the one asked for.
                self.phase = match records.next() {
                    Some(rec) => Phase::Ports {
                        node: rec.node_guid,
                        local: 0,
                    },
                    None => Phase::Done(Err(self.worst)),
                };
            }
            Phase::Ports { node, local } => {
                let prefix = self.ports.local(local).map_or(0, |l| l.gid.prefix());
                for rec in records.filter(|r| r.node_guid == node) {
                    if !could_belong(rec.lid, rec.lid) {
                        continue;
                    }
                    self.ports.add_remote(Remote {
                        prefix,
                        guid: rec.port_guid,
                        lid: rec.lid,
                    });
                }
                self.phase = Phase::Ports {
                    node,
                    local: local.saturating_add(1),
                };
            }
            Phase::Paths { .. } | Phase::Lids | Phase::Done(_) => {}
        }
    }

    /// Takes the PathRecords that answer the question last asked.
    #[inline(never)]
    pub(crate) fn paths(&mut self, mut records: impl Iterator<Item = PathRecord>) {
        if let Some(lids) = self.lids.as_mut() {
            if let Some(reason) = lids.paths(records) {
                self.fell_out(reason);
            }
            return;
        }
        let Phase::Paths { node, pair } = self.phase else {
            return;
        };
        let mut found = None;
        if let Some(Some((local, remote))) = self.ports.pair(pair) {
            found = records.find_map(|rec| match self.accept(&local, &remote, &rec) {
                Ok(alternate) => Some(alternate),
                Err(reason) => {
                    self.fell_out(reason);
                    None
                }
            });
        }
        let pair = pair.saturating_add(1);
        self.phase = match found {
            Some(alternate) => {
                self.rest = Some((node, pair));
                Phase::Done(Ok(alternate))
            }
            None => Phase::Paths { node, pair },
        };
    }

    /// Takes the PortInfoRecords that answer the question last asked.
    #[inline(never)]
    pub(crate) fn port(&mut self, records: impl Iterator<Item = PortInfoRecord>) {
        if let Some(lids) = self.lids.as_mut() {
            lids.port(records);
        }
    }

    /// Takes the LinkRecords that answer the question last asked.
    #[inline(never)]
    pub(crate) fn links(&mut self, records: impl Iterator<Item = LinkRecord>) {
        if let Some(lids) = self.lids.as_mut() {
            lids.links(records);
        }
    }

    /// Takes the forwarding table that answers the question last asked.
    #[inline(never)]
    pub(crate) fn forwarding(&mut self, records: impl Iterator<Item = ForwardingRecord>) {
        if let Some(lids) = self.lids.as_mut() {
            lids.forwarding(records);
        }
    }

    /// Takes the failure of the question last asked.
    pub(crate) fn failed(&mut self, failure: Failure) {
        self.phase = match (failure, self.phase) {
            (Failure::Timeout | Failure::Cancelled, _) => Phase::Done(Err(Reason::SaTimeout)),
            (_, Phase::NodeByPort) => Phase::NodeByLid,
            (_, Phase::NodeByLid) => Phase::Done(Err(self.worst)),
            (_, Phase::Ports { node, local }) => Phase::Ports {
                node,
                local: local.saturating_add(1),
            },
            (_, Phase::Paths { node, pair }) => Phase::Paths {
                node,
                pair: pair.saturating_add(1),
            },
            (failure, Phase::Lids) => {
                if let Some(lids) = self.lids.as_mut() {
                    lids.failed(failure);
                }
                Phase::Lids
            }
            (_, done @ Phase::Done(_)) => done,
        };
    }

    #[inline(never)]
    fn begin_lids(&mut self) {
        self.lids = self.ports.current().map(|local| match self.fixed {
            true => Lids::for_established(self.ports.primary, local),
            false => Lids::new(self.ports.primary, local),
        });
        self.phase = Phase::Lids;
    }

    fn fell_out(&mut self, reason: Reason) {
        if weight(reason) > weight(self.worst) {
            self.worst = reason;
        }
    }

    /// Checks a PathRecord against what was asked and against the path in use.
    fn accept(
        &self,
        local: &LocalPort,
        remote: &Remote,
        rec: &PathRecord,
    ) -> Result<Alternate, Reason> {
        if rec.sgid != self.ports.source(local)
            || rec.dgid != Gid::new(remote.prefix, remote.guid)
            || !in_range(local.lid, local.lmc, rec.slid)
            || !could_belong(remote.lid, rec.dlid)
        {
            return Err(Reason::NoAlternateInSa);
        }
        check(&self.ports.primary, rec)?;
        let used = (self.ports.primary.slid, self.ports.primary.dlid);
        if (rec.slid, rec.dlid) == used {
            return Err(Reason::AlternateNotDisjoint);
        }
        let both = local.num != self.ports.primary.port && !self.ports.is_current(remote);
        Ok(Alternate {
            port: local.num,
            path: self.ports.primary.adopt(rec),
            disjoint: if both {
                Disjoint::Ports
            } else {
                Disjoint::Port
            },
            primary_lids: used,
        })
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#[path = "search_tests.rs"]
mod tests;
