// SPDX-License-Identifier: GPL-2.0-only

//! The search by LIDs against a made-up fabric: two leaves, some spines, one port on each leaf.

use super::*;
use crate::wire::Gid;
use proptest::prelude::*;

const LEAF: [u16; 2] = [1, 2];
const SPINE: u16 = 3;
/// Base LIDs of our port and of the peer's: room for LMC 3.
const BASE: [u16; 2] = [16, 72];

struct Net {
    lmc: u8,
    /// The spine by which packets to each LID of the two ports go.
    spine: [Vec<u16>; 2],
    paths: Vec<PathRecord>,
    asked: usize,
}

impl Net {
    /// Packets to LID n of the ports go by the spines that `spine` names; all pairs of LIDs are paths.
    fn new(lmc: u8, spine: [&[u16]; 2]) -> Self {
        let lids = 1u16 << lmc;
        let mut paths = Vec::new();
        for turn in 0..lids {
            for n in 0..lids {
                paths.push(path(BASE[0] + n, BASE[1] + (n + turn) % lids));
            }
        }
        Self {
            lmc,
            spine: spine.map(<[u16]>::to_vec),
            paths,
            asked: 0,
        }
    }

    /// As OpenSM answers: switches at LIDs that an LMC would cut off are not found by LID.
    fn links(&self, query: Query) -> Vec<LinkRecord> {
        let link = |from_lid, from_port, to_lid, to_port| LinkRecord {
            from_lid,
            from_port,
            to_port,
            to_lid,
        };
        let mut all = Vec::new();
        for n in 0..2u8 {
            let at = usize::from(n);
            all.push(link(BASE[at], 1, LEAF[at], 1));
            for spine in 0..8 {
                all.push(link(LEAF[at], 10 + spine as u8, SPINE + spine, 1 + n));
            }
        }
        let back: Vec<_> = all
            .iter()
            .map(|l| link(l.to_lid, l.to_port, l.from_lid, l.from_port))
            .collect();
        all.extend(back);
        let mask = u16::MAX << self.lmc;
        match query {
            Query::LinksFrom(lid) => all.retain(|l| l.from_lid == lid & mask),
            Query::LinksByPort(port) => all.retain(|l| l.from_port == port),
            other => panic!("{other:?}"),
        }
        all
    }

    fn table(&self, switch: u16, block: u16) -> ForwardingRecord {
        let mut ports = [255; ForwardingRecord::LIDS];
        for side in 0..2 {
            for (n, spine) in self.spine[side].iter().enumerate() {
                let lid = usize::from(BASE[side]) + n;
                if lid / 64 != usize::from(block) {
                    continue;
                }
                ports[lid % 64] = if switch == LEAF[side] {
                    1
                } else if switch == LEAF[1 - side] {
                    10 + *spine as u8
                } else {
                    1 + side as u8
                };
            }
        }
        ForwardingRecord {
            switch,
            block,
            ports,
        }
    }

    fn port(&self) -> PortInfoRecord {
        PortInfoRecord {
            lid: BASE[1],
            lmc: self.lmc,
        }
    }

    fn run(&mut self, primary: Primary) -> Result<Alternate, Reason> {
        self.go(Lids::new(primary, local(self.lmc)))
    }

    fn go(&mut self, mut lids: Lids) -> Result<Alternate, Reason> {
        while let Some(query) = lids.next() {
            self.asked += 1;
            assert!(self.asked < 200);
            match query {
                Query::Paths { .. } => {
                    lids.paths(self.paths.iter().copied());
                }
                Query::PortOfLid(_) => lids.port([self.port()].into_iter()),
                Query::LinksFrom(_) | Query::LinksByPort(_) => {
                    lids.links(self.links(query).into_iter())
                }
                Query::Forwarding { switch, block } => {
                    lids.forwarding([self.table(switch, block)].into_iter())
                }
                other => panic!("{other:?}"),
            }
        }
        lids.result()
    }

    /// The spines of a path, there and back.
    fn spines(&self, (slid, dlid): (u16, u16)) -> [u16; 2] {
        [
            self.spine[1][usize::from(dlid - BASE[1])],
            self.spine[0][usize::from(slid - BASE[0])],
        ]
    }

    fn common(&self, a: (u16, u16), b: (u16, u16)) -> bool {
        let b = self.spines(b);
        self.spines(a).iter().any(|s| b.contains(s))
    }
}

fn primary(slid: u16, dlid: u16) -> Primary {
    Primary {
        port: 1,
        sgid: Gid::new(1, 1),
        dgid: Gid::new(1, 2),
        slid,
        dlid,
        pkey: 0xffff,
        sl: 0,
        mtu: 4,
    }
}

