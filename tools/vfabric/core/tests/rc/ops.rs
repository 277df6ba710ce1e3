// SPDX-License-Identifier: GPL-2.0-only

//! What each kind of request does.

use crate::support::*;
use vfabric_core::model::host::{SendOp, SendWqe, Status};
use vfabric_core::model::rc::State;

pub(crate) fn region(w: &mut World, rkey: u32, len: usize, read: bool, write: bool) {
    let r = Region {
        va: 0x8000,
        data: pattern(rkey, len),
        read,
        write,
    };
    w.nodes[1].regions.insert(rkey, r);
}

pub(crate) fn write(rkey: u32) -> SendOp {
    SendOp::Write { va: 0x8000, rkey }
}

pub(crate) fn read(rkey: u32) -> SendOp {
    SendOp::Read { va: 0x8000, rkey }
}

#[test]
fn send_brings_data_length_and_source() {
    let mut w = World::connected();
    w.nodes[1].post_recv(1000);
    w.send(0, pattern(1, 600));
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[0].sent, [(0, Status::Success, 600)]);
    let (done, data) = &w.nodes[1].received[0];
    assert_eq!((done.status, done.len), (Status::Success, 600));
    assert_eq!(done.slid, lid(0, 1));
    assert_eq!((done.imm, done.invalidated), (None, None));
    assert_eq!(data[..600], pattern(1, 600)[..]);
}

#[test]
fn both_sides_send_at_the_same_time() {
    let mut w = World::connected();
    for node in 0..2 {
        for i in 0..20 {
            w.nodes[1 - node].post_recv(1000);
            w.send(node, pattern(i + 100 * node as u32, 30 * i as usize));
        }
    }
    w.run();
    for node in 0..2u32 {
        w.assert_all_sent(node as usize);
        let want: Vec<_> = (0..20)
            .map(|i| pattern(i + 100 * node, 30 * i as usize))
            .collect();
        assert_eq!(w.nodes[1 - node as usize].payloads(), want);
    }
}

#[test]
fn immediate_data_arrive_with_the_last_packet() {
    let mut w = World::connected();
    w.nodes[1].post_recv(1000);
    w.post(0, wqe(SendOp::SendImm(0x1234_5678), 300), pattern(1, 300));
    w.run();
    let (done, _) = &w.nodes[1].received[0];
    assert_eq!(done.imm, Some(0x1234_5678));
    assert!(!done.write_imm);
}

#[test]
fn a_solicited_event_is_asked_for_by_sends_that_say_so() {
    let mut w = World::connected();
    for solicited in [true, false] {
        w.nodes[1].post_recv(1000);
        let r = SendWqe {
            solicited,
            ..wqe(SendOp::Send, 300)
        };
        w.post(0, r, pattern(1, 300));
    }
    w.run();
    let got: Vec<_> = w.nodes[1].received.iter().map(|r| r.0.solicited).collect();
    assert_eq!(got, [true, false]);
}

#[test]
fn send_with_invalidate_takes_the_key_away() {
    let mut w = World::connected();
    region(&mut w, 9, 100, true, true);
    w.nodes[1].post_recv(1000);
    w.post(0, wqe(SendOp::SendInvalidate(9), 300), pattern(1, 300));
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[1].received[0].0.invalidated, Some(9));
    assert!(w.nodes[1].regions.is_empty());
}

#[test]
fn write_and_read_carry_many_packets() {
    let mut w = World::connected();
    region(&mut w, 9, 5000, true, true);
    w.post(0, wqe(write(9), 5000), pattern(77, 5000));
    let r = w.post(0, wqe(read(9), 5000), vec![0; 5000]);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[0].sq[r as usize].data, pattern(77, 5000));
    assert!(w.nodes[1].received.is_empty());
    assert_eq!(w.qps[0].counters().retries, 0);
}

#[test]
fn write_with_immediate_uses_a_receive_and_leaves_its_memory_alone() {
    let mut w = World::connected();
    region(&mut w, 9, 600, false, true);
    w.nodes[1].post_recv(50);
    let op = SendOp::WriteImm {
        va: 0x8000,
        rkey: 9,
        imm: 5,
    };
    w.post(0, wqe(op, 600), pattern(3, 600));
    w.run();
    w.assert_all_sent(0);
    let (done, data) = &w.nodes[1].received[0];
    assert_eq!((done.imm, done.len, done.write_imm), (Some(5), 600, true));
    assert!(data.iter().all(|b| *b == 0));
    assert_eq!(w.nodes[1].regions[&9].data, pattern(3, 600));
}

#[test]
fn requests_of_no_bytes_complete_and_need_no_key() {
    let mut w = World::connected();
    for _ in 0..2 {
        w.nodes[1].post_recv(0);
    }
    let imm = SendOp::WriteImm {
        va: 0,
        rkey: 0xdead,
        imm: 1,
    };
    for op in [write(0xdead), read(0xdead), SendOp::Send, imm] {
        w.post(0, wqe(op, 0), Vec::new());
    }
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[0].sent.len(), 4);
    assert_eq!(w.nodes[1].received.len(), 2);
    assert_eq!(w.states(), [State::Rts, State::Rts]);
}

#[test]
fn local_operations_are_carried_out_in_order_and_once() {
    let mut w = World::connected();
    w.fault = Box::new(|f| match f.from == 0 && f.count < 2 {
        true => Fate::Drop,
        false => Fate::Deliver,
    });
    for _ in 0..2 {
        w.nodes[1].post_recv(1000);
    }
    let local = wqe(SendOp::Local, 0);
    let data = wqe(SendOp::Send, 10);
    for r in [local, data, local, data, local] {
        w.nodes[0].push(r, vec![1; r.len as usize]);
    }
    w.call(0, |qp, host| qp.posted(host));
    assert_eq!(w.nodes[0].sent.len(), 1, "the others wait for their turn");
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[0].local_ops, [0, 2, 4]);
    assert_eq!(w.nodes[1].received.len(), 2);
}

#[test]
fn a_fence_waits_for_reads_and_for_nothing_else() {
    let mut w = World::connected();
    region(&mut w, 9, 1000, true, true);
    let fenced = SendWqe {
        fence: true,
        ..wqe(write(9), 100)
    };
    w.post(0, wqe(write(9), 100), pattern(1, 100));
    w.post(0, fenced, pattern(2, 100));
    assert_eq!(w.sent[0], 2, "a WRITE holds nothing up");
    w.post(0, wqe(read(9), 1000), vec![0; 1000]);
    w.post(0, fenced, pattern(3, 100));
    w.post(0, wqe(write(9), 100), pattern(4, 100));
    assert_eq!(w.sent[0], 3);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[0].sq[2].data[..100], pattern(2, 100)[..]);
    assert_eq!(w.nodes[1].regions[&9].data[..100], pattern(4, 100)[..]);
}

#[test]
fn what_a_fence_will_hold_up_is_not_left_to_ask_for_an_ack() {
    let mut w = World::connected();
    region(&mut w, 9, 1000, true, true);
    let fenced = SendWqe {
        fence: true,
        ..wqe(write(9), 100)
    };
    w.nodes[0].push(wqe(read(9), 1000), vec![0; 1000]);
    w.nodes[0].push(wqe(write(9), 100), pattern(1, 100));
    w.nodes[0].push(fenced, pattern(2, 100));
    w.call(0, |qp, host| qp.posted(host));
    assert_eq!(w.sent[0], 2);
    assert!(w.log[1].2.bth.ack_req);
}
