// SPDX-License-Identifier: GPL-2.0

//! Automatic path migration.

mod support;

use support::*;
use vfabric_core::model::host::{MigrationCause, QpEvent, Status};
use vfabric_core::model::rc::{Error, MigState, Modify, Quirks, State};

use MigState::{Armed, Migrated, Rearm};

fn events(w: &World, event: QpEvent) -> [usize; 2] {
    [w.nodes[0].count(event), w.nodes[1].count(event)]
}

fn causes(w: &World, node: usize) -> Vec<MigrationCause> {
    w.nodes[node].migrations.iter().map(|m| m.0).collect()
}

/// Both are on port 2 to port 2, and no alternate is left.
fn assert_moved(w: &World) {
    assert_eq!(w.mig(), [Migrated, Migrated]);
    for node in 0..2 {
        let q = w.qps[node].query();
        assert_eq!(q.path, Some(path(node, 2, 2)));
        assert_eq!(q.alt_path, None);
        assert_eq!(w.nodes[node].migrations.len(), 1);
        let (_, port, dlid) = w.nodes[node].migrations[0];
        assert_eq!((port, dlid), (2, lid(1 - node, 2)));
    }
}

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
fn migration_by_exhaustion_carries_on_without_an_error() {
    for cut in [(0, 1), (1, 1)] {
        let mut w = World::armed();
        let start = w.now;
        w.nodes[1].post_recv(1000);
        w.cut.push(cut);
        w.send(0, pattern(1, 700));
        w.run();
        w.assert_all_sent(0);
        assert_eq!(w.nodes[1].payloads(), [pattern(1, 700)]);
        assert_moved(&w);
        assert_eq!(causes(&w, 0), [MigrationCause::Exhaustion]);
        assert_eq!(causes(&w, 1), [MigrationCause::Peer]);
        assert_eq!(events(&w, QpEvent::PathMig), [1, 1]);
        assert!(w.now - start >= 8 * TIMEOUT_NS, "all tries came first");
        assert!(w.now - start < 9 * TIMEOUT_NS);
    }
}