fn local(lmc: u8) -> LocalPort {
    LocalPort {
        num: 1,
        gid: Gid::new(1, 1),
        lid: BASE[0],
        lmc,
        active: true,
        has_pkey: true,
    }
}

fn path(slid: u16, dlid: u16) -> PathRecord {
    PathRecord {
        sgid: Gid::new(1, 1),
        dgid: Gid::new(1, 2),
        slid,
        dlid,
        reversible: true,
        pkey: 0xffff,
        mtu: 4,
        ..Default::default()
    }
}

fn lids(found: &Alternate) -> (u16, u16) {
    (found.path.slid, found.path.dlid)
}

#[test]
fn the_other_spine() {
    let mut net = Net::new(1, [&[0, 1], &[0, 1]]);
    let found = net.run(primary(16, 72)).unwrap();
    assert_eq!(found.primary_lids, (16, 72));
    assert_eq!((found.port, lids(&found)), (1, (17, 73)));
    assert_eq!(found.disjoint, Disjoint::Switches);
}

#[test]
fn a_pair_without_a_common_spine_where_there_and_back_differ() {
    // There by spine 0, back by spine 1: no alternate to this path avoids both.
    let mut net = Net::new(1, [&[1, 0], &[0, 1]]);
    let found = net.run(primary(16, 72)).unwrap();
    assert_eq!(found.disjoint, Disjoint::Switches);
    assert!(!net.common(found.primary_lids, lids(&found)));
    let [there, back] = net.spines(found.primary_lids);
    assert_eq!(there, back);
}

#[test]
fn an_established_connection_keeps_its_path() {
    let mut net = Net::new(1, [&[1, 0], &[0, 1]]);
    let found = net
        .go(Lids::for_established(primary(16, 72), local(1)))
        .unwrap();
    assert_eq!(found.primary_lids, (16, 72));
    assert!(net.common(found.primary_lids, lids(&found)));
}

#[test]
fn the_same_way_is_no_alternate() {
    let mut net = Net::new(1, [&[0, 0], &[0, 0]]);
    assert_eq!(net.run(primary(16, 72)), Err(Reason::AlternateNotDisjoint));
}

#[test]
fn one_lid_each_is_no_alternate() {
    let mut net = Net::new(0, [&[0], &[0]]);
    assert_eq!(net.run(primary(16, 72)), Err(Reason::NoAlternateInSa));
    assert_eq!(net.asked, 1);
}

