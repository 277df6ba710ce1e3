// SPDX-License-Identifier: GPL-2.0-only

//! The migration state: what changes it, and what is refused.

use crate::migration::events;
use crate::support::*;
use vfabric_core::model::host::{QpEvent, Status};
use vfabric_core::model::rc::{Error, MigState, Modify, Quirks, State};

use MigState::{Armed, Migrated, Rearm};

#[test]
fn a_queue_pair_starts_migrated_and_says_so_in_each_packet() {
    let mut w = World::connected();
    assert_eq!(w.mig(), [Migrated, Migrated]);
    w.write_nothing(0);
    w.run();
    assert_eq!(w.log.len(), 2);
    assert!(w.log.iter().all(|(_, _, p)| p.bth.mig_req));
}

#[test]
fn rearm_becomes_armed_only_by_a_packet_without_migreq() {
    let mut w = World::connected();
    w.modify(0, &rearm(0)).unwrap();
    assert_eq!(w.mig(), [Rearm, Migrated]);
    // The peer is MIGRATED: what it sends does not arm.
    w.write_nothing(1);
    w.write_nothing(0);
    w.run();
    assert_eq!(w.mig(), [Rearm, Migrated]);

    // Time alone does not either.
    w.modify(1, &rearm(1)).unwrap();
    w.run_for(1000 * MS);
    assert_eq!(w.mig(), [Rearm, Rearm]);

    // One request of no bytes arms both.
    w.write_nothing(0);
    w.run();
    assert_eq!(w.mig(), [Armed, Armed]);
    assert!(w.log.iter().rev().take(2).all(|(_, _, p)| !p.bth.mig_req));
    assert_eq!(events(&w, QpEvent::PathMig), [0, 0]);
}

#[test]
fn armed_needs_a_packet_on_the_path_in_use() {
    let mut w = World::connected();
    for node in 0..2 {
        w.modify(node, &rearm(node)).unwrap();
    }
    w.write_nothing(0);
    let (_, _, mut packet) = w.log.pop().unwrap();
    w.cut.push((1, 1));
    packet.lrh.slid = lid(0, 2);
    packet.lrh.dlid = lid(1, 2);
    w.deliver(1, 2, packet);
    assert_eq!(w.mig(), [Rearm, Rearm]);
}

#[test]
fn the_alternate_has_a_timeout_of_its_own() {
    let mut w = World::connected();
    for node in 0..2 {
        let mut alternate = path(node, 2, 2);
        alternate.timeout = TIMEOUT + 1;
        w.modify(node, &load(alternate)).unwrap();
        w.write_nothing(node);
    }
    w.run();
    w.cut.push((0, 2));
    w.modify(0, &migrate()).unwrap();
    w.write_nothing(0);
    assert_eq!(w.qps[0].timer(), Some(w.now + 2 * TIMEOUT_NS));
}

#[test]
fn migrated_is_refused_from_any_state_but_armed() {
    let mut w = World::connected();
    for mig in [Migrated, Rearm] {
        if mig == Rearm {
            w.modify(0, &rearm(0)).unwrap();
        }
        let before = w.qps[0].query();
        assert_eq!(before.mig, mig);
        let m = Modify {
            retry_cnt: Some(3),
            ..migrate()
        };
        assert_eq!(w.modify(0, &m), Err(Error::MigState));
        assert_eq!(w.qps[0].query(), before, "nothing has changed");
    }
    assert!(w.nodes[0].events.is_empty() && w.nodes[0].migrations.is_empty());
}

#[test]
fn armed_cannot_be_commanded() {
    let mut w = World::connected();
    let m = Modify {
        mig: Some(Armed),
        ..rearm(0)
    };
    assert_eq!(w.modify(0, &m), Err(Error::MigState));
    assert_eq!(w.qps[0].query().alt_path, None);
}

#[test]
fn rearm_needs_an_alternate_path() {
    let mut w = World::connected();
    let m = Modify {
        mig: Some(Rearm),
        ..Modify::default()
    };
    assert_eq!(w.modify(0, &m), Err(Error::NoAlternate));
    assert_eq!(w.mig(), [Migrated, Migrated]);
    // Loaded by an earlier call, as CM does between RTR and RTS.
    let alternate = Modify {
        alt_path: Some(path(0, 2, 2)),
        ..Modify::default()
    };
    w.modify(0, &alternate).unwrap();
    assert_eq!(w.mig(), [Migrated, Migrated]);
    w.modify(0, &m).unwrap();
    assert_eq!(w.mig(), [Rearm, Migrated]);
}

#[test]
fn what_cm_does_arms_both_sides_with_the_first_traffic() {
    // Alternate at RTR, REARM at RTS.
    let w = World::connected_with(|node, m| match m.state {
        Some(State::Rtr) => m.alt_path = Some(path(node, 2, 2)),
        Some(State::Rts) => m.mig = Some(Rearm),
        _ => {}
    });
    assert_eq!(w.mig(), [Rearm, Rearm]);
    let mut w = w;
    w.write_nothing(1);
    w.run();
    assert_eq!(w.mig(), [Armed, Armed]);
}

#[test]
fn a_driver_may_say_migrated_while_it_connects() {
    let w = World::connected_with(|_, m| m.mig = Some(Migrated));
    assert_eq!(w.mig(), [Migrated, Migrated]);
}

#[test]
fn exhaustion_in_rearm_is_the_end() {
    let mut w = World::connected();
    w.modify(0, &rearm(0)).unwrap();
    w.cut.push((0, 1));
    w.write_nothing(0);
    w.run();
    assert_eq!(w.nodes[0].statuses(), [Status::RetryExceeded]);
    assert!(w.nodes[0].migrations.is_empty());
    assert!(w.nodes[0].events.is_empty());
}

