// SPDX-License-Identifier: GPL-2.0-only

//! `grh`: PathRecords that ask for a GRH.

use crate::net::{datagram, mad, Net};
use crate::sm::rails;

const GET_RESP: u8 = 0x81;
const GET_TABLE_RESP: u8 = 0x92;
const PATH_RECORD: u16 = 0x35;
/// Bytes of records in one segment.
const SEGMENT: usize = 200;
const RECORD: usize = 64;
const HOP_LIMIT: usize = 47;

fn through(net: &mut Net, m: &[u8; 256]) -> Vec<u8> {
    let packet = datagram(net.lid("vhca2/1"), net.lid("vhca0/1"), 1, 1, m);
    net.send("vhca2/1", packet);
    net.arrived.pop_front().unwrap().packet.payload.to_vec()
}

/// An answer with one record and the given HopLimit.
fn answer(class: u8, method: u8, attr: u16, hop_limit: u8) -> [u8; 256] {
    let mut m = mad(class, method, attr, 0);
    m[56 + HOP_LIMIT] = hop_limit;
    m
}

/// Positions in which two MADs differ.
fn changed(a: &[u8], b: &[u8]) -> Vec<usize> {
    (0..256).filter(|i| a[*i] != b[*i]).collect()
}

#[test]
fn on_gives_a_path_record_a_hop_limit_and_off_ends_it() {
    let (mut net, _) = rails();
    let plain = answer(3, GET_RESP, PATH_RECORD, 0);
    assert_eq!(through(&mut net, &plain), plain);
    net.control("grh on");
    let got = through(&mut net, &plain);
    assert_eq!(changed(&got, &plain), [56 + HOP_LIMIT]);
    assert_eq!(got[56 + HOP_LIMIT], 1);
    net.control("grh 64");
    assert_eq!(through(&mut net, &plain)[56 + HOP_LIMIT], 64);
    // A path that has a larger one keeps it.
    let far = answer(3, GET_RESP, PATH_RECORD, 255);
    assert_eq!(through(&mut net, &far), far);
    net.control("grh off");
    assert_eq!(through(&mut net, &plain), plain);
}

#[test]
fn other_mads_are_left_alone() {
    let (mut net, _) = rails();
    net.control("grh on");
    for (class, method, attr) in [
        (3, 1, PATH_RECORD),
        (3, 0x12, PATH_RECORD),
        (3, GET_RESP, 0x11),
        (7, GET_RESP, PATH_RECORD),
    ] {
        let m = answer(class, method, attr, 0);
        assert_eq!(through(&mut net, &m), m, "{class} {method:#x} {attr:#x}");
    }
    // An RMPP ACK for a table carries no record.
    let mut ack = answer(3, GET_TABLE_RESP, PATH_RECORD, 0);
    ack[25] = 2;
    ack[26] = 1;
    assert_eq!(through(&mut net, &ack), ack);
}

#[test]
fn every_record_of_a_table_gets_it_across_segments() {
    for (count, stride) in [(1, 64), (3, 64), (4, 64), (10, 64), (5, 72)] {
        let (mut net, _) = rails();
        net.control("grh on");
        let stream = vec![0u8; count * stride];
        let mut got = Vec::new();
        let segments = stream.len().div_ceil(SEGMENT);
        for number in 1..=segments {
            let here = (stream.len() - (number - 1) * SEGMENT).min(SEGMENT);
            let last = number == segments;
            let mut m = mad(3, GET_TABLE_RESP, PATH_RECORD, 0);
            m[24] = 1;
            m[25] = 1;
            m[26] = 1 | if number == 1 { 2 } else { 0 } | if last { 4 } else { 0 };
            m[28..32].copy_from_slice(&(number as u32).to_be_bytes());
            // First segment: everything, with a header for each; last: what is in it.
            let payload = match (last, number) {
                (true, _) => here + 20,
                (false, 1) => stream.len() + 20 * segments,
                _ => 0,
            };
            m[32..36].copy_from_slice(&(payload as u32).to_be_bytes());
            m[44..46].copy_from_slice(&((stride / 8) as u16).to_be_bytes());
            let out = through(&mut net, &m);
            assert_eq!(out[..56], m[..56]);
            assert_eq!(out[56 + here..], m[56 + here..], "behind the end");
            got.extend_from_slice(&out[56..56 + here]);
        }
        let set: Vec<usize> = (0..got.len()).filter(|i| got[*i] == 1).collect();
        let expected: Vec<usize> = (0..count).map(|n| n * stride + HOP_LIMIT).collect();
        assert_eq!(set, expected, "{count} records of {RECORD} every {stride}");
    }
}

#[test]
fn nonsense_in_the_header_does_no_harm() {
    let (mut net, _) = rails();
    net.control("grh on");
    let mut m = mad(3, GET_TABLE_RESP, PATH_RECORD, 0);
    m[24..64].fill(0xff);
    m[25] = 1;
    let got = through(&mut net, &m);
    assert_eq!(got.len(), 256);
    assert_eq!(got[..56], m[..56]);
}
