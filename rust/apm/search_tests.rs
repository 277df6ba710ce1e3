// SPDX-License-Identifier: GPL-2.0-only

//! The search against a made-up subnet administration.

use super::*;
use proptest::prelude::*;

const PREFIX: u64 = 0xfe80 << 48;
const NODE: u64 = 0x200;

fn gid(guid: u64) -> Gid {
    Gid::new(PREFIX, guid)
}

/// The `rails` topology: node 0x100 is ours, node 0x200 the peer's; port p of node n has GUID n + p.
fn primary() -> Primary {
    Primary {
        port: 1,
        sgid: gid(0x101),
        dgid: gid(0x201),
        slid: 1,
        dlid: 4,
        pkey: 0xffff,
        sl: 0,
        mtu: 4,
    }
}

fn local(num: u32) -> LocalPort {
    LocalPort {
        num,
        gid: gid(0x100 + u64::from(num)),
        lid: num as u16,
        lmc: 0,
        active: true,
        has_pkey: true,
    }
}

fn node(port: u16) -> NodeRecord {
    NodeRecord {
        lid: 3 + port,
        node_type: NodeRecord::CHANNEL_ADAPTER,
        node_guid: NODE,
        port_guid: NODE + u64::from(port),
    }
}

fn path(from: u64, slid: u16, to: u64, dlid: u16) -> PathRecord {
    PathRecord {
        sgid: gid(from),
        dgid: gid(to),
        slid,
        dlid,
        reversible: true,
        pkey: 0xffff,
        mtu: 5,
        rate: 3,
        packet_life_time: 12,
        ..Default::default()
    }
}

/// A subnet administration that knows these nodes and paths.
struct Sa {
    nodes: Vec<NodeRecord>,
    paths: Vec<PathRecord>,
    asked: Vec<(u32, Query)>,
}

impl Sa {
    fn rails() -> Self {
        let mut paths = Vec::new();
        for (from, slid) in [(0x101, 1), (0x102, 2)] {
            for (to, dlid) in [(0x201, 4), (0x202, 5)] {
                paths.push(path(from, slid, to, dlid));
            }
        }
        Self {
            nodes: vec![node(1), node(2)],
            paths,
            asked: Vec::new(),
        }
    }

    fn run(&mut self, mut search: Search) -> Result<Alternate, Reason> {
        self.go_on(&mut search)
    }

    fn go_on(&mut self, search: &mut Search) -> Result<Alternate, Reason> {
        for _ in 0..1000 {
            match search.next() {
                Next::Done(result) => return result,
                Next::Ask(port, query) => {
                    self.asked.push((port, query));
                    let nodes = self.nodes.iter().copied();
                    match query {
                        Query::NodeOfPort(guid) => {
                            search.nodes(nodes.filter(|n| n.port_guid == guid))
                        }
                        Query::NodeOfLid(lid) => search.nodes(nodes.filter(|n| n.lid == lid)),
                        Query::PortsOfNode(guid) => {
                            search.nodes(nodes.filter(|n| n.node_guid == guid))
                        }
                        Query::Paths { sgid, dgid, .. } => search.paths(
                            self.paths
                                .iter()
                                .copied()
                                .filter(|p| p.sgid == sgid && p.dgid == dgid),
                        ),
                        Query::PortOfLid(lid) => search.port(
                            [PortInfoRecord {
                                lid: lid & !1,
                                lmc: 1,
                            }]
                            .into_iter(),
                        ),
                        Query::LinksFrom(_) | Query::LinksByPort(_) | Query::Forwarding { .. } => {
                            search.failed(Failure::NoRecords)
                        }
                    }
                }
            }
        }
        panic!("the search does not end");
    }
}

#[test]
fn other_port_at_both_ends_first() {
    let mut sa = Sa::rails();
    let found = sa
        .run(Search::new(primary(), &[local(1), local(2)]))
        .unwrap();
    assert_eq!(found.port, 2);
    assert_eq!((found.path.slid, found.path.dlid), (2, 5));
    // As the primary's, though the record says more.
    assert_eq!(
        (found.path.mtu, found.path.pkey, found.path.sl),
        (4, 0xffff, 0)
    );
    // One for the node, one for its ports, one for the path.
    assert_eq!(sa.asked.len(), 3);
    assert_eq!(sa.asked[2].0, 2);
}

#[test]
fn then_other_port_here_then_other_port_there() {
    let mut sa = Sa::rails();
    sa.paths.retain(|p| (p.slid, p.dlid) != (2, 5));
    let found = sa
        .run(Search::new(primary(), &[local(1), local(2)]))
        .unwrap();
    assert_eq!((found.port, found.path.slid, found.path.dlid), (2, 2, 4));

    sa.paths.retain(|p| p.slid == 1);
    let found = sa
        .run(Search::new(primary(), &[local(1), local(2)]))
        .unwrap();
    assert_eq!((found.port, found.path.slid, found.path.dlid), (1, 1, 5));
}

