// SPDX-License-Identifier: GPL-2.0-only

//! Directed routes, pure and with LID-routed parts.

use crate::net::{datagram, directed, status, Net, GET, PERMISSIVE, SET};
use crate::sm::{rails, Sm, NODE_DESC, NODE_INFO};

fn name(m: &[u8]) -> String {
    String::from_utf8_lossy(&m[64..128])
        .trim_end_matches('\0')
        .into()
}

#[test]
fn a_path_leads_where_its_ports_lead() {
    let mut net = Net::named("rails");
    let sm = Sm::new("vhca2/1");
    for (path, expected) in [
        (&[][..], "vhca2"),
        (&[1], "sw0"),
        (&[1, 1], "vhca0"),
        (&[1, 2], "vhca1"),
        (&[1, 3], "sw1"),
        (&[1, 3, 1], "vhca0"),
        (&[1, 3, 3], "sw0"),
        (&[1, 3, 3, 4], "vhca2"),
    ] {
        let answer = sm
            .ask(&mut net, path, GET, NODE_DESC, 0, &[])
            .unwrap_or_else(|| panic!("{path:?}"));
        assert_eq!(name(&answer), expected, "{path:?}");
    }
}

#[test]
fn a_path_that_leads_nowhere_is_lost() {
    let mut net = Net::named("rails");
    let sm = Sm::new("vhca2/1");
    // No such port, port 0, a port without a link, through an HCA.
    for path in [&[1, 9][..], &[1, 0], &[1, 3, 4], &[1, 1, 2], &[1, 0xff]] {
        assert!(
            sm.ask(&mut net, path, GET, NODE_INFO, 0, &[]).is_none(),
            "{path:?}"
        );
    }
}

#[test]
fn the_longest_path_is_63_hops() {
    let mut net = Net::named("rails");
    let sm = Sm::new("vhca2/1");
    // To and fro between the switches.
    let mut path = vec![1];
    path.resize(63, 3);
    let answer = sm
        .ask(&mut net, &path, GET, NODE_DESC, 0, &[])
        .expect("63 hops");
    assert_eq!(name(&answer), "sw0");
    let mut smp = directed(&path, GET, NODE_DESC, 0);
    smp[7] = 64;
    assert!(sm.ask_raw(&mut net, smp).is_none(), "64 hops");
}

#[test]
fn a_lid_routed_part_may_lead_to_the_directed_one() {
    let (mut net, sm) = rails();
    let me = net.lid("vhca2/1");
    // To sw1 by its LID, from there by port 2 to vhca1; back the same way.
    let mut smp = directed(&[2], GET, NODE_DESC, 0);
    smp[32..34].copy_from_slice(&me.to_be_bytes());
    let packet = datagram(me, net.lid("sw1/0"), 0, 0, &smp);
    net.send("vhca2/1", packet);
    let answer = net.arrived.pop_front().expect("an answer").packet;
    assert_eq!(name(&answer.payload), "vhca1");
    assert_eq!((answer.lrh.dlid, answer.lrh.slid), (me, net.lid("sw1/0")));
    // No hop at all: the switch itself.
    let mut smp = directed(&[], GET, NODE_DESC, 0);
    smp[32..34].copy_from_slice(&me.to_be_bytes());
    let packet = datagram(me, net.lid("sw1/0"), 0, 0, &smp);
    net.send("vhca2/1", packet);
    assert_eq!(
        name(&net.arrived.pop_front().expect("an answer").packet.payload),
        "sw1"
    );
    assert!(sm.ask(&mut net, &[1, 3], GET, NODE_DESC, 0, &[]).is_some());
}

#[test]
fn a_lid_routed_part_may_follow_the_directed_one() {
    let (mut net, sm) = rails();
    // By one hop to sw0, from there to the LID of sw1.
    let mut smp = directed(&[1], GET, NODE_DESC, 0);
    smp[34..36].copy_from_slice(&net.lid("sw1/0").to_be_bytes());
    let answer = sm.ask_raw(&mut net, smp).expect("an answer");
    assert_eq!(name(&answer), "sw1");
    assert_eq!((status(&answer), answer[4] & 0x80), (0, 0x80));
}

#[test]
fn an_answer_cannot_be_made_to_wander() {
    let (mut net, _) = rails();
    // Returning SMPs with hop pointers that no honest sender uses.
    for ptr in [0u8, 3, 5, 63, 64, 255] {
        let mut smp = directed(&[1, 3], GET, NODE_INFO, 0);
        smp[4] = 0x80;
        smp[6] = ptr;
        smp[192..256].fill(3);
        net.send("vhca2/1", datagram(PERMISSIVE, PERMISSIVE, 0, 0, &smp));
        assert_eq!(net.take_arrived(), [""; 0], "{ptr}");
    }
}

#[test]
fn a_path_of_no_hops_is_not_for_the_neighbour() {
    let (mut net, _) = rails();
    // A Set of the neighbour's SwitchInfo that claims to have arrived before it left.
    let mut smp = directed(&[], SET, 0x12, 0);
    smp[64 + 7] = 1;
    net.send("vhca2/1", datagram(PERMISSIVE, PERMISSIVE, 0, 0, &smp));
    assert_eq!(net.take_arrived(), [""; 0]);
    let packet = datagram(
        net.lid("vhca0/1"),
        net.lid("vhca1/2"),
        40,
        50,
        b"still there",
    );
    net.send("vhca0/1", packet);
    assert_eq!(net.take_arrived(), ["vhca1/2"]);
}