#[test]
fn path_mig_err_where_the_alternates_port_is_down() {
    let mut w = World::armed();
    w.nodes[0].down.push(2);
    let before = w.qps[0].query();
    assert_eq!(w.modify(0, &migrate()), Err(Error::AlternateUnusable));
    assert_eq!(w.qps[0].query(), before);
    assert_eq!(events(&w, QpEvent::PathMigErr), [1, 0]);
    w.cut.push((0, 1));
    w.write_nothing(0);
    w.run();
    assert_eq!(w.nodes[0].statuses().last(), Some(&Status::RetryExceeded));
    assert_eq!(events(&w, QpEvent::PathMigErr), [2, 0]);
    assert_eq!(events(&w, QpEvent::PathMig), [0, 0]);
    assert_eq!(w.states()[0], State::Err);
}

#[test]
fn path_mig_err_where_no_alternate_can_be_used() {
    let mut w = World::armed();
    let unusable = Quirks {
        alternate_unusable: true,
        ..Quirks::NONE
    };
    w.qps[0].set_quirks(unusable);
    assert_eq!(w.modify(0, &migrate()), Err(Error::AlternateUnusable));
    assert_eq!(events(&w, QpEvent::PathMigErr), [1, 0]);
    w.qps[0].set_quirks(Quirks::NONE);
    w.qps[1].set_quirks(unusable);
    w.modify(0, &migrate()).unwrap();
    w.write_nothing(0);
    w.run();
    assert_eq!(w.mig(), [Migrated, Armed]);
    assert_eq!(events(&w, QpEvent::PathMigErr), [1, 1]);
}

#[test]
fn path_mig_err_where_the_peer_migrates_to_another_path() {
    let mut w = World::connected();
    // Each side has loaded something else.
    w.modify(0, &load(path(0, 2, 1))).unwrap();
    w.modify(1, &rearm(1)).unwrap();
    for node in 0..2 {
        w.write_nothing(node);
    }
    w.run();
    assert_eq!(w.mig(), [Armed, Armed]);
    w.modify(0, &migrate()).unwrap();
    w.write_nothing(0);
    w.run();
    assert_eq!(w.mig(), [Migrated, Armed]);
    assert_eq!(events(&w, QpEvent::PathMigErr), [0, 1], "once");
    assert_eq!(w.nodes[0].statuses().last(), Some(&Status::RetryExceeded));
    assert_eq!(w.states(), [State::Err, State::Rts]);

    // Again with another alternate, and that is worth another event.
    w.modify(1, &rearm(1)).unwrap();
    let mut packet = copy(&w.log.iter().rfind(|(n, _, _)| *n == 0).unwrap().2);
    packet.bth.mig_req = false;
    packet.lrh.slid = lid(0, 1);
    w.deliver(1, 1, copy(&packet));
    assert_eq!(w.mig()[1], Armed);
    for _ in 0..2 {
        packet.bth.mig_req = true;
        w.deliver(1, 1, copy(&packet));
    }
    assert_eq!(events(&w, QpEvent::PathMigErr), [0, 2]);
}

#[test]
fn migration_of_a_queue_pair_in_err_is_refused() {
    let mut w = World::armed();
    w.modify(0, &to_state(State::Err)).unwrap();
    assert_eq!(w.modify(0, &migrate()), Err(Error::State));
    assert!(w.nodes[0].migrations.is_empty());
}

#[test]
fn query_may_keep_the_paths_in_their_places() {
    let mut w = World::armed();
    let (first, second) = (path(0, 1, 1), path(0, 2, 2));
    w.qps[0].set_quirks(Quirks {
        query_swaps_paths: false,
        ..Quirks::NONE
    });
    let paths = |w: &World| {
        let q = w.qps[0].query();
        (q.path, q.alt_path)
    };
    assert_eq!(paths(&w), (Some(first), Some(second)));
    w.modify(0, &migrate()).unwrap();
    assert_eq!(paths(&w), (Some(first), Some(second)));
    assert_eq!(w.qps[0].path_in_use(), Some(second));
    // A new alternate goes to the place that is free.
    let third = path(0, 1, 2);
    w.modify(0, &load(third)).unwrap();
    assert_eq!(paths(&w), (Some(third), Some(second)));
}

#[test]
fn the_same_port_with_another_lid_is_another_path() {
    // LMC 1 at both ends, one port: LIDs 0x10 and 0x11, 0x20 and 0x21.
    let lmc_path = |node: usize, bits: u8| {
        let mut p = path(node, 1, 1);
        p.dlid = [0x20, 0x10][node] + u16::from(bits);
        p.path_bits = bits;
        p
    };
    let mut w = World::connected_with(|node, m| {
        if m.path.is_some() {
            m.path = Some(lmc_path(node, 0));
        }
    });
    for node in 0..2 {
        w.nodes[node].ports = [(1, ([0x10, 0x20][node], 1))].into();
        w.modify(node, &load(lmc_path(node, 1))).unwrap();
    }
    // Carried by hand: what one sends goes to the other.
    let carry = |w: &mut World| {
        while let Some((from, port, packet)) = w.log.pop() {
            w.deliver(1 - from, port, packet);
        }
    };
    w.write_nothing(0);
    carry(&mut w);
    assert_eq!(w.mig(), [Armed, Armed]);
    w.modify(1, &migrate()).unwrap();
    w.write_nothing(1);
    let (_, _, packet) = w.log.last().unwrap();
    assert_eq!((packet.lrh.slid, packet.lrh.dlid), (0x21, 0x11));
    carry(&mut w);
    assert_eq!(w.mig(), [Migrated, Migrated]);
    w.assert_all_sent(0);
    w.assert_all_sent(1);
}
