// SPDX-License-Identifier: GPL-2.0-only

//! Timers: ACK timeout, retries, ACKs held back.

use crate::support::*;
use vfabric_core::model::host::Status;
use vfabric_core::model::rc::{Quirks, State};

#[test]
fn the_ack_timer_starts_anew_with_every_progress() {
    let mut w = World::connected();
    let half = TIMEOUT_NS / 2 + 1000;
    w.fault = Box::new(move |f| match f.from {
        // Each ACK takes more than half a timeout longer than the one before.
        1 if f.count > 0 => Fate::Late(half * f.count as u64),
        _ => Fate::Deliver,
    });
    for i in 0..4 {
        w.nodes[1].post_recv(100);
        w.nodes[1].post_recv(100);
        w.send(0, pattern(i, 10));
    }
    w.run();
    w.assert_all_sent(0);
    assert!(w.now > 2 * half * 3 / 2);
    assert_eq!(w.qps[0].counters().retries, 0);
}

#[test]
fn retries_run_out_after_retry_count_and_the_rest_is_flushed() {
    for retry_cnt in [0u8, 3] {
        let mut w = World::connected_with(|_, m| {
            if m.retry_cnt.is_some() {
                m.retry_cnt = Some(retry_cnt);
            }
        });
        w.cut.push((1, 1));
        for i in 0..3 {
            w.send(0, pattern(i, 10));
        }
        w.nodes[0].post_recv(10);
        w.run();
        assert_eq!(w.now, TIMEOUT_NS * (u64::from(retry_cnt) + 1));
        assert_eq!(
            w.nodes[0].statuses(),
            [Status::RetryExceeded, Status::Flush, Status::Flush]
        );
        assert_eq!(w.nodes[0].received[0].0.status, Status::Flush);
        assert_eq!(w.states(), [State::Err, State::Rts]);
        assert_eq!(w.qps[0].timer(), None);
    }
}

#[test]
fn retries_are_counted_for_each_packet() {
    let mut w = World::connected_with(|_, m| {
        if m.retry_cnt.is_some() {
            m.retry_cnt = Some(1);
        }
    });
    // Every packet is lost the first time it is sent.
    let mut seen = Vec::new();
    w.fault = Box::new(move |f| {
        if f.from == 1 || seen.contains(&f.packet.bth.psn) {
            return Fate::Deliver;
        }
        seen.push(f.packet.bth.psn);
        Fate::Drop
    });
    for i in 0..4 {
        w.nodes[1].post_recv(100);
        w.send(0, pattern(i, 10));
        w.run();
    }
    w.assert_all_sent(0);
    assert_eq!(w.qps[0].counters().retries, 4);
}

#[test]
fn a_timeout_of_zero_waits_for_ever() {
    let mut w = World::connected_with(|_, m| {
        if m.timeout.is_some() {
            m.timeout = Some(0);
        }
    });
    w.cut.push((0, 1));
    w.send(0, pattern(0, 10));
    assert_eq!(w.qps[0].timer(), None);
}

#[test]
fn timers_can_be_stretched_up_to_four_times() {
    for (stretch, times) in [(1, 1), (3, 3), (4, 4), (200, 4)] {
        let mut w = World::connected();
        w.qps[0].set_quirks(Quirks {
            timer_stretch: stretch,
            ..Quirks::NONE
        });
        w.cut.push((0, 1));
        w.send(0, pattern(0, 10));
        assert_eq!(w.qps[0].timer(), Some(TIMEOUT_NS * times));
    }
}

#[test]
fn an_ack_can_be_held_back() {
    let mut w = World::connected();
    w.qps[1].set_quirks(Quirks {
        ack_delay: 100_000,
        ..Quirks::NONE
    });
    for i in 0..5 {
        w.nodes[1].post_recv(100);
        w.send(0, pattern(i, 10));
    }
    w.run_for(99_000);
    assert_eq!(w.nodes[1].received.len(), 5);
    assert_eq!(w.sent[1], 0);
    w.run();
    assert_eq!(w.sent[1], 1, "one ACK for all");
    w.assert_all_sent(0);
}