#[test]
fn retries_start_anew_on_the_alternate_path() {
    let mut w = World::armed();
    let start = w.now;
    w.cut.push((0, 1));
    w.cut.push((0, 2));
    w.send(0, pattern(1, 7));
    w.run();
    assert_eq!(w.nodes[0].statuses().last(), Some(&Status::RetryExceeded));
    assert_eq!(causes(&w, 0), [MigrationCause::Exhaustion]);
    assert_eq!(w.now - start, 16 * TIMEOUT_NS);
    assert_eq!(w.states()[0], State::Err);
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
fn migration_by_the_peer_needs_migreq_on_the_alternate_path() {
    let mut w = World::armed();
    w.modify(0, &migrate()).unwrap();
    assert_eq!(w.mig(), [Migrated, Armed]);
    w.run_for(10 * MS);
    assert_eq!(w.mig(), [Migrated, Armed], "nothing was sent to tell it");
    w.write_nothing(0);
    w.run();
    w.assert_all_sent(0);
    assert_moved(&w);
    assert_eq!(causes(&w, 0), [MigrationCause::Command]);
    assert_eq!(causes(&w, 1), [MigrationCause::Peer]);
    assert_eq!(events(&w, QpEvent::PathMig), [1, 1]);
    assert_eq!(events(&w, QpEvent::PathMigErr), [0, 0]);
}

#[test]
fn outstanding_requests_are_sent_again_at_once_after_a_commanded_migration() {
    let mut w = World::armed();
    w.nodes[1].post_recv(1000);
    w.cut.push((0, 1));
    w.send(0, pattern(1, 700));
    let start = w.now;
    w.modify(0, &migrate()).unwrap();
    w.run();
    w.assert_all_sent(0);
    assert_moved(&w);
    assert!(w.now - start < MS);
}

#[test]
fn the_peers_outstanding_requests_are_sent_again_when_it_follows() {
    let mut w = World::armed();
    w.nodes[0].post_recv(1000);
    w.cut.push((1, 1));
    w.send(1, pattern(1, 700));
    let start = w.now;
    w.modify(0, &migrate()).unwrap();
    w.write_nothing(0);
    w.run();
    w.assert_all_sent(0);
    w.assert_all_sent(1);
    assert_eq!(w.nodes[0].payloads(), [pattern(1, 700)]);
    assert_moved(&w);
    assert!(w.now - start < MS);
}

#[test]
fn without_that_the_ack_timer_finds_them() {
    let mut w = World::armed();
    w.qps[0].set_quirks(Quirks {
        retransmit_on_migration: false,
        ..Quirks::NONE
    });
    w.nodes[1].post_recv(1000);
    w.cut.push((0, 1));
    w.send(0, pattern(1, 700));
    let (start, sent) = (w.now, w.sent[0]);
    w.modify(0, &migrate()).unwrap();
    assert_eq!(w.sent[0], sent);
    w.run();
    w.assert_all_sent(0);
    assert_moved(&w);
    assert!(w.now - start >= TIMEOUT_NS);
    assert!(w.now - start < 2 * TIMEOUT_NS);
}

#[test]
fn or_the_nak_that_the_next_request_provokes() {
    let mut w = World::armed();
    w.qps[0].set_quirks(Quirks {
        retransmit_on_migration: false,
        ..Quirks::NONE
    });
    w.nodes[1].post_recv(1000);
    w.cut.push((0, 1));
    w.send(0, pattern(1, 700));
    let start = w.now;
    w.modify(0, &migrate()).unwrap();
    w.write_nothing(0);
    w.run();
    w.assert_all_sent(0);
    assert_moved(&w);
    assert!(w.now - start < MS);
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
fn the_old_path_is_dead_after_migration() {
    let mut w = World::armed();
    w.nodes[0].post_recv(10);
    w.modify(0, &migrate()).unwrap();
    // The peer does not know and sends by the path that was left.
    w.send(1, pattern(1, 10));
    w.run_for(TIMEOUT_NS / 2);
    assert!(w.nodes[0].received.is_empty());
    assert!(w.qps[0].counters().refused > 0);
    // It gives up in the end, migrates, too, and nothing is lost.
    w.run();
    w.assert_all_sent(1);
    assert_eq!(w.nodes[0].payloads(), [pattern(1, 10)]);
    assert_moved(&w);
    assert_eq!(causes(&w, 1), [MigrationCause::Exhaustion]);
}

#[test]
fn acks_that_are_still_on_the_old_path_do_no_harm() {
    let mut w = World::armed();
    w.nodes[1].post_recv(1000);
    w.send(0, pattern(1, 700));
    // Received, acknowledged by the old path; meanwhile the sender has left.
    w.step(u64::MAX);
    assert_eq!(w.nodes[1].received.len(), 1);
    w.modify(0, &migrate()).unwrap();
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[1].received.len(), 1, "not delivered twice");
    assert_moved(&w);
}

#[test]
fn both_sides_may_migrate_at_once() {
    let mut w = World::armed();
    for node in 0..2 {
        w.nodes[node].post_recv(100);
        w.send(node, pattern(node as u32, 50));
        w.modify(node, &migrate()).unwrap();
    }
    w.run();
    for node in 0..2 {
        w.assert_all_sent(node);
        assert_eq!(causes(&w, node), [MigrationCause::Command]);
    }
    assert_moved(&w);
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
}

#[test]
fn migration_of_a_queue_pair_in_err_is_refused() {
    let mut w = World::armed();
    w.modify(0, &to_state(State::Err)).unwrap();
    assert_eq!(w.modify(0, &migrate()), Err(Error::State));
    assert!(w.nodes[0].migrations.is_empty());
}

#[test]
fn a_commanded_migration_raises_as_many_events_as_the_hca_likes() {
    for n in 0..=2 {
        let mut w = World::armed();
        w.qps[0].set_quirks(Quirks {
            path_mig_events: n,
            ..Quirks::NONE
        });
        w.qps[1].set_quirks(Quirks {
            path_mig_events: n,
            ..Quirks::NONE
        });
        w.modify(0, &migrate()).unwrap();
        w.write_nothing(0);
        w.run();
        assert_eq!(events(&w, QpEvent::PathMig), [usize::from(n), 1]);
    }
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
fn it_can_migrate_there_and_back_many_times() {
    let mut w = World::connected();
    for round in 0..6u32 {
        let on = if round % 2 == 0 { 1 } else { 2 };
        let other = 3 - on;
        for node in 0..2 {
            w.modify(node, &load(path(node, other, other))).unwrap();
        }
        w.write_nothing(0);
        w.run();
        assert_eq!(w.mig(), [Armed, Armed], "round {round}");
        let by = (round / 2 % 2) as usize;
        w.cut = vec![(0, on)];
        w.nodes[1 - by].post_recv(3000);
        w.send(by, pattern(round, 2500));
        if round % 3 == 0 {
            w.modify(1 - by, &migrate()).unwrap();
        }
        w.run();
        w.assert_all_sent(0);
        w.assert_all_sent(1);
        assert_eq!(
            w.nodes[1 - by].payloads().last(),
            Some(&pattern(round, 2500))
        );
        assert_eq!(w.mig(), [Migrated, Migrated]);
        for node in 0..2 {
            assert_eq!(w.qps[node].query().path.unwrap().port, other);
        }
        w.cut.clear();
    }
    assert_eq!(w.qps[0].counters().migrations, 6);
}

#[test]
fn a_read_survives_migration() {
    for by in 0..2 {
        let mut w = World::armed();
        let r = Region {
            va: 0,
            data: pattern(4, 9000),
            read: true,
            write: false,
        };
        w.nodes[1].regions.insert(7, r);
        let op = vfabric_core::model::host::SendOp::Read { va: 0, rkey: 7 };
        let i = w.post(0, wqe(op, 9000), vec![0; 9000]);
        w.step(u64::MAX);
        w.cut.push((0, 1));
        w.modify(by, &migrate()).unwrap();
        w.run();
        w.assert_all_sent(0);
        assert_eq!(w.nodes[0].sq[i as usize].data, pattern(4, 9000));
        assert_moved(&w);
    }
}

#[test]
fn an_rnr_wait_outlasts_a_migration() {
    let mut w = World::armed();
    w.send(0, pattern(4, 900));
    w.run_for(MS / 2);
    assert_eq!(w.qps[0].counters().rnr_naks, 1);
    w.modify(0, &migrate()).unwrap();
    w.nodes[1].post_recv(1000);
    w.run();
    w.assert_all_sent(0);
    assert_moved(&w);
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
