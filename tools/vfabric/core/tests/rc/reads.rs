// SPDX-License-Identifier: GPL-2.0-only

//! RDMA READ, of which the responses can be lost as well as the request.

use crate::support::*;
use vfabric_core::model::host::SendOp;
use vfabric_core::model::packet::{Opcode, Reth};
use vfabric_core::model::rc::{Quirks, State};

fn with_region(w: &mut World, len: usize) {
    w.nodes[1].regions.insert(
        7,
        Region {
            va: 0x4000,
            data: pattern(42, len),
            read: true,
            write: false,
        },
    );
}

const READ: SendOp = SendOp::Read {
    va: 0x4000,
    rkey: 7,
};

#[test]
fn a_read_restarts_from_the_response_that_is_missing() {
    let mut w = World::connected();
    with_region(&mut w, 2560);
    w.fault = Box::new(|f| match (f.is_response(), f.count) {
        (true, 4) => Fate::Drop,
        _ => Fate::Deliver,
    });
    let read = w.post(0, wqe(READ, 2560), vec![0; 2560]);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[0].sq[read as usize].data, pattern(42, 2560));
    assert!(w.now < TIMEOUT_NS, "the next response told");
    let requests: Vec<_> = w
        .log
        .iter()
        .filter(|(_, _, p)| p.bth.opcode == Opcode::ReadRequest)
        .map(|(_, _, p)| (p.bth.psn, p.reth.unwrap()))
        .collect();
    assert_eq!(requests.len(), 2);
    let (psn, reth) = requests[1];
    assert_eq!(psn, (start_psn(0) + 4) & 0xff_ffff);
    assert_eq!((reth.va, reth.len), (0x4000 + 4 * 256, 2560 - 4 * 256));
}

#[test]
fn a_read_is_carried_out_again_when_its_request_comes_again() {
    let mut w = World::connected();
    with_region(&mut w, 600);
    let mut dropped = 0;
    w.fault = Box::new(move |f| {
        if f.is_response() && dropped < 3 {
            dropped += 1;
            return Fate::Drop;
        }
        Fate::Deliver
    });
    let read = w.post(0, wqe(READ, 600), vec![0; 600]);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[0].sq[read as usize].data, pattern(42, 600));
    assert_eq!(w.nodes[1].remote_reads, 6);
    assert_eq!(w.qps[0].counters().retries, 1);
}

#[test]
fn an_ack_beyond_a_read_shows_that_its_responses_were_lost() {
    let mut w = World::connected();
    with_region(&mut w, 200);
    w.nodes[1].post_recv(100);
    w.fault = Box::new(|f| match f.is_response() && f.count == 0 {
        true => Fate::Drop,
        false => Fate::Deliver,
    });
    w.post(0, wqe(READ, 200), vec![0; 200]);
    w.send(0, pattern(1, 10));
    w.run();
    w.assert_all_sent(0);
    assert!(w.now < TIMEOUT_NS);
    assert_eq!(w.nodes[0].sq[0].data, pattern(42, 200));
    assert_eq!(w.nodes[1].received.len(), 1);
}

#[test]
fn a_response_acknowledges_what_was_sent_before_it() {
    let mut w = World::connected();
    with_region(&mut w, 200);
    w.nodes[1].post_recv(100);
    w.fault = Box::new(|f| match f.is_ack() {
        true => Fate::Drop,
        false => Fate::Deliver,
    });
    w.send(0, pattern(1, 10));
    w.post(0, wqe(READ, 200), vec![0; 200]);
    w.run();
    w.assert_all_sent(0);
    assert!(w.now < TIMEOUT_NS);
}

#[test]
fn a_response_that_comes_again_is_not_taken_for_the_next_read() {
    let mut w = World::connected();
    with_region(&mut w, 1024);
    w.fault = Box::new(|f| match f.is_response() {
        true => Fate::Twice,
        false => Fate::Deliver,
    });
    for offset in [0u64, 256, 512] {
        let va = 0x4000 + offset;
        w.post(0, wqe(SendOp::Read { va, rkey: 7 }, 512), vec![0; 512]);
    }
    w.run();
    w.assert_all_sent(0);
    let all = pattern(42, 1024);
    for (i, at) in [0, 256, 512].into_iter().enumerate() {
        assert_eq!(w.nodes[0].sq[i].data, all[at..at + 512]);
    }
}

#[test]
fn no_more_reads_are_outstanding_than_the_peer_can_take() {
    let mut w = World::connected();
    with_region(&mut w, 1000);
    w.fault = Box::new(|f| match f.from {
        1 => Fate::Late(1_000_000),
        _ => Fate::Deliver,
    });
    for _ in 0..10 {
        w.post(0, wqe(READ, 1000), vec![0; 1000]);
    }
    assert_eq!(w.sent[0], 4);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.sent[0], 10);
}

