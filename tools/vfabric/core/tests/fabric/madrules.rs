// SPDX-License-Identifier: GPL-2.0-only

//! MADs that are lost or changed on their way.

use crate::net::{datagram, mad, Net};
use crate::sm::rails;
use vfabric_core::model::fabric::control::ControlError;

/// What of a MAD to QP 1 arrives at the other end.
fn send(net: &mut Net, class: u8, method: u8, attr: u16) -> Option<Vec<u8>> {
    let packet = datagram(
        net.lid("vhca0/1"),
        net.lid("vhca1/1"),
        1,
        1,
        &mad(class, method, attr, 0),
    );
    net.send("vhca0/1", packet);
    net.arrived.pop_front().map(|a| a.packet.payload.to_vec())
}

#[test]
fn drop_meets_class_attribute_and_method_and_counts() {
    let (mut net, _) = rails();
    net.control("mad drop class=3 attr=0x11 method=0x12 count=2");
    assert!(send(&mut net, 3, 0x12, 0x35).is_some());
    assert!(send(&mut net, 7, 0x12, 0x11).is_some());
    assert!(send(&mut net, 3, 0x92, 0x11).is_some());
    assert!(send(&mut net, 3, 0x12, 0x11).is_none());
    assert!(send(&mut net, 3, 0x12, 0x11).is_none());
    assert!(send(&mut net, 3, 0x12, 0x11).is_some());
    assert_eq!(net.fabric.mad_rules_used(), 2);
}

#[test]
fn rewrite_puts_bytes_in_place_and_clear_ends_it() {
    let (mut net, _) = rails();
    net.control("mad rewrite class=7 attr=16 offset=254 value=beef");
    let got = send(&mut net, 7, 3, 16).unwrap();
    assert_eq!(got[254..], [0xbe, 0xef]);
    assert_eq!(got[..254], mad(7, 3, 16, 0)[..254]);
    net.control("mad clear");
    assert_eq!(send(&mut net, 7, 3, 16).unwrap(), mad(7, 3, 16, 0));
}

#[test]
fn other_packets_are_not_touched() {
    let (mut net, _) = rails();
    net.control("mad drop class=7 attr=16");
    let payload = mad(7, 3, 16, 0);
    let packet = datagram(net.lid("vhca0/1"), net.lid("vhca1/1"), 40, 50, &payload);
    net.send("vhca0/1", packet);
    assert_eq!(net.take_arrived(), ["vhca1/1"]);
}

#[test]
fn what_is_no_rule_is_refused() {
    let (mut net, _) = rails();
    for line in [
        "mad",
        "mad melt",
        "mad clear all",
        "mad drop",
        "mad drop class=3",
        "mad drop class=256 attr=1",
        "mad drop class=3 attr=1 count=0",
        "mad drop class=3 attr=1 offset=1",
        "mad rewrite class=3 attr=1 offset=255 value=abcd",
        "mad rewrite class=3 attr=1 offset=1 value=abc",
        "mad rewrite class=3 attr=1 offset=1 value=",
        "mad rewrite class=3 attr=1 offset=1 value=zz",
        "mad rewrite class=3 attr=1 offset=1 value=0102030405060708090a0b0c0d0e0f1011",
    ] {
        let got = net.fabric.control(line, 0);
        assert_eq!(got, Err(ControlError::BadMadRule), "{line}");
    }
    assert!(send(&mut net, 3, 1, 1).is_some());
    for _ in 0..16 {
        net.control("mad drop class=3 attr=1");
    }
    let got = net.fabric.control("mad drop class=3 attr=1", 0);
    assert_eq!(got, Err(ControlError::TooManyRules));
}

/// What the log shows, without the MADs' content: `n=`, `lost=`, and the attribute.
fn logged(net: &Net) -> Vec<String> {
    let mut text = String::new();
    net.fabric.write_mads(&mut text).unwrap();
    let words = |line: &str| {
        let word = |key: &str| {
            let found = line.split(' ').find_map(|w| w.strip_prefix(key));
            found.unwrap().to_string()
        };
        let mad = word("mad=");
        assert_eq!(mad.len(), 512);
        format!("{} {} {}", word("n="), word("lost="), &mad[32..36])
    };
    text.lines().map(words).collect()
}

