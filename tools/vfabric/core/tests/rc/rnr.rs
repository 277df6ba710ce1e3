// SPDX-License-Identifier: GPL-2.0-only

//! Receiver not ready.

use crate::ops::region;
use crate::support::*;
use vfabric_core::model::host::{SendOp, Status};
use vfabric_core::model::packet::Syndrome;
use vfabric_core::model::rc::State;

#[test]
fn rnr_nak_makes_the_sender_wait_as_long_as_the_receiver_says() {
    let mut w = World::connected();
    w.send(0, pattern(1, 600));
    w.send(0, pattern(2, 10));
    // Timer code 14 is 1.28 ms; nothing is sent meanwhile.
    w.run_for(1_280_000);
    let before = w.sent[0];
    w.nodes[1].post_recv(1000);
    w.nodes[1].post_recv(1000);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(before, 4);
    assert_eq!(w.qps[0].counters().rnr_naks, 1);
    assert_eq!(w.qps[0].counters().retries, 0);
    assert_eq!(w.nodes[1].payloads(), [pattern(1, 600), pattern(2, 10)]);
}

fn rnr_retry(count: u8) -> World {
    World::connected_with(|_, m| {
        if m.rnr_retry.is_some() {
            m.rnr_retry = Some(count);
        }
    })
}

#[test]
fn rnr_retries_run_out() {
    let mut w = rnr_retry(2);
    w.send(0, pattern(1, 10));
    w.send(0, pattern(1, 10));
    w.run();
    assert_eq!(
        w.nodes[0].statuses(),
        [Status::RnrRetryExceeded, Status::Flush]
    );
    assert_eq!(w.qps[0].counters().rnr_naks, 3);
    assert_eq!(w.states(), [State::Err, State::Rts]);
}

#[test]
fn seven_rnr_retries_are_no_end_of_them() {
    let mut w = rnr_retry(7);
    w.send(0, pattern(1, 10));
    w.run_for(200 * MS);
    assert!(w.qps[0].counters().rnr_naks > 100);
    w.nodes[1].post_recv(10);
    w.run();
    w.assert_all_sent(0);
}

#[test]
fn rnr_retries_are_counted_for_each_message() {
    let mut w = rnr_retry(1);
    for i in 0..4 {
        w.send(0, pattern(i, 10));
        w.run_for(MS);
        w.nodes[1].post_recv(10);
        w.run();
    }
    w.assert_all_sent(0);
    assert_eq!(w.qps[0].counters().rnr_naks, 4);
}

#[test]
fn write_with_immediate_waits_for_a_receive_like_a_send() {
    let mut w = World::connected();
    region(&mut w, 9, 600, false, true);
    let op = SendOp::WriteImm {
        va: 0x8000,
        rkey: 9,
        imm: 5,
    };
    w.post(0, wqe(op, 600), pattern(3, 600));
    w.run_for(MS);
    assert!(w.nodes[0].sent.is_empty());
    w.nodes[1].post_recv(0);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[1].received.len(), 1);
    assert_eq!(w.qps[0].counters().rnr_naks, 1);
}

#[test]
fn an_rnr_nak_that_comes_twice_counts_once() {
    let mut w = rnr_retry(1);
    w.fault = Box::new(|f| match f.is_ack() {
        true => Fate::Twice,
        false => Fate::Deliver,
    });
    w.send(0, pattern(1, 10));
    w.run_for(MS);
    w.nodes[1].post_recv(10);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.qps[0].counters().rnr_naks, 1);
}

#[test]
fn what_follows_an_rnr_nak_is_no_gap() {
    let mut w = World::connected();
    w.send(0, pattern(1, 1000));
    w.run_for(MS);
    assert_eq!(w.sent, [4, 1]);
}

#[test]
fn an_ack_that_comes_while_it_waits_is_believed() {
    let mut w = World::connected();
    w.send(0, pattern(1, 600));
    w.run_for(MS);
    let (_, port, mut ack) = w.log.pop().unwrap();
    ack.aeth.as_mut().unwrap().syndrome = Syndrome::Ack;
    ack.bth.psn = (start_psn(0) + 1) & 0xff_ffff;
    w.deliver(0, port, ack);
    let sent = w.log.len();
    w.step(u64::MAX);
    let next: Vec<_> = w.log[sent..].iter().map(|(_, _, p)| p.bth.psn).collect();
    assert_eq!(next[0], (start_psn(0) + 2) & 0xff_ffff);
}
