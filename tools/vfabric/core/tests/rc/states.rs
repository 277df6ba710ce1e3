// SPDX-License-Identifier: GPL-2.0-only

//! States of a queue pair, modify and query.

use crate::support::*;
use vfabric_core::model::host::{QpEvent, Status};
use vfabric_core::model::rc::{Error, Modify, Path, Rc, State};

#[test]
fn err_flushes_everything_once_and_in_order() {
    let mut w = World::connected();
    w.cut.push((0, 1));
    for i in 0..3 {
        w.send(0, pattern(i, 600));
        w.nodes[0].post_recv(10);
    }
    w.modify(0, &to_state(State::Err)).unwrap();
    assert_eq!(w.nodes[0].statuses(), [Status::Flush; 3]);
    assert_eq!(w.nodes[0].received.len(), 3);
    assert_eq!(w.qps[0].timer(), None);

    // What is posted later, too: this is how a ULP drains its queues.
    w.send(0, pattern(9, 1));
    w.nodes[0].post_recv(10);
    w.call(0, |qp, host| qp.flush(host));
    assert_eq!(w.nodes[0].statuses(), [Status::Flush; 4]);
    assert_eq!(w.nodes[0].received.len(), 4);
    assert!(w.nodes[0]
        .received
        .iter()
        .all(|r| r.0.status == Status::Flush));
    let sent = w.sent[0];
    w.run();
    assert_eq!(w.sent[0], sent);
}

#[test]
fn a_receive_begun_is_flushed_like_the_others() {
    let mut w = World::connected();
    w.nodes[1].post_recv(1000);
    w.nodes[1].post_recv(1000);
    w.fault = Box::new(|f| match (f.from, f.count) {
        (0, 2) => Fate::Drop,
        _ => Fate::Deliver,
    });
    w.send(0, pattern(1, 700));
    w.run_for(MS);
    w.modify(1, &to_state(State::Err)).unwrap();
    let got: Vec<_> = w.nodes[1].received.iter().map(|r| r.0.status).collect();
    assert_eq!(got, [Status::Flush, Status::Flush]);
}

#[test]
fn flush_does_nothing_outside_err() {
    let mut w = World::connected();
    w.cut.push((0, 1));
    w.nodes[0].post_recv(10);
    w.send(0, pattern(1, 10));
    w.call(0, |qp, host| qp.flush(host));
    assert!(w.nodes[0].sent.is_empty() && w.nodes[0].received.is_empty());
}

#[test]
fn reset_forgets_all_and_the_queue_pair_can_be_connected_again() {
    let mut w = World::connected();
    w.nodes[1].post_recv(10);
    w.send(0, pattern(1, 10));
    w.run();
    let mut fresh = World::connected();
    for node in 0..2 {
        w.modify(node, &to_state(State::Reset)).unwrap();
        assert_eq!(w.qps[node].query().path, None);
        assert_eq!(w.qps[node].query().state, State::Reset);
        w.nodes[node] = std::mem::replace(&mut fresh.nodes[node], Node::new(node));
        for m in [to_init(), to_rtr(node), to_rts(node)] {
            w.modify(node, &m).unwrap();
        }
    }
    w.nodes[1].post_recv(10);
    w.send(0, pattern(2, 10));
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[1].payloads(), [pattern(2, 10)]);
}

#[test]
fn sqd_finishes_what_was_begun_and_begins_nothing() {
    let mut w = World::connected();
    w.nodes[1].post_recv(30_000);
    w.nodes[1].post_recv(10);
    // More than a window: begun, but not all of it sent.
    w.send(0, pattern(1, 30_000));
    let m = Modify {
        sqd_notify: Some(true),
        ..to_state(State::Sqd)
    };
    w.modify(0, &m).unwrap();
    w.send(0, pattern(2, 10));
    assert!(w.qps[0].query().sq_draining);
    assert!(w.nodes[0].events.is_empty());
    w.run();
    assert_eq!(w.nodes[0].statuses(), [Status::Success]);
    assert_eq!(w.nodes[0].events, [QpEvent::SqDrained]);
    assert!(!w.qps[0].query().sq_draining);
    assert_eq!(w.states()[0], State::Sqd);
    w.modify(0, &to_state(State::Rts)).unwrap();
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[1].payloads()[1], pattern(2, 10));
}

#[test]
fn sqd_with_nothing_outstanding_is_drained_at_once_and_silent_unless_asked() {
    let mut w = World::connected();
    w.modify(0, &to_state(State::Sqd)).unwrap();
    assert!(!w.qps[0].query().sq_draining);
    assert!(w.nodes[0].events.is_empty());
    let m = Modify {
        sqd_notify: Some(true),
        ..to_state(State::Sqd)
    };
    let mut w = World::connected();
    w.modify(0, &m).unwrap();
    assert_eq!(w.nodes[0].events, [QpEvent::SqDrained]);
    // It is in SQD already.
    w.modify(0, &m).unwrap();
    assert_eq!(w.nodes[0].events, [QpEvent::SqDrained]);
}