#[test]
fn a_packet_without_memory_is_as_good_as_lost() {
    let mut w = World::connected();
    with_region(&mut w, 1000);
    w.nodes[1].post_recv(1000);
    vfabric_core::mem::fail_once_after(1);
    w.send(0, pattern(1, 1000));
    assert_eq!(w.sent[0], 3, "one of four was not sent");
    w.run();
    vfabric_core::mem::fail_once_after(2);
    w.post(0, wqe(READ, 1000), vec![0; 1000]);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[1].payloads(), [pattern(1, 1000)]);
    assert_eq!(w.nodes[0].sq[1].data, pattern(42, 1000));
    assert!(w.now < TIMEOUT_NS);
}

/// Loses the first response, the second request and the first response to the third.
fn unlucky(w: &mut World) {
    let (mut responses, mut requests) = (0, 0);
    w.fault = Box::new(move |f| {
        let lost = match f.packet.bth.opcode {
            Opcode::ReadResponse(_) => {
                responses += 1;
                responses == 1 || responses == 5
            }
            Opcode::ReadRequest => {
                requests += 1;
                requests == 2
            }
            _ => false,
        };
        match lost {
            true => Fate::Drop,
            false => Fate::Deliver,
        }
    });
}

#[test]
fn a_response_lost_again_after_a_timeout_is_asked_for_at_once() {
    let mut w = World::connected();
    with_region(&mut w, 1000);
    unlucky(&mut w);
    w.post(0, wqe(READ, 1000), vec![0; 1000]);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[0].sq[0].data, pattern(42, 1000));
    assert!(w.now > TIMEOUT_NS && w.now < TIMEOUT_NS + MS);
}

#[test]
fn a_response_lost_again_after_a_migration_is_asked_for_at_once() {
    let mut w = World::armed();
    with_region(&mut w, 1000);
    unlucky(&mut w);
    let start = w.now;
    w.post(0, wqe(READ, 1000), vec![0; 1000]);
    w.run_for(MS);
    w.modify(0, &migrate()).unwrap();
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[0].sq.last().unwrap().data, pattern(42, 1000));
    assert!(w.now - start < 2 * MS);
}

#[test]
fn a_send_that_comes_again_does_not_speak_for_a_read_behind_it() {
    let mut w = World::connected();
    with_region(&mut w, 200);
    w.nodes[1].post_recv(100);
    w.fault = Box::new(|f| match f.from == 1 && f.count < 2 {
        true => Fate::Drop,
        false => Fate::Deliver,
    });
    w.send(0, pattern(1, 10));
    w.post(0, wqe(READ, 200), vec![0; 200]);
    w.run();
    w.assert_all_sent(0);
    let requests = w.logged(|_, p| p.bth.opcode == Opcode::ReadRequest);
    assert_eq!(requests, 2);
    assert_eq!(w.qps[0].counters().retries, 1);
}

#[test]
fn a_response_takes_an_ack_held_back_with_it() {
    let mut w = World::connected();
    with_region(&mut w, 200);
    w.nodes[1].post_recv(100);
    w.qps[1].set_quirks(Quirks {
        ack_delay: 100_000,
        ..Quirks::NONE
    });
    w.send(0, pattern(1, 10));
    w.post(0, wqe(READ, 200), vec![0; 200]);
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.sent[1], 1);
}

/// Whether a READ request is answered that comes again, changed, after it has been answered.
fn answered_again(change: impl FnOnce(&mut World, &mut Reth)) -> bool {
    let mut w = World::connected();
    with_region(&mut w, 600);
    w.post(0, wqe(READ, 600), vec![0; 600]);
    w.run();
    let (_, port, mut request) = w.log.remove(0);
    let mut reth = request.reth.unwrap();
    change(&mut w, &mut reth);
    request.reth = Some(reth);
    let sent = w.sent[1];
    w.deliver(1, port, request);
    assert_eq!(w.states()[1], State::Rts);
    w.sent[1] > sent
}

#[test]
fn only_what_was_read_before_is_read_again() {
    assert!(answered_again(|_, _| {}));
    assert!(answered_again(|_, r| r.len = 500));
    assert!(!answered_again(|w, r| {
        w.nodes[1].regions.get_mut(&7).unwrap().data.resize(800, 0);
        r.len = 800;
    }));
}

#[test]
fn a_read_that_comes_again_when_its_key_is_gone_does_no_harm() {
    assert!(!answered_again(|w, _| w.nodes[1].regions.clear()));
    assert!(!answered_again(|w, _| {
        w.nodes[1].regions.get_mut(&7).unwrap().read = false;
    }));
}
