// SPDX-License-Identifier: GPL-2.0

//! What each kind of request does, and how each can fail.

mod support;

use support::*;
use vfabric_core::model::host::{QpEvent, SendOp, SendWqe, Status};
use vfabric_core::model::rc::State;

fn region(w: &mut World, rkey: u32, len: usize, read: bool, write: bool) {
    let r = Region {
        va: 0x8000,
        data: pattern(rkey, len),
        read,
        write,
    };
    w.nodes[1].regions.insert(rkey, r);
}

fn write(rkey: u32) -> SendOp {
    SendOp::Write { va: 0x8000, rkey }
}

fn read(rkey: u32) -> SendOp {
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
fn a_key_that_cannot_be_invalidated_ends_the_connection() {
    let mut w = World::connected();
    w.nodes[1].post_recv(1000);
    w.post(0, wqe(SendOp::SendInvalidate(9), 30), pattern(1, 30));
    w.run();
    assert_eq!(w.nodes[0].statuses(), [Status::RemAccess]);
    assert_eq!(w.nodes[1].received[0].0.status, Status::MwBind);
    assert_eq!(w.states(), [State::Err, State::Err]);
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

/// A request that node 1 refuses: status at the sender, event at the receiver.
fn refused(op: SendOp, len: usize, status: Status, event: QpEvent) {
    let mut w = World::connected();
    region(&mut w, 1, 1000, true, false);
    region(&mut w, 2, 1000, false, true);
    w.nodes[1].post_recv(10);
    w.post(0, wqe(write(2), 1000), pattern(8, 1000));
    w.post(0, wqe(op, len), pattern(9, len));
    w.post(0, wqe(write(2), 10), pattern(10, 10));
    w.run();
    assert_eq!(
        w.nodes[0].statuses(),
        [Status::Success, status, Status::Flush]
    );
    assert_eq!(w.states(), [State::Err, State::Err]);
    assert_eq!(w.nodes[1].events, [event]);
    assert_eq!(w.nodes[1].received[0].0.status, Status::Flush);
    assert_eq!(w.nodes[1].regions[&1].data, pattern(1, 1000));
    assert_eq!(w.nodes[1].regions[&2].data, pattern(8, 1000));
}

#[test]
fn rkey_bounds_and_access_are_checked_at_the_peer() {
    let access = |op, len| refused(op, len, Status::RemAccess, QpEvent::AccessErr);
    access(write(1), 100); // not writable
    access(read(2), 100); // not readable
    access(write(3), 100); // no such key
    access(read(3), 100);
    access(write(2), 1001); // beyond the end, seen with the first packet
    access(read(1), 1001);
    let va = 0x7fff;
    access(SendOp::Write { va, rkey: 2 }, 10); // before the beginning
    let va = u64::MAX - 5;
    access(SendOp::Read { va, rkey: 1 }, 10); // over the end of all addresses
}

#[test]
fn a_receive_that_is_too_small_is_a_length_error_at_both_ends() {
    for len in [300, 600] {
        let mut w = World::connected();
        w.nodes[1].post_recv(299);
        w.nodes[1].post_recv(1000);
        w.send(0, pattern(1, len));
        w.send(0, pattern(1, 1));
        w.run();
        assert_eq!(
            w.nodes[0].statuses(),
            [Status::RemInvReq, Status::Flush],
            "{len}"
        );
        let got: Vec<_> = w.nodes[1].received.iter().map(|r| r.0.status).collect();
        assert_eq!(got, [Status::LocLen, Status::Flush]);
        assert_eq!(w.states(), [State::Err, State::Err]);
    }
}

#[test]
fn a_receive_in_memory_that_is_gone_is_a_remote_operation_error() {
    let mut w = World::connected();
    w.nodes[1].post_recv(299);
    w.nodes[1].rq_unreachable = true;
    w.send(0, pattern(1, 10));
    w.run();
    assert_eq!(w.nodes[0].statuses(), [Status::RemOp]);
    assert_eq!(w.nodes[1].received[0].0.status, Status::LocProt);
}

#[test]
fn local_memory_that_is_gone_ends_that_request_after_those_before_it() {
    for op in [SendOp::Send, read(9)] {
        let mut w = World::connected();
        region(&mut w, 9, 600, true, true);
        for _ in 0..3 {
            w.nodes[1].post_recv(1000);
        }
        w.nodes[0].push(wqe(SendOp::Send, 500), pattern(1, 500));
        let bad = w.nodes[0].push(wqe(op, 600), pattern(1, 600));
        w.nodes[0].push(wqe(SendOp::Send, 10), pattern(1, 10));
        w.nodes[0].sq[bad as usize].unreachable = true;
        w.call(0, |qp, host| qp.posted(host));
        w.run();
        assert_eq!(
            w.nodes[0].statuses(),
            [Status::Success, Status::LocProt, Status::Flush]
        );
        assert_eq!(w.states()[0], State::Err);
        assert!(w.now < TIMEOUT_NS);
    }
}

#[test]
fn a_message_that_is_too_long_is_a_local_length_error() {
    let mut w = World::connected();
    let mut r = wqe(SendOp::Send, 0);
    w.nodes[0].push(r, Vec::new());
    r.len = (1 << 30) + 1;
    w.nodes[0].sq[0].wqe = r;
    w.call(0, |qp, host| qp.posted(host));
    assert_eq!(w.nodes[0].statuses(), [Status::LocLen]);
    assert_eq!(w.states()[0], State::Err);
}

#[test]
fn a_read_without_resources_for_it_is_an_operation_error() {
    let mut w = World::connected_with(|node, m| {
        if node == 0 && m.max_rd_atomic.is_some() {
            m.max_rd_atomic = Some(0);
        }
    });
    w.post(0, wqe(read(9), 10), vec![0; 10]);
    assert_eq!(w.nodes[0].statuses(), [Status::LocQpOp]);

    let mut w = World::connected_with(|node, m| {
        if node == 1 && m.max_dest_rd_atomic.is_some() {
            m.max_dest_rd_atomic = Some(0);
        }
    });
    region(&mut w, 9, 600, true, true);
    w.post(0, wqe(read(9), 10), vec![0; 10]);
    w.run();
    assert_eq!(w.nodes[0].statuses(), [Status::RemInvReq]);
    assert_eq!(w.nodes[1].events, [QpEvent::ReqErr]);
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
fn a_local_operation_that_fails_ends_the_connection_in_its_turn() {
    let mut w = World::connected();
    w.nodes[1].post_recv(1000);
    w.nodes[1].post_recv(1000);
    w.nodes[0].push(wqe(SendOp::Send, 10), vec![1; 10]);
    let bad = w.nodes[0].push(wqe(SendOp::Local, 0), Vec::new());
    w.nodes[0].sq[bad as usize].outcome = Err(Status::MwBind);
    w.nodes[0].push(wqe(SendOp::Send, 10), vec![1; 10]);
    w.call(0, |qp, host| qp.posted(host));
    w.run();
    assert_eq!(
        w.nodes[0].statuses(),
        [Status::Success, Status::MwBind, Status::Flush]
    );
    assert_eq!(w.nodes[1].payloads().len(), 1);
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