#[test]
fn two_lids_at_one_end_only() {
    // The way back is the same; the acknowledgements of a dead spine would be lost.
    let mut net = Net::new(0, [&[0], &[0]]);
    net.paths = vec![path(16, 72), path(16, 73)];
    net.spine[1].push(1);
    let mut lids = Lids::new(primary(16, 72), local(0));
    lids.paths(net.paths.iter().copied());
    lids.port([PortInfoRecord { lid: 72, lmc: 1 }].into_iter());
    while let Some(query) = lids.next() {
        match query {
            Query::LinksFrom(_) | Query::LinksByPort(_) => lids.links(net.links(query).into_iter()),
            Query::Forwarding { switch, block } => {
                lids.forwarding([net.table(switch, block)].into_iter())
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lids.result(), Err(Reason::AlternateNotDisjoint));
}

#[test]
fn routes_that_cannot_be_followed() {
    let mut net = Net::new(1, [&[0, 1], &[0, 1]]);
    let mut lids = Lids::new(primary(16, 72), local(1));
    net.paths.rotate_left(2);
    lids.paths(net.paths.iter().copied());
    lids.port([net.port()].into_iter());
    while lids.next().is_some() {
        lids.failed(Failure::NoRecords);
    }
    let found = lids.result().unwrap();
    // Not knowing better: other LIDs at both ends, and the path in use stays.
    assert_eq!((found.path.slid, found.path.dlid), (17, 73));
    assert_eq!(found.primary_lids, (16, 72));
    assert_eq!(found.disjoint, Disjoint::Lid);
}

#[test]
fn lids_of_somebody_else() {
    let mut net = Net::new(1, [&[0, 1], &[0, 1]]);
    net.paths = vec![path(16, 72), path(17, 74), path(18, 73), path(17, 71)];
    assert_eq!(net.run(primary(16, 72)), Err(Reason::NoAlternateInSa));
    // Without the PortInfoRecord of the peer's port nothing is believed.
    let mut lids = Lids::new(primary(16, 72), local(1));
    lids.paths([path(17, 73)].into_iter());
    lids.port([PortInfoRecord { lid: 70, lmc: 1 }].into_iter());
    assert_eq!(lids.next(), None);
    assert_eq!(lids.result(), Err(Reason::NoAlternateInSa));
}

#[test]
fn the_path_in_use_is_replaced_by_its_like_only() {
    let mut net = Net::new(1, [&[1, 0], &[0, 1]]);
    for rec in &mut net.paths {
        if (rec.slid, rec.dlid) != (16, 72) {
            rec.packet_life_time = 20;
        }
    }
    let found = net.run(primary(16, 72)).unwrap();
    assert_eq!(found.primary_lids, (16, 72));
}

#[test]
fn reasons() {
    let mut mtu = Lids::new(primary(16, 72), local(1));
    let small = PathRecord {
        mtu: 3,
        ..path(17, 73)
    };
    assert_eq!(mtu.paths([small].into_iter()), Some(Reason::MtuMismatch));
    assert_eq!(mtu.result(), Err(Reason::NoAlternateInSa));
}

proptest! {
    /// However packets are led: the alternate is between LIDs of the two ports, never the path in use,
    /// to another DLID, and has no spine in common with the path in use if any pair of paths has none.
    #[test]
    fn as_far_apart_as_there_is(
        lmc in 0u8..3,
        there in prop::collection::vec(0u16..4, 4),
        back in prop::collection::vec(0u16..4, 4),
        (from, to) in (0u16..4, 0u16..4),
    ) {
        let count = 1u16 << lmc;
        let ways = [&back[..usize::from(count)], &there[..usize::from(count)]];
        let mut net = Net::new(lmc, ways);
        let used = (BASE[0] + from % count, BASE[1] + to % count);
        let all: Vec<_> = net.paths.iter().map(|p| (p.slid, p.dlid)).collect();
        let apart = all
            .iter()
            .any(|p| all.iter().any(|a| a.1 != p.1 && !net.common(*p, *a)));
        match net.run(primary(used.0, used.1)) {
            Ok(found) => {
                let alternate = lids(&found);
                prop_assert!(in_range(BASE[0], lmc, alternate.0) && in_range(BASE[1], lmc, alternate.1));
                prop_assert!(alternate.1 != found.primary_lids.1);
                prop_assert!(all.contains(&found.primary_lids));
                prop_assert_eq!(!net.common(found.primary_lids, alternate), apart);
                prop_assert_eq!(found.disjoint == Disjoint::Switches, apart);
            }
            Err(reason) => {
                prop_assert!(!apart);
                prop_assert!(matches!(reason, Reason::NoAlternateInSa | Reason::AlternateNotDisjoint));
            }
        }
    }

    /// Whatever is answered, the search ends and does not panic.
    #[test]
    fn always_ends(
        paths in prop::collection::vec((0u16..100, 0u16..100), 0..40),
        links in prop::collection::vec((0u16..20, any::<u8>(), any::<u8>(), 0u16..20), 0..30),
        ports in prop::collection::vec(any::<u8>(), 64),
        port in (any::<u16>(), any::<u8>()),
        fail in prop::collection::vec(0u8..10, 64),
    ) {
        let mut search = Lids::new(primary(16, 72), local(2));
        let mut fail = fail.into_iter();
        let mut rounds = 0;
        while let Some(query) = search.next() {
            rounds += 1;
            prop_assert!(rounds < 200);
            if fail.next() == Some(0) {
                search.failed(Failure::Malformed);
                continue;
            }
            match query {
                Query::Paths { .. } => {
                    search.paths(paths.iter().map(|&(slid, dlid)| path(slid, dlid)));
                }
                Query::PortOfLid(_) => {
                    let (lid, lmc) = if port.1 & 1 == 0 { (72, 2) } else { port };
                    search.port([PortInfoRecord { lid, lmc }].into_iter());
                }
                Query::LinksFrom(from) => search.links(links.iter().map(
                    |&(_, from_port, to_port, to_lid)| LinkRecord { from_lid: from, from_port, to_port, to_lid },
                )),
                Query::LinksByPort(from_port) => search.links(links.iter().map(
                    |&(from_lid, _, to_port, to_lid)| LinkRecord { from_lid, from_port, to_port, to_lid },
                )),
                Query::Forwarding { switch, block } => {
                    let ports = ports.clone().try_into().unwrap();
                    search.forwarding([ForwardingRecord { switch, block, ports }].into_iter());
                }
                other => panic!("{other:?}"),
            }
        }
        if let Ok(found) = search.result() {
            let alternate = lids(&found);
            prop_assert!(alternate != found.primary_lids);
            prop_assert!(paths.contains(&alternate));
        }
    }
}
