// SPDX-License-Identifier: GPL-2.0-only

//! How each kind of request can fail, and what both sides see of it.

use crate::ops::{read, region, write};
use crate::support::*;
use vfabric_core::model::host::{QpEvent, SendOp, Status};
use vfabric_core::model::rc::State;

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