#[test]
fn the_log_keeps_the_latest_of_a_class_and_is_off_at_first() {
    let (mut net, _) = rails();
    send(&mut net, 7, 3, 0x19);
    assert!(logged(&net).is_empty());
    net.control("mad log class=7");
    net.control("mad drop class=7 attr=0x1a count=1");
    net.control("mad rewrite class=7 attr=0x19 offset=255 value=ee");
    for (class, attr) in [(7, 0x19), (3, 0x35), (7, 0x1a), (7, 0x1a)] {
        send(&mut net, class, 3, attr);
    }
    assert_eq!(logged(&net), ["1 0 0019", "2 1 001a", "3 0 001a"]);
    let mut text = String::new();
    net.fabric.write_mads(&mut text).unwrap();
    let first = text.lines().next().unwrap();
    let ends = (net.lid("vhca0/1"), net.lid("vhca1/1"));
    let start = format!(
        "n=1 from=vhca0/1 slid={} dlid={} lost=0 mad=0107",
        ends.0, ends.1
    );
    assert!(first.starts_with(&start), "{first}");
    // As it was sent, not as it was meant.
    assert!(first.ends_with("00ee"));

    for _ in 0..200 {
        send(&mut net, 7, 3, 0x10);
    }
    let shown = logged(&net);
    assert_eq!(shown.len(), 128);
    assert_eq!(shown.first().unwrap(), "76 0 0010");
    assert_eq!(shown.last().unwrap(), "203 0 0010");

    for line in [
        "mad log",
        "mad log on",
        "mad log class=7 attr=1",
        "mad log off off",
    ] {
        let got = net.fabric.control(line, 0);
        assert_eq!(got, Err(ControlError::BadMadLog), "{line}");
    }
    assert_eq!(logged(&net).len(), 128);
    net.control("mad log class=3");
    assert!(logged(&net).is_empty());
    net.control("mad log off");
    send(&mut net, 3, 3, 0x35);
    assert!(logged(&net).is_empty());
}

/// Transaction IDs that have arrived, in order.
fn tids(net: &mut Net) -> Vec<u8> {
    net.run();
    let arrived = std::mem::take(&mut net.arrived);
    let payloads = arrived.iter().map(|a| &a.packet.payload);
    payloads.filter(|p| p[1] == 7).map(|p| p[15]).collect()
}

/// Sends a CM MAD with a transaction ID.
fn post(net: &mut Net, attr: u16, tid: u8) {
    let mut m = mad(7, 3, attr, 0);
    m[15] = tid;
    let packet = datagram(net.lid("vhca0/1"), net.lid("vhca1/1"), 1, 1, &m);
    net.send("vhca0/1", packet);
}

#[test]
fn delay_sends_a_mad_late_and_lets_others_pass() {
    let (mut net, _) = rails();
    net.control("mad delay class=7 attr=16 us=300 count=1");
    let start = net.now;
    post(&mut net, 16, 1);
    post(&mut net, 17, 2);
    post(&mut net, 16, 3);
    assert_eq!(tids(&mut net), [2, 3]);
    assert_eq!(net.fabric.next_due(), Some(start + 300_000));
    net.now = start + 299_999;
    assert_eq!(tids(&mut net), []);
    net.now = start + 300_000;
    assert_eq!(tids(&mut net), [1]);
    assert_eq!(net.fabric.next_due(), None);
}

#[test]
fn duplicate_sends_a_mad_twice() {
    let (mut net, _) = rails();
    net.control("mad duplicate class=7 attr=16 count=2");
    for tid in 1..4 {
        post(&mut net, 16, tid);
    }
    assert_eq!(tids(&mut net), [1, 1, 2, 2, 3]);
    assert_eq!(net.fabric.mad_rules_used(), 2);
}

#[test]
fn a_duplicate_can_come_late() {
    let (mut net, _) = rails();
    net.control("mad duplicate class=7 attr=16 us=1000 count=1");
    net.control("mad delay class=7 attr=16 us=10 count=1");
    post(&mut net, 16, 1);
    post(&mut net, 16, 2);
    assert_eq!(tids(&mut net), [2]);
    net.now += 10_000;
    assert_eq!(tids(&mut net), [1]);
    net.now += 999_999;
    assert_eq!(tids(&mut net), []);
    net.now += 1;
    assert_eq!(tids(&mut net), [1]);
}

#[test]
fn a_delayed_mad_finds_the_port_as_it_then_is() {
    let (mut net, _) = rails();
    net.control("mad delay class=7 attr=16 us=50");
    post(&mut net, 16, 1);
    net.control("cut vhca0/1");
    net.now += 50_000;
    assert_eq!(tids(&mut net), []);
    let (node, port) = net.end("vhca0/1");
    let lost = net.fabric.port(node, port).unwrap().counters.total;
    assert_eq!(lost.xmit_discards, 1);
}

#[test]
fn delay_and_duplicate_take_their_own_words_only() {
    let (mut net, _) = rails();
    for line in [
        "mad delay class=7 attr=16",
        "mad delay class=7 attr=16 us=",
        "mad delay class=7 attr=16 us=10000001",
        "mad delay class=7 attr=16 us=5 offset=1",
        "mad drop class=7 attr=16 us=5",
        "mad rewrite class=7 attr=16 us=5 offset=1 value=00",
        "mad duplicate attr=16",
    ] {
        let got = net.fabric.control(line, 0);
        assert_eq!(got, Err(ControlError::BadMadRule), "{line}");
    }
}
