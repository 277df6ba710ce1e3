// SPDX-License-Identifier: GPL-2.0-only

//! A connection between two HCAs of two ports each, for tests of both ends: what its paths are called, and
//! what hardware does (IBA 17.2.8).

use super::path::{Alternate, Disjoint, FullPath};
use super::rearm::{Candidates, Event};
use super::reason::Reason;
use super::state::PathMigState;
use crate::wire::cm::lap::{Kind, Lap};
use crate::wire::cm::Ids;
use crate::wire::records::PathRecord;
use crate::wire::Gid;

pub(crate) const ACTIVE: usize = 0;
pub(crate) const PASSIVE: usize = 1;

/// Port numbers at the active and the passive side.
pub(crate) type Pair = [u32; 2];

fn lid(side: usize, port: u32) -> u16 {
    10 * (side as u16 + 1) + port as u16
}

/// The port that has a LID.
pub(crate) fn port_of(lid: u16) -> u32 {
    u32::from(lid % 10)
}

/// Other names for ports: 1 for 2 and 2 for 1, at these sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Swap(pub(crate) [bool; 2]);

impl Swap {
    pub(crate) fn pair(self, pair: Pair) -> Pair {
        let name = |side: usize| match self.0[side] {
            true => 3 - pair[side],
            false => pair[side],
        };
        [name(ACTIVE), name(PASSIVE)]
    }

    pub(crate) fn lid(self, lid: u16) -> u16 {
        let side = usize::from(lid / 10) - 1;
        match self.0[side] {
            true => self::lid(side, 3 - port_of(lid)),
            false => lid,
        }
    }
}

/// A path as one side sees it.
pub(crate) fn full(side: usize, pair: Pair) -> FullPath {
    let other = 1 - side;
    let gid = |side: usize| Gid::new(side as u64 + 1, u64::from(pair[side]));
    FullPath {
        port: pair[side],
        sgid: gid(side),
        dgid: gid(other),
        slid: lid(side, pair[side]),
        dlid: lid(other, pair[other]),
        rate: 3,
        packet_life_time: 15,
        ..FullPath::default()
    }
}

/// A path as the active side's search finds it.
pub(crate) fn alternate(pair: Pair, disjoint: Disjoint) -> Alternate {
    Alternate {
        port: pair[ACTIVE],
        path: PathRecord {
            slid: lid(ACTIVE, pair[ACTIVE]),
            dlid: lid(PASSIVE, pair[PASSIVE]),
            ..PathRecord::default()
        },
        disjoint,
        primary_lids: (0, 0),
    }
}

pub(crate) fn pair_of(a: &Alternate) -> Pair {
    [a.port, port_of(a.path.dlid)]
}

/// A LAP of one side.
pub(crate) fn lap(side: usize, tid: u64, pair: Pair, kind: Kind) -> Lap {
    Lap {
        tid,
        ids: Ids {
            local: 1,
            remote: 2,
        },
        qpn: 7,
        remote_cm_response_timeout: 20,
        alternate: full(side, pair).to_cm(16),
        kind,
    }
}

/// A QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Qp {
    pub(crate) mig: PathMigState,
    pub(crate) used: Pair,
    pub(crate) alt: Option<Pair>,
    pub(crate) dead: bool,
}

/// Ports, and the QPs at both ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hardware {
    pub(crate) up: [[bool; 3]; 2],
    pub(crate) qp: [Qp; 2],
}

impl Hardware {
    /// All is up; the alternate of the REQ was loaded at both ends.
    pub(crate) fn new() -> Self {
        let qp = Qp {
            mig: PathMigState::Rearm,
            used: [1, 1],
            alt: Some([2, 2]),
            dead: false,
        };
        Self {
            up: [[true; 3]; 2],
            qp: [qp; 2],
        }
    }

    pub(crate) fn works(&self, pair: Pair) -> bool {
        self.up[ACTIVE][pair[0] as usize] && self.up[PASSIVE][pair[1] as usize]
    }

    /// Armed at both ends, with each other.
    pub(crate) fn is_armed(&self) -> bool {
        let [a, b] = &self.qp;
        a.mig == PathMigState::Armed
            && b.mig == PathMigState::Armed
            && (a.used, a.alt) == (b.used, b.alt)
    }

    /// Loads an alternate, with REARM.
    pub(crate) fn load(&mut self, side: usize, pair: Pair) {
        self.qp[side].alt = Some(pair);
        self.qp[side].mig = PathMigState::Rearm;
    }

    /// The same with other names for the ports.
    pub(crate) fn swapped(&self, swap: Swap) -> Self {
        let mut new = self.clone();
        for (side, up) in new.up.iter_mut().enumerate() {
            if swap.0[side] {
                up.swap(1, 2);
            }
        }
        for qp in &mut new.qp {
            qp.used = swap.pair(qp.used);
            qp.alt = qp.alt.map(|pair| swap.pair(pair));
        }
        new
    }

    /// Whether the passive side has this path, in use or loaded.
    pub(crate) fn passive_has(&self, pair: Pair) -> bool {
        let peer = &self.qp[PASSIVE];
        peer.alt == Some(pair) || peer.used == pair
    }

    /// What a search finds for the path in use `used`.
    pub(crate) fn search(&self, used: Pair) -> Event {
        let [a, b] = used;
        let mut found = Candidates::default();
        let all = [
            ([3 - a, 3 - b], Disjoint::Ports),
            ([3 - a, b], Disjoint::Port),
            ([a, 3 - b], Disjoint::Port),
        ];
        for (pair, disjoint) in all {
            if self.works(pair) {
                found.push(alternate(pair, disjoint));
            }
        }
        match found == Candidates::default() {
            true => Event::NotFound(Reason::PortDown),
            false => Event::Found(found),
        }
    }
}

/// Ends with such hardware.
pub(crate) trait Wired {
    fn hw(&mut self) -> &mut Hardware;

    /// A QP has changed paths, upon the peer's request or not.
    fn migrated(&mut self, side: usize, by_peer: bool);

    /// A QP has given up.
    fn died(&mut self, _side: usize) {}

    fn migrate(&mut self, side: usize, by_peer: bool) {
        let qp = &mut self.hw().qp[side];
        qp.used = qp.alt.take().unwrap();
        qp.mig = PathMigState::Migrated;
        self.migrated(side, by_peer);
    }

    /// Whether a packet from `side` arrives, and is accepted there.
    fn arrives(&mut self, side: usize) -> bool {
        let hw = self.hw();
        let from = hw.qp[side];
        let there = 1 - side;
        let good = !from.dead && !hw.qp[there].dead && hw.works(from.used);
        let to = &mut hw.qp[there];
        let asked = from.mig == PathMigState::Migrated;
        if good && asked && to.mig == PathMigState::Armed && to.alt == Some(from.used) {
            self.migrate(there, true);
            return true;
        }
        if !good || from.used != to.used || (asked && to.mig == PathMigState::Armed) {
            return false;
        }
        if !asked && to.mig == PathMigState::Rearm {
            to.mig = PathMigState::Armed;
        }
        true
    }

    /// A request of `side`, and its acknowledgement; by the other path, if need be and possible.
    fn exchange(&mut self, side: usize) -> bool {
        for _ in 0..2 {
            if self.arrives(side) && self.arrives(1 - side) {
                return true;
            }
            if self.hw().qp[side].mig != PathMigState::Armed {
                break;
            }
            self.migrate(side, false);
        }
        self.hw().qp[side].dead = true;
        self.died(side);
        false
    }
}
