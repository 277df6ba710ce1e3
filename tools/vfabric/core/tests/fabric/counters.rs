// SPDX-License-Identifier: GPL-2.0-only

//! The performance management agents: counters that move, and can be read and set.

use crate::net::{datagram, mad, status, Net, GET, SET};
use crate::sm::rails;
use vfabric_core::model::fabric::{MadRequest, MadResult};

const COUNTERS: u16 = 0x12;
const EXTENDED: u16 = 0x1d;

/// Asks the agent behind `to`, as perfquery on vhca2 does.
fn ask(net: &mut Net, to: &str, m: [u8; 256]) -> Option<[u8; 256]> {
    net.arrived.clear();
    let packet = datagram(net.lid("vhca2/1"), net.lid(to), 1, 1, &m);
    net.send("vhca2/1", packet);
    let answer = net.arrived.pop_front()?.packet;
    assert_eq!((answer.bth.dest_qp, answer.deth.unwrap().src_qp), (1, 1));
    Some((*answer.payload).try_into().unwrap())
}

fn query(net: &mut Net, to: &str, attr: u16, port: u8) -> [u8; 256] {
    let mut m = mad(4, GET, attr, 0);
    m[65] = port;
    ask(net, to, m).expect("an answer")
}

fn number(m: &[u8; 256], at: usize, len: usize) -> u64 {
    m[64 + at..64 + at + len]
        .iter()
        .fold(0, |n, b| (n << 8) | u64::from(*b))
}

fn traffic(net: &mut Net, packets: usize) {
    for _ in 0..packets {
        let packet = datagram(net.lid("vhca0/1"), net.lid("vhca1/2"), 40, 50, &[0; 101]);
        net.send("vhca0/1", packet);
    }
}

#[test]
fn counters_move_by_what_has_passed() {
    let (mut net, _) = rails();
    // LRH 2, BTH 3, DETH 2, 101 bytes padded 26, ICRC 1
    let words = 34;
    for (node, port, xmit) in [
        ("vhca0/1", 1, true),
        ("sw0/0", 1, false),
        ("sw0/0", 3, true),
        ("sw1/0", 3, false),
        ("sw1/0", 2, true),
        ("vhca1/2", 2, false),
    ] {
        let before = query(&mut net, node, EXTENDED, port);
        let before32 = query(&mut net, node, COUNTERS, port);
        traffic(&mut net, 10);
        let after = query(&mut net, node, EXTENDED, port);
        let after32 = query(&mut net, node, COUNTERS, port);
        // The query itself passes too, by 256 bytes of MAD: 72 words each.
        let (data, packets, data32) = if xmit { (8, 24, 24) } else { (16, 32, 28) };
        let delta = number(&after, packets, 8) - number(&before, packets, 8);
        assert!((10..=14).contains(&delta), "{node} {port}: {delta} packets");
        let delta_words = number(&after, data, 8) - number(&before, data, 8);
        assert_eq!(delta_words, 10 * words + (delta - 10) * 72, "{node} {port}");
        assert!(number(&after32, data32, 4) - number(&before32, data32, 4) >= 10 * words);
        assert_eq!(number(&after32, 4, 2), 0, "symbol errors");
    }
}

#[test]
fn a_switch_sums_all_ports() {
    let (mut net, _) = rails();
    traffic(&mut net, 5);
    let all = query(&mut net, "sw1/0", EXTENDED, 0xff);
    let each: u64 = (1..=4)
        .map(|p| number(&query(&mut net, "sw1/0", EXTENDED, p), 32, 8))
        .sum();
    assert!(number(&all, 32, 8) > 0 && number(&all, 32, 8) <= each);
    let info = query(&mut net, "sw1/0", 1, 0);
    assert_eq!(info[66..68], [0x03, 0x00], "AllPortSelect, extended width");
    let info = query(&mut net, "vhca0/1", 1, 0);
    assert_eq!(info[66..68], [0x02, 0x00]);
    assert_eq!(status(&query(&mut net, "vhca0/1", COUNTERS, 0xff)), 0x1c);
}

