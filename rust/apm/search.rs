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
use super::reason::Reason;
use crate::wire::records::{ForwardingRecord, LinkRecord, NodeRecord, PathRecord, PortInfoRecord};
use crate::wire::sa::{Failure, Query};
use crate::wire::Gid;

/// Ports of the local HCA that are considered.
pub(crate) const MAX_LOCAL: usize = 4;
/// Ports of the peer's node that are considered.
pub(crate) const MAX_REMOTE: usize = 8;

/// What the search needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The answer to a question, asked by this local port.
    Ask(u32, Query),
    /// Nothing: this is the result.
    Done(Result<Alternate, Reason>),
}

#[derive(Clone, Copy, Debug, Default)]
struct Remote {
    prefix: u64,
    guid: u64,
    lid: u16,
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
    primary: Primary,
    locals: [LocalPort; MAX_LOCAL],
    local_count: usize,
    remotes: [Remote; MAX_REMOTE],
    remote_count: usize,
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
    /// [`MAX_LOCAL`] the first count.
    pub(crate) fn new(primary: Primary, locals: &[LocalPort]) -> Self {
        let mut search = Self {
            primary,
            locals: [LocalPort::default(); MAX_LOCAL],
            local_count: 0,
            remotes: [Remote::default(); MAX_REMOTE],
            remote_count: 0,
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
            } else if let Some(slot) = search.locals.get_mut(search.local_count) {
                *slot = *local;
                search.local_count = search.local_count.saturating_add(1);
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
                        self.primary.port,
                        Query::NodeOfPort(self.primary.dgid.guid()),
                    )
                }
                Phase::NodeByLid => {
                    return Next::Ask(self.primary.port, Query::NodeOfLid(self.primary.dlid))
                }
                Phase::Ports { node, local } => {
                    let Some(port) = self.local(local) else {
                        self.phase = Phase::Paths { node, pair: 0 };
                        continue;
                    };
                    if self.subnet_known(local) {
                        self.phase = Phase::Ports {
                            node,
                            local: local.saturating_add(1),
                        };
                        continue;
                    }
                    return Next::Ask(port.num, Query::PortsOfNode(node));
                }
                Phase::Paths { node, pair } => match self.pair(pair) {
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
                                sgid: self.source(&local),
                                dgid: Gid::new(remote.prefix, remote.guid),
                                pkey: self.primary.pkey,
                                sl: self.primary.sl,
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
                        return Next::Ask(self.primary.port, query);
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
                let guid = self.primary.dgid.guid();
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
                let prefix = self.local(local).map_or(0, |l| l.gid.prefix());
                for rec in records.filter(|r| r.node_guid == node) {
                    if !could_belong(rec.lid, rec.lid) {
                        continue;
                    }
                    if let Some(slot) = self.remotes.get_mut(self.remote_count) {
                        *slot = Remote {
                            prefix,
                            guid: rec.port_guid,
                            lid: rec.lid,
                        };
                        self.remote_count = self.remote_count.saturating_add(1);
                    }
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
        if let Some(Some((local, remote))) = self.pair(pair) {
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
        self.lids = self
            .locals
            .iter()
            .take(self.local_count)
            .find(|l| l.num == self.primary.port)
            .map(|local| match self.fixed {
                true => Lids::for_established(self.primary, *local),
                false => Lids::new(self.primary, *local),
            });
        self.phase = Phase::Lids;
    }

    fn fell_out(&mut self, reason: Reason) {
        if weight(reason) > weight(self.worst) {
            self.worst = reason;
        }
    }

    fn local(&self, n: usize) -> Option<LocalPort> {
        self.locals.get(..self.local_count)?.get(n).copied()
    }

    /// Whether an earlier port in the same subnet has already asked for the peer's ports.
    fn subnet_known(&self, n: usize) -> bool {
        let prefix = self.local(n).map(|l| l.gid.prefix());
        (0..n).any(|earlier| self.local(earlier).map(|l| l.gid.prefix()) == prefix)
    }

    /// The GID to leave by: a connection keeps the one it has on the port in use.
    fn source(&self, local: &LocalPort) -> Gid {
        if local.num == self.primary.port {
            self.primary.sgid
        } else {
            local.gid
        }
    }

    /// Whether it is the remote port of the path in use: by GUID or, where that is an alias, by LID.
    fn is_current(&self, remote: &Remote) -> bool {
        let guid = self.primary.dgid.guid();
        let mut known = self.remotes.iter().take(self.remote_count);
        if known.clone().any(|r| r.guid == guid) {
            return remote.guid == guid;
        }
        // With LMC the base LID may be lower than the LID in use.
        let owner = known
            .by_ref()
            .filter(|r| could_belong(r.lid, self.primary.dlid))
            .max_by_key(|r| r.lid);
        owner.is_some_and(|owner| owner.guid == remote.guid)
    }

    /// The `n`-th candidate in order of rank: `None` after the last, `Some(None)` where place `n` of
    /// the order is no candidate.
    #[allow(clippy::type_complexity)]
    fn pair(&self, n: usize) -> Option<Option<(LocalPort, Remote)>> {
        let per_rank = self.local_count.checked_mul(self.remote_count)?;
        let rank = n.checked_div(per_rank)?;
        let within = n.checked_rem(per_rank)?;
        let local = self.local(within.checked_div(self.remote_count)?)?;
        let remote = *self.remotes.get(within.checked_rem(self.remote_count)?)?;
        let other_here = local.num != self.primary.port;
        let other_there = !self.is_current(&remote);
        let fits = match rank {
            0 => other_here && other_there,
            1 => other_here && !other_there,
            2 => !other_here && other_there,
            _ => return None,
        };
        if fits && local.gid.prefix() == remote.prefix {
            Some(Some((local, remote)))
        } else {
            Some(None)
        }
    }

    /// Checks a PathRecord against what was asked and against the path in use.
    fn accept(
        &self,
        local: &LocalPort,
        remote: &Remote,
        rec: &PathRecord,
    ) -> Result<Alternate, Reason> {
        if rec.sgid != self.source(local)
            || rec.dgid != Gid::new(remote.prefix, remote.guid)
            || !in_range(local.lid, local.lmc, rec.slid)
            || !could_belong(remote.lid, rec.dlid)
        {
            return Err(Reason::NoAlternateInSa);
        }
        check(&self.primary, rec)?;
        let used = (self.primary.slid, self.primary.dlid);
        if (rec.slid, rec.dlid) == used {
            return Err(Reason::AlternateNotDisjoint);
        }
        let both = local.num != self.primary.port && !self.is_current(remote);
        Ok(Alternate {
            port: local.num,
            path: self.primary.adopt(rec),
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
