// SPDX-License-Identifier: GPL-2.0-only

//! Migration under traffic.

use crate::support::*;
use vfabric_core::model::host::{MigrationCause, QpEvent, SendOp, Status};
use vfabric_core::model::rc::{MigState, Quirks, State};

use MigState::{Armed, Migrated};

pub(crate) fn events(w: &World, event: QpEvent) -> [usize; 2] {
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
        let op = SendOp::Read { va: 0, rkey: 7 };
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