#[test]
fn the_mask_says_which_counters_are_set() {
    let (mut net, _) = rails();
    traffic(&mut net, 5);
    let mut m = mad(4, SET, COUNTERS, 0);
    m[65] = 3;
    m[66..68].copy_from_slice(&0x4000u16.to_be_bytes());
    m[64 + 32..64 + 36].copy_from_slice(&1000u32.to_be_bytes());
    let before = query(&mut net, "sw0/0", EXTENDED, 3);
    let answer = ask(&mut net, "sw0/0", m).unwrap();
    assert_eq!(status(&answer), 0);
    assert_eq!(number(&answer, 32, 4), 1000, "PortXmitPkts");
    assert!(number(&answer, 24, 4) > 100, "PortXmitData goes on");
    let after = query(&mut net, "sw0/0", EXTENDED, 3);
    assert_eq!(
        number(&after, 24, 8),
        number(&before, 24, 8),
        "the extended counter is another"
    );
    // All of all ports to zero.
    let mut m = mad(4, SET, COUNTERS, 0);
    m[65] = 0xff;
    m[66..68].fill(0xff);
    ask(&mut net, "sw0/0", m).unwrap();
    let quiet = query(&mut net, "sw0/0", COUNTERS, 2);
    assert_eq!(quiet[64 + 4..64 + 44], [0; 40]);
    traffic(&mut net, 3);
    assert_eq!(number(&query(&mut net, "sw0/0", COUNTERS, 1), 36, 4), 3);
}

#[test]
fn narrow_counters_stop_at_their_end() {
    let (mut net, _) = rails();
    let mut m = mad(4, SET, COUNTERS, 0);
    m[65] = 1;
    m[66..68].copy_from_slice(&0x0004u16.to_be_bytes());
    m[64 + 7] = 254;
    ask(&mut net, "sw0/0", m).unwrap();
    for _ in 0..3 {
        net.control("cut vhca0/1");
        net.control("join vhca0/1");
    }
    assert_eq!(
        number(&query(&mut net, "sw0/0", COUNTERS, 1), 7, 1),
        255,
        "LinkDownedCounter"
    );
}

#[test]
fn losses_show_at_the_port_that_had_them() {
    let (mut net, _) = rails();
    net.control("cut vhca1/1");
    let lost = datagram(net.lid("vhca0/1"), net.lid("vhca1/1"), 40, 50, b"gone");
    net.send("vhca0/1", lost);
    let m = query(&mut net, "sw0/0", COUNTERS, 2);
    assert_eq!(
        (number(&m, 14, 2), number(&m, 7, 1)),
        (1, 1),
        "PortXmitDiscards, LinkDownedCounter"
    );
    let unknown = datagram(net.lid("vhca0/1"), 500, 40, 50, b"where to");
    net.send("vhca0/1", unknown);
    let m = query(&mut net, "sw0/0", COUNTERS, 1);
    assert_eq!(number(&m, 12, 2), 1, "PortRcvSwitchRelayErrors");
}

#[test]
fn an_hca_answers_for_its_ports_only() {
    let (mut net, _) = rails();
    let (node, port) = net.end("vhca0/1");
    for (select, expected) in [(1, 0), (2, 0), (0, 0x1c), (3, 0x1c)] {
        let mut m = mad(4, GET, COUNTERS, 0);
        m[65] = select;
        let result = net
            .fabric
            .process_mad(node, port, &mut m, MadRequest::default(), net.now);
        assert_eq!(
            (result, status(&m)),
            (MadResult::Reply, expected),
            "port {select}"
        );
    }
    let mut m = mad(4, GET, 0x10, 0);
    net.fabric
        .process_mad(node, port, &mut m, MadRequest::default(), net.now);
    assert_eq!(status(&m), 0x0c);
}

#[test]
fn a_switch_wants_the_right_keys() {
    let (mut net, _) = rails();
    let mut m = mad(4, GET, COUNTERS, 0);
    m[65] = 1;
    let violations = |net: &Net| {
        let p = net.fabric.port(net.id("sw0"), 0).unwrap();
        (p.pkey_violations, p.qkey_violations)
    };
    let mut packet = datagram(net.lid("vhca2/1"), net.lid("sw0/0"), 1, 1, &m);
    packet.bth.pkey = 0x8001;
    net.send("vhca2/1", packet);
    assert_eq!((net.take_arrived().len(), violations(&net)), (0, (1, 0)));
    let mut packet = datagram(net.lid("vhca2/1"), net.lid("sw0/0"), 1, 1, &m);
    packet.deth.as_mut().unwrap().qkey = 0;
    net.send("vhca2/1", packet);
    assert_eq!((net.take_arrived().len(), violations(&net)), (0, (1, 1)));
    // A limited member of the default partition may ask a full one.
    let mut packet = datagram(net.lid("vhca2/1"), net.lid("sw0/0"), 1, 1, &m);
    packet.bth.pkey = 0x7fff;
    net.send("vhca2/1", packet);
    assert_eq!(net.take_arrived().len(), 1);
}