#[test]
fn the_path_in_use_is_no_alternate() {
    let mut sa = Sa::rails();
    sa.paths.retain(|p| (p.slid, p.dlid) == (1, 4));
    let result = sa.run(Search::new(primary(), &[local(1), local(2)]));
    assert_eq!(result, Err(Reason::NoAlternateInSa));
}

#[test]
fn an_answer_that_repeats_the_path_in_use_is_refused() {
    let mut sa = Sa::rails();
    // A record for the other GIDs with the LIDs of the path in use.
    sa.paths = vec![PathRecord {
        slid: 1,
        dlid: 4,
        ..path(0x101, 1, 0x202, 5)
    }];
    sa.nodes[1].lid = 4;
    let result = sa.run(Search::new(primary(), &[local(1), local(2)]));
    assert_eq!(result, Err(Reason::AlternateNotDisjoint));
}

#[test]
fn smaller_mtu_is_named() {
    let mut sa = Sa::rails();
    for p in &mut sa.paths {
        p.mtu = 3;
    }
    let result = sa.run(Search::new(primary(), &[local(1), local(2)]));
    assert_eq!(result, Err(Reason::MtuMismatch));
}

#[test]
fn other_service_level_or_one_way_only_is_no_path() {
    for change in [
        |p: &mut PathRecord| p.sl = 1,
        |p: &mut PathRecord| p.reversible = false,
    ] {
        let mut sa = Sa::rails();
        sa.paths.iter_mut().for_each(change);
        let result = sa.run(Search::new(primary(), &[local(1), local(2)]));
        assert_eq!(result, Err(Reason::NoAlternateInSa));
    }
}

#[test]
fn local_ports_that_cannot() {
    let mut one_port_peer = Sa::rails();
    one_port_peer.nodes.pop();
    let down = LocalPort {
        active: false,
        ..local(2)
    };
    let result = one_port_peer.run(Search::new(primary(), &[local(1), down]));
    assert_eq!(result, Err(Reason::PortDown));
    let other_partition = LocalPort {
        has_pkey: false,
        ..local(2)
    };
    let result = one_port_peer.run(Search::new(primary(), &[local(1), other_partition]));
    assert_eq!(result, Err(Reason::PkeyMissing));
    let result = one_port_peer.run(Search::new(primary(), &[local(1)]));
    assert_eq!(result, Err(Reason::SinglePortHca));
}

#[test]
fn one_port_here_two_ports_there() {
    let found = Sa::rails()
        .run(Search::new(primary(), &[local(1)]))
        .unwrap();
    assert_eq!((found.port, found.path.dlid), (1, 5));
}

#[test]
fn other_lids_of_the_same_ports_last() {
    let two_lids = |num| LocalPort {
        lmc: 1,
        lid: 16 * num as u16,
        ..local(num)
    };
    let mut sa = Sa::rails();
    sa.nodes.pop();
    sa.paths = vec![path(0x101, 16, 0x201, 4), path(0x101, 17, 0x201, 5)];
    let primary = Primary {
        slid: 16,
        ..primary()
    };
    let found = sa.run(Search::new(primary, &[two_lids(1)])).unwrap();
    assert_eq!((found.port, found.path.slid, found.path.dlid), (1, 17, 5));
    assert_eq!(found.disjoint, Disjoint::Lid);
    // Any other port is better.
    sa.paths.push(path(0x102, 32, 0x201, 4));
    let found = sa
        .run(Search::new(primary, &[two_lids(1), two_lids(2)]))
        .unwrap();
    assert_eq!((found.port, found.disjoint), (2, Disjoint::Port));
    // Without a second LID there is nothing.
    sa.paths.truncate(1);
    let result = sa.run(Search::new(primary, &[two_lids(1)]));
    assert_eq!(result, Err(Reason::SinglePortHca));
}

#[test]
fn alias_guid_and_a_lid_above_the_base() {
    let mut sa = Sa::rails();
    sa.nodes[0].lid = 8;
    sa.nodes[1].lid = 12;
    sa.paths = vec![path(0x101, 1, 0x201, 9), path(0x102, 2, 0x202, 12)];
    let alias = Primary {
        dgid: gid(0xa11a5),
        dlid: 9,
        ..primary()
    };
    let mut search = Search::new(alias, &[local(1), local(2)]);
    assert!(matches!(search.next(), Next::Ask(1, Query::NodeOfPort(_))));
    search.failed(Failure::NoRecords);
    // Subnet administration finds the port by any of its LIDs.
    assert_eq!(search.next(), Next::Ask(1, Query::NodeOfLid(9)));
    search.nodes([sa.nodes[0]].into_iter());
    let found = sa.run(search).unwrap();
    assert_eq!((found.path.dlid, found.disjoint), (12, Disjoint::Ports));
}

#[test]
fn alias_guid_is_found_by_lid() {
    let mut sa = Sa::rails();
    let alias = Primary {
        dgid: gid(0xa11a5),
        ..primary()
    };
    let found = sa.run(Search::new(alias, &[local(1), local(2)])).unwrap();
    assert_eq!((found.path.slid, found.path.dlid), (2, 5));
    assert_eq!(sa.asked[1].1, Query::NodeOfLid(4));
}