#[test]
fn the_first_packet_in_rtr_raises_comm_est_once() {
    let mut w = World::reset();
    for m in [to_init(), to_rtr(0), to_rts(0)] {
        w.modify(0, &m).unwrap();
    }
    for m in [to_init(), to_rtr(1)] {
        w.modify(1, &m).unwrap();
    }
    for i in 0..3 {
        w.nodes[1].post_recv(10);
        w.send(0, pattern(i, 10));
    }
    w.run();
    w.assert_all_sent(0);
    assert_eq!(w.nodes[1].events, [QpEvent::CommEst]);
    w.modify(1, &to_rts(1)).unwrap();
    w.write_nothing(0);
    w.run();
    assert_eq!(w.nodes[1].events, [QpEvent::CommEst]);
    assert!(w.nodes[0].events.is_empty(), "that side is in RTS");
}

#[test]
fn nothing_is_sent_before_rts() {
    let mut w = World::reset();
    for m in [to_init(), to_rtr(0)] {
        w.modify(0, &m).unwrap();
        w.write_nothing(0);
        assert_eq!(w.sent[0], 0);
    }
    w.modify(0, &to_rts(0)).unwrap();
    assert_eq!(w.sent[0], 2);
}

#[test]
fn packets_are_taken_in_rtr_rts_and_sqd_only() {
    for (state, taken) in [
        (State::Reset, false),
        (State::Init, false),
        (State::Rtr, true),
        (State::Rts, true),
        (State::Sqd, true),
        (State::Err, false),
    ] {
        let mut w = World::connected();
        w.modify(1, &to_state(State::Reset)).unwrap();
        for m in [to_init(), to_rtr(1), to_rts(1), to_state(State::Sqd)] {
            if matches!(state, State::Reset) || w.states()[1] == state {
                break;
            }
            w.modify(1, &m).unwrap();
        }
        if state == State::Err {
            w.modify(1, &to_state(State::Err)).unwrap();
        }
        assert_eq!(w.states()[1], state);
        w.write_nothing(0);
        w.run_for(TIMEOUT_NS / 2);
        assert_eq!(w.nodes[0].sent.len(), usize::from(taken), "{state:?}");
    }
}

#[test]
fn transitions_that_do_not_exist_change_nothing() {
    let mut w = World::connected();
    let before = w.qps[0].query();
    for state in [State::Init, State::Rtr, State::Sqe] {
        let m = Modify {
            retry_cnt: Some(1),
            ..to_state(state)
        };
        assert_eq!(w.modify(0, &m), Err(Error::State));
        assert_eq!(w.qps[0].query(), before);
    }
    w.modify(0, &to_state(State::Err)).unwrap();
    assert_eq!(w.modify(0, &to_rts(0)), Err(Error::State));
    let mut w = World::reset();
    assert_eq!(w.modify(0, &to_rtr(0)), Err(Error::State));
}

#[test]
fn rtr_needs_a_path() {
    let mut w = World::reset();
    w.modify(0, &to_init()).unwrap();
    let m = Modify {
        path: None,
        ..to_rtr(0)
    };
    assert_eq!(w.modify(0, &m), Err(Error::NoPath));
    assert_eq!(w.states()[0], State::Init);
}

#[test]
fn values_out_of_range_change_nothing() {
    let d = Modify::default();
    let no_port = Path {
        port: 0,
        ..path(0, 1, 1)
    };
    for m in [
        Modify { mtu: Some(0), ..d },
        Modify {
            mtu: Some(128),
            ..d
        },
        Modify {
            mtu: Some(300),
            ..d
        },
        Modify {
            mtu: Some(8192),
            ..d
        },
        Modify {
            retry_cnt: Some(8),
            ..d
        },
        Modify {
            rnr_retry: Some(8),
            ..d
        },
        Modify {
            min_rnr_timer: Some(32),
            ..d
        },
        Modify {
            timeout: Some(32),
            ..d
        },
        Modify {
            dest_qpn: Some(1 << 24),
            ..d
        },
        Modify {
            alt_path: Some(no_port),
            ..d
        },
        Modify {
            path: Some(no_port),
            ..d
        },
    ] {
        let mut w = World::connected();
        let before = w.qps[0].query();
        assert_eq!(w.modify(0, &m), Err(Error::Invalid), "{m:?}");
        assert_eq!(w.qps[0].query(), before);
    }
}

#[test]
fn query_reports_what_modify_set() {
    let w = World::connected();
    let q = w.qps[0].query();
    assert_eq!(q.state, State::Rts);
    assert_eq!(q.path, Some(path(0, 1, 1)));
    assert_eq!(q.alt_path, None);
    assert_eq!((q.sq_psn, q.rq_psn), (start_psn(0), start_psn(1)));
    assert_eq!((q.dest_qpn, q.mtu), (0x41, 256));
    assert_eq!((q.retry_cnt, q.rnr_retry, q.min_rnr_timer), (7, 7, 14));
    assert_eq!((q.max_rd_atomic, q.max_dest_rd_atomic), (4, 4));
}

#[test]
fn thirty_thousand_queue_pairs_are_small() {
    assert!(std::mem::size_of::<Rc>() <= 512);
}
