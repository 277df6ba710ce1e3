// SPDX-License-Identifier: GPL-2.0-only

//! What is lost, comes twice or comes late.

use crate::support::*;
use vfabric_core::model::host::SendOp;
use vfabric_core::model::packet::{NakCode, Opcode, Position, Syndrome};

const SEQUENCE: Option<Syndrome> = Some(Syndrome::Nak(NakCode::PsnSequence));

/// Ten messages of several packets each from node 0 to node 1.
fn ten_messages(w: &mut World) -> Vec<Vec<u8>> {
    let all: Vec<_> = (0..10).map(|i| pattern(i, 100 + 90 * i as usize)).collect();
    for data in &all {
        w.nodes[1].post_recv(2000);
        w.nodes[0].push(wqe(SendOp::Send, data.len()), data.clone());
    }
    w.call(0, |qp, host| qp.posted(host));
    all
}

#[test]
fn several_requests_are_in_flight_and_each_packet_has_a_psn_of_its_own() {
    let mut w = World::connected();
    let all = ten_messages(&mut w);
    // Nothing has come back so far, and all of it is under way.
    let psns: Vec<_> = w.log.iter().map(|(_, _, p)| p.bth.psn).collect();
    let first = start_psn(0);
    let want: Vec<_> = (0..psns.len() as u32)
        .map(|i| (first + i) & 0xff_ffff)
        .collect();
    assert_eq!(psns, want);
    assert!(psns.contains(&0), "it goes over the wrap");
    w.run();
    assert_eq!(w.nodes[1].payloads(), all);
    w.assert_all_sent(0);
}

#[test]
fn the_window_is_bounded() {
    let mut w = World::connected();
    w.cut.push((0, 1));
    for i in 0..50 {
        w.send(0, pattern(i, 1000));
    }
    assert_eq!(w.sent[0], 64);
}

#[test]
fn a_message_larger_than_the_window_arrives() {
    let mut w = World::connected();
    let data = pattern(3, 100_000);
    w.nodes[1].post_recv(data.len());
    w.send(0, data.clone());
    w.run();
    assert_eq!(w.nodes[1].payloads(), [data]);
    w.assert_all_sent(0);
    assert_eq!(w.qps[0].counters().retries, 0);
}

#[test]
fn acks_are_cumulative_and_one_answers_several_requests() {
    let mut w = World::connected();
    let all = ten_messages(&mut w);
    w.run();
    assert_eq!(w.nodes[0].sent.len(), all.len());
    assert!(w.sent[1] < all.len(), "{} ACKs", w.sent[1]);
}

#[test]
fn the_last_packet_asks_for_an_ack() {
    let mut w = World::connected();
    w.nodes[1].post_recv(2000);
    w.send(0, pattern(0, 700));
    let asked: Vec<_> = w.log.iter().map(|(_, _, p)| p.bth.ack_req).collect();
    assert_eq!(asked, [false, false, true]);
}

#[test]
fn a_lost_ack_is_made_good_by_the_next_one() {
    let mut w = World::connected();
    w.fault = Box::new(|f| match (f.from, f.count) {
        (1, 0) => Fate::Drop,
        _ => Fate::Deliver,
    });
    for i in 0..2 {
        w.nodes[1].post_recv(100);
        w.send(0, pattern(i, 10));
        w.run_for(10 * LATENCY);
    }
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.qps[0].counters().retries, 0);
}

#[test]
fn a_lost_request_is_found_by_the_ack_timer() {
    let mut w = World::connected();
    w.fault = Box::new(|f| match (f.from, f.count) {
        (0, 0) => Fate::Drop,
        _ => Fate::Deliver,
    });
    w.nodes[1].post_recv(100);
    w.send(0, pattern(1, 50));
    assert_eq!(w.qps[0].timer(), Some(TIMEOUT_NS));
    w.run_for(TIMEOUT_NS - 1);
    assert!(w.nodes[0].sent.is_empty());
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[1].payloads(), [pattern(1, 50)]);
    assert_eq!(w.qps[0].counters().retries, 1);
}

#[test]
fn a_lost_request_is_found_by_the_nak_that_a_later_one_provokes() {
    let mut w = World::connected();
    w.fault = Box::new(|f| match (f.from, f.count) {
        (0, 4) => Fate::Drop,
        _ => Fate::Deliver,
    });
    let all = ten_messages(&mut w);
    w.run();
    assert!(w.now < TIMEOUT_NS, "no timer was needed");
    assert_eq!(w.nodes[1].payloads(), all);
    w.assert_all_sent(0);
    assert_eq!(w.qps[0].counters().retries, 1);
}