#[test]
fn ports_of_another_node_are_never_taken() {
    let mut sa = Sa::rails();
    sa.nodes[1].node_guid = 0x300;
    // A liar: answers the question for the node's ports with somebody else's.
    let mut search = Search::new(primary(), &[local(1), local(2)]);
    loop {
        match search.next() {
            Next::Done(result) => {
                let found = result.unwrap();
                assert_eq!(found.path.dgid, gid(0x201));
                break;
            }
            Next::Ask(_, Query::Paths { sgid, dgid, .. }) => {
                let all = sa.paths.clone();
                search.paths(all.into_iter().filter(|p| p.sgid == sgid && p.dgid == dgid));
            }
            Next::Ask(_, _) => search.nodes(sa.nodes.iter().copied()),
        }
    }
}

#[test]
fn two_subnets_each_by_its_own_administration() {
    let far = 0xfec0 << 48;
    let mut sa = Sa::rails();
    let there = LocalPort {
        gid: Gid::new(far, 0x102),
        ..local(2)
    };
    sa.paths = vec![PathRecord {
        sgid: Gid::new(far, 0x102),
        dgid: Gid::new(far, 0x202),
        ..path(0, 2, 0, 5)
    }];
    let found = sa.run(Search::new(primary(), &[local(1), there])).unwrap();
    assert_eq!(found.path.dgid, Gid::new(far, 0x202));
    let ports: Vec<u32> = sa
        .asked
        .iter()
        .filter(|(_, q)| matches!(q, Query::PortsOfNode(_)))
        .map(|(port, _)| *port)
        .collect();
    assert_eq!(ports, [1, 2]);
}

#[test]
fn silence_ends_the_search() {
    let mut search = Search::new(primary(), &[local(1), local(2)]);
    assert!(matches!(
        search.next(),
        Next::Ask(1, Query::NodeOfPort(0x201))
    ));
    search.failed(Failure::Timeout);
    assert_eq!(search.next(), Next::Done(Err(Reason::SaTimeout)));
}

proptest! {
    /// Whatever subnet administration answers: the search ends, and what it finds leaves by a port
    /// of this HCA, goes to a port of the peer's node and is not the path in use.
    #[test]
    fn always_ends_and_never_errs(
        nodes in prop::collection::vec((1u16..0xd000, 0u8..3, 0x1ffu64..0x202, 0x200u64..0x204), 0..12),
        paths in prop::collection::vec((0x100u64..0x104, 0u16..8, 0x200u64..0x204, 0u16..0xd000, 0u8..6, any::<bool>()), 0..40),
        ports in 1u32..7,
        fail in prop::collection::vec(0u8..10, 64),
    ) {
        let nodes: Vec<NodeRecord> = nodes
            .iter()
            .map(|&(lid, node_type, node_guid, port_guid)| NodeRecord { lid, node_type, node_guid, port_guid })
            .collect();
        let paths: Vec<PathRecord> = paths
            .iter()
            .map(|&(from, slid, to, dlid, mtu, reversible)| PathRecord { mtu, reversible, ..path(from, slid, to, dlid) })
            .collect();
        let locals: Vec<LocalPort> = (1..=ports).map(local).collect();
        let mut search = Search::new(primary(), &locals);
        let mut fail = fail.into_iter();
        let mut rounds = 0;
        let result = loop {
            rounds += 1;
            prop_assert!(rounds < 200);
            match search.next() {
                Next::Done(result) => break result,
                Next::Ask(_, _) if fail.next() == Some(0) => search.failed(Failure::NoRecords),
                Next::Ask(_, Query::Paths { .. }) => search.paths(paths.iter().copied()),
                Next::Ask(_, Query::PortOfLid(lid)) => {
                    search.port([PortInfoRecord { lid: lid & !7, lmc: 3 }].into_iter())
                }
                Next::Ask(_, Query::LinksFrom(_) | Query::LinksByPort(_) | Query::Forwarding { .. }) => {
                    search.failed(Failure::NoRecords)
                }
                Next::Ask(_, _) => search.nodes(nodes.iter().copied()),
            }
        };
        if let Ok(found) = result {
            prop_assert!(locals.iter().any(|l| l.num == found.port && l.lid == found.path.slid));
            prop_assert!((found.path.slid, found.path.dlid) != (1, 4));
            prop_assert!(nodes.iter().any(|n| gid(n.port_guid) == found.path.dgid));
            prop_assert_eq!(found.path.mtu, 4);
        }
    }
}

#[test]
fn one_after_the_other() {
    let mut sa = Sa::rails();
    let mut search = Search::for_established(primary(), &[local(1), local(2)]);
    let mut found = Vec::new();
    while let Ok(alternate) = sa.go_on(&mut search) {
        found.push((alternate.path.slid, alternate.path.dlid, alternate.disjoint));
        search.resume();
    }
    let expected = [
        (2, 5, Disjoint::Ports),
        (2, 4, Disjoint::Port),
        (1, 5, Disjoint::Port),
    ];
    assert_eq!(found, expected);
    search.resume();
    assert!(sa.go_on(&mut search).is_err());
}
