// SPDX-License-Identifier: GPL-2.0-only

//! Alternates between the same two ports, by other LIDs of them (LMC).
//!
//! A port with LMC n has 2^n LIDs, and the subnet manager may lead each another way. Which way is not in
//! a PathRecord, and two LIDs may well lead the same; so the routes of all pairs are followed through the
//! forwarding tables, and the pair that shares least with the path in use is taken.
//!
//! Requests and their acknowledgements travel by the forwarding entries of different LIDs. Where the
//! path in use passes one spine switch there and another one back, each alternate shares a switch with
//! it. Then path in use *and* alternate are chosen anew out of what subnet administration gave, if so
//! they share less: the ports, P_Key, SL, rate and lifetime stay, only LIDs change. For a
//! connection that is established it is too late for that.

use super::path::{check, in_range, Alternate, Disjoint, LocalPort, Primary};
use super::reason::Reason;
use super::route::{Elements, Route};
use crate::wire::records::{ForwardingRecord, LinkRecord, PathRecord, PortInfoRecord};
use crate::wire::sa::{Failure, Query};

/// PathRecords looked at.
const MAX_PATHS: usize = 16;
/// LIDs of each port looked at, that of the path in use included.
const MAX_LIDS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Phase {
    Paths,
    Port,
    Routes(usize),
    Done,
}

/// The search between the two ports of the path in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lids {
    primary: Primary,
    local: LocalPort,
    paths: [PathRecord; MAX_PATHS],
    count: usize,
    /// First the ways there, by DLID, then the ways back, by SLID.
    routes: [Option<Route>; 2 * MAX_LIDS],
    phase: Phase,
    /// The path in use stays as it is.
    fixed: bool,
}

/// A pair of paths, the better the smaller; compared in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    unknown: bool,
    shared: usize,
    replaces: bool,
    same_slid: bool,
}

impl Lids {
    /// Begins. `local` is the port of the path in use.
    pub(crate) fn new(primary: Primary, local: LocalPort) -> Self {
        Self {
            primary,
            local,
            paths: [PathRecord::default(); MAX_PATHS],
            count: 0,
            routes: [None; 2 * MAX_LIDS],
            phase: Phase::Paths,
            fixed: false,
        }
    }

    /// The same for an established connection, whose path in use cannot be replaced.
    pub(crate) fn for_established(primary: Primary, local: LocalPort) -> Self {
        Self {
            fixed: true,
            ..Self::new(primary, local)
        }
    }