#[test]
fn a_gap_is_answered_by_one_nak() {
    let mut w = World::connected();
    w.fault = Box::new(|f| match (f.from, f.count) {
        (0, 2) => Fate::Drop,
        _ => Fate::Deliver,
    });
    ten_messages(&mut w);
    w.run();
    let naks = w.logged(|n, p| n == 1 && p.aeth.map(|a| a.syndrome) == SEQUENCE);
    assert_eq!(naks, 1);
}

#[test]
fn a_repetition_that_is_lost_again_is_left_to_the_ack_timer() {
    let mut w = World::connected();
    // The third packet, and again when it is sent after the NAK.
    let lost = (start_psn(0) + 2) & 0xff_ffff;
    let mut times = 0;
    w.fault = Box::new(move |f| {
        if f.from == 0 && f.packet.bth.psn == lost && times < 2 {
            times += 1;
            return Fate::Drop;
        }
        Fate::Deliver
    });
    let all = ten_messages(&mut w);
    w.run();
    assert_eq!(w.nodes[1].payloads(), all);
    w.assert_all_sent(0);
    assert_eq!(w.qps[0].counters().retries, 2);
}

#[test]
fn duplicates_are_recognized_so_loss_one_way_gives_exactly_once() {
    let mut w = World::connected();
    // For a while nothing comes back at all.
    w.fault = Box::new(|f| match f.from == 1 && f.now < 3 * TIMEOUT_NS {
        true => Fate::Drop,
        false => Fate::Deliver,
    });
    w.nodes[1].regions.insert(
        7,
        Region {
            va: 0x1000,
            data: vec![0; 1000],
            read: false,
            write: true,
        },
    );
    let all = ten_messages(&mut w);
    let op = SendOp::Write {
        va: 0x1000,
        rkey: 7,
    };
    w.post(0, wqe(op, 1000), pattern(99, 1000));
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[1].payloads(), all, "each once");
    assert_eq!(w.nodes[1].remote_writes, 4, "no packet was written twice");
    assert_eq!(w.nodes[1].regions[&7].data, pattern(99, 1000));
    assert!(w.qps[1].counters().duplicates > 0);
}

#[test]
fn every_packet_twice_changes_nothing() {
    let mut w = World::connected();
    w.fault = Box::new(|_| Fate::Twice);
    w.nodes[1].regions.insert(
        7,
        Region {
            va: 0,
            data: pattern(5, 3000),
            read: true,
            write: false,
        },
    );
    let all = ten_messages(&mut w);
    let read = w.post(0, wqe(SendOp::Read { va: 0, rkey: 7 }, 3000), vec![0; 3000]);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[1].payloads(), all);
    assert_eq!(w.nodes[0].sq[read as usize].data, pattern(5, 3000));
    assert!(w.now < TIMEOUT_NS);
}

#[test]
fn messages_are_cut_into_packets_of_an_mtu() {
    use Position::*;
    for (len, places) in [
        (0usize, vec![Only]),
        (1, vec![Only]),
        (256, vec![Only]),
        (257, vec![First, Last]),
        (768, vec![First, Middle, Last]),
        (769, vec![First, Middle, Middle, Last]),
    ] {
        let mut w = World::connected();
        w.nodes[1].post_recv(1000);
        w.send(0, pattern(1, len));
        let sent: Vec<_> = w.log.iter().map(|(_, _, p)| p.bth.opcode).collect();
        assert_eq!(
            sent,
            places.into_iter().map(Opcode::Send).collect::<Vec<_>>()
        );
        w.run();
        assert_eq!(w.nodes[1].payloads(), [pattern(1, len)]);
    }
}

#[test]
fn each_gap_has_a_nak_of_its_own() {
    let mut w = World::connected();
    w.fault = Box::new(|f| match (f.from, f.count) {
        (0, 1 | 100 | 150) => Fate::Drop,
        _ => Fate::Deliver,
    });
    let data = pattern(3, 20_000);
    w.nodes[1].post_recv(data.len());
    w.send(0, data.clone());
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[1].payloads(), [data]);
    assert!(w.now < TIMEOUT_NS);
    assert_eq!(w.qps[0].counters().retries, 3);
}

#[test]
fn the_last_packet_in_the_window_asks_for_an_ack() {
    let mut w = World::connected();
    w.cut.push((0, 1));
    w.write_nothing(0);
    for _ in 0..100 {
        let op = SendOp::Write { va: 0, rkey: 0 };
        w.nodes[0].push(wqe(op, 0), Vec::new());
    }
    w.call(0, |qp, host| qp.posted(host));
    assert_eq!(w.sent[0], 64);
    assert!(w.log.last().unwrap().2.bth.ack_req);
}