    /// What has to be asked, by the port of the path in use; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Query> {
        loop {
            match self.phase {
                Phase::Paths => {
                    return Some(Query::Paths {
                        sgid: self.primary.sgid,
                        dgid: self.primary.dgid,
                        pkey: self.primary.pkey,
                        sl: self.primary.sl,
                    })
                }
                Phase::Port => return Some(Query::PortOfLid(self.primary.dlid)),
                Phase::Routes(n) => {
                    let Some(route) = self.routes.get(n) else {
                        self.phase = Phase::Done;
                        continue;
                    };
                    if let Some(query) = route.and_then(|r| r.next()) {
                        return Some(query);
                    }
                    self.phase = Phase::Routes(n.saturating_add(1));
                }
                Phase::Done => return None,
            }
        }
    }

    /// Takes PathRecords. The reason why one fell out, if one did.
    pub(crate) fn paths(&mut self, records: impl Iterator<Item = PathRecord>) -> Option<Reason> {
        if !matches!(self.phase, Phase::Paths) {
            return None;
        }
        let mut fell_out = None;
        for rec in records {
            let known = self
                .records()
                .any(|r| (r.slid, r.dlid) == (rec.slid, rec.dlid));
            if known || rec.sgid != self.primary.sgid || rec.dgid != self.primary.dgid {
                continue;
            }
            if !in_range(self.local.lid, self.local.lmc, rec.slid) {
                continue;
            }
            if let Err(reason) = check(&self.primary, &rec) {
                fell_out = Some(reason);
                continue;
            }
            if let Some(slot) = self.paths.get_mut(self.count) {
                *slot = rec;
                self.count = self.count.saturating_add(1);
            }
        }
        let other = self.records().any(|r| r.dlid != self.primary.dlid);
        self.phase = if other { Phase::Port } else { Phase::Done };
        fell_out
    }

    /// Takes the PortInfoRecord of the remote port: which LIDs it really has.
    pub(crate) fn port(&mut self, mut records: impl Iterator<Item = PortInfoRecord>) {
        if !matches!(self.phase, Phase::Port) {
            return;
        }
        let Some(port) = records.find(|r| in_range(r.lid, r.lmc, self.primary.dlid)) else {
            return self.failed(Failure::NoRecords);
        };
        let mut kept = 0usize;
        for n in 0..self.count {
            let Some(rec) = self.paths.get(n).copied() else {
                break;
            };
            if in_range(port.lid, port.lmc, rec.dlid) {
                if let Some(slot) = self.paths.get_mut(kept) {
                    *slot = rec;
                    kept = kept.saturating_add(1);
                }
            }
        }
        self.count = kept;
        let (near, far) = (self.local.lid, port.lid);
        self.add_routes(self.primary.dlid, self.primary.slid, near, far);
        for n in 0..self.count {
            if let Some(rec) = self.paths.get(n).copied() {
                self.add_routes(rec.dlid, rec.slid, near, far);
            }
        }
        self.phase = Phase::Routes(0);
    }

    fn add_routes(&mut self, dlid: u16, slid: u16, near: u16, far: u16) {
        let (there, back) = self.routes.split_at_mut(MAX_LIDS);
        for (routes, from, to, lid) in [(there, near, far, dlid), (back, far, near, slid)] {
            if routes.iter().flatten().any(|r| r.dlid() == lid) {
                continue;
            }
            if let Some(free) = routes.iter_mut().find(|r| r.is_none()) {
                *free = Some(Route::new(from, to, lid));
            }
        }
    }

    fn route(&mut self) -> Option<&mut Route> {
        match self.phase {
            Phase::Routes(n) => self.routes.get_mut(n)?.as_mut(),
            _ => None,
        }
    }

    /// Takes LinkRecords.
    pub(crate) fn links(&mut self, records: impl Iterator<Item = LinkRecord>) {
        if let Some(route) = self.route() {
            route.links(records);
        }
    }

    /// Takes a forwarding table.
    pub(crate) fn forwarding(&mut self, records: impl Iterator<Item = ForwardingRecord>) {
        if let Some(route) = self.route() {
            route.forwarding(records);
        }
    }

    /// The question last asked has no answer. Without PathRecords or PortInfoRecord there is no
    /// alternate; a route that cannot be followed is not known.
    pub(crate) fn failed(&mut self, _why: Failure) {
        match self.route() {
            Some(route) => route.failed(),
            None => {
                self.count = 0;
                self.phase = Phase::Done;
            }
        }
    }

    fn records(&self) -> impl Iterator<Item = &PathRecord> {
        self.paths.iter().take(self.count)
    }

    /// What a path passes between the switches at its ends, there and back.
    fn between(&self, slid: u16, dlid: u16) -> Option<Elements> {
        let (there, back) = self.routes.split_at(MAX_LIDS);
        let find = |routes: &[Option<Route>], lid| {
            let route = routes.iter().flatten().find(|r| r.dlid() == lid)?;
            route.between()
        };
        Some(find(there, dlid)?.union(&find(back, slid)?))
    }

    /// Whether `rec` can take the place of the path in use: LIDs apart, they are the same.
    fn can_replace(&self, rec: &PathRecord) -> bool {
        self.records()
            .find(|r| (r.slid, r.dlid) == (self.primary.slid, self.primary.dlid))
            .is_some_and(|used| {
                PathRecord {
                    slid: used.slid,
                    dlid: used.dlid,
                    ..*rec
                } == *used
            })
    }

    fn cost(&self, primary: (u16, u16), alternate: (u16, u16)) -> Cost {
        let ways = (
            self.between(primary.0, primary.1),
            self.between(alternate.0, alternate.1),
        );
        let shared = match &ways {
            (Some(p), Some(a)) => Some(p.shared(a).len()),
            _ => None,
        };
        Cost {
            unknown: shared.is_none(),
            shared: shared.unwrap_or(0),
            replaces: primary != (self.primary.slid, self.primary.dlid),
            same_slid: primary.0 == alternate.0,
        }
    }

    /// How far two paths are apart; `None` where the alternate passes all that the primary does.
    fn disjoint(&self, primary: (u16, u16), alternate: (u16, u16)) -> Option<Disjoint> {
        let ways = (
            self.between(primary.0, primary.1),
            self.between(alternate.0, alternate.1),
        );
        let (Some(primary), Some(alternate)) = ways else {
            return Some(Disjoint::Lid);
        };
        let shared = primary.shared(&alternate);
        if shared.len() == primary.len() {
            None
        } else if shared.has_link() {
            Some(Disjoint::Lid)
        } else if shared.has_switch() || !primary.has_switch() {
            Some(Disjoint::Links)
        } else {
            Some(Disjoint::Switches)
        }
    }

    /// The best alternate of what was found.
    pub(crate) fn result(&self) -> Result<Alternate, Reason> {
        let used = (self.primary.slid, self.primary.dlid);
        let mut best: Option<(Cost, (u16, u16), PathRecord)> = None;
        let replacing = self
            .records()
            .filter(|r| !self.fixed && self.can_replace(r))
            .map(|r| (r.slid, r.dlid));
        for primary in core::iter::once(used).chain(replacing) {
            for rec in self.records().filter(|r| r.dlid != primary.1) {
                let cost = self.cost(primary, (rec.slid, rec.dlid));
                // Without knowing better the path in use is left as it is.
                if cost.unknown && cost.replaces {
                    continue;
                }
                if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                    best = Some((cost, primary, *rec));
                }
            }
        }
        let (_, primary, rec) = best.ok_or(Reason::NoAlternateInSa)?;
        let disjoint = self
            .disjoint(primary, (rec.slid, rec.dlid))
            .ok_or(Reason::AlternateNotDisjoint)?;
        Ok(Alternate {
            port: self.local.num,
            path: self.primary.adopt(&rec),
            disjoint,
            primary_lids: primary,
        })
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#[path = "lids_tests.rs"]
mod tests;
