// SPDX-License-Identifier: GPL-2.0-only

//! Packets between HCAs.

use crate::net::{datagram, Net};
use crate::net::{GET, SET};
use crate::sm::{rails, Sm, LFT, MFT, SWITCH_INFO};
use vfabric_core::model::fabric::counters::Totals;
use vfabric_core::model::fabric::PortState;

fn totals(net: &Net, at: &str) -> Totals {
    let (node, port) = net.end(at);
    net.fabric.port(node, port).unwrap().counters.total
}

fn dropped(net: &Net, at: &str) -> u64 {
    let (node, port) = net.end(at);
    net.fabric.port(node, port).unwrap().counters.dropped
}

#[test]
fn every_port_reaches_every_other_once_and_intact() {
    let (mut net, _) = rails();
    let ends = ["vhca0/1", "vhca0/2", "vhca1/1", "vhca1/2", "vhca2/1"];
    for (n, (from, to)) in (0u8..).zip(ends.iter().flat_map(|a| ends.iter().map(move |b| (a, b)))) {
        let packet = datagram(net.lid(from), net.lid(to), 40, 50, &[n; 100]);
        net.send(from, packet);
        let arrived = net
            .arrived
            .pop_front()
            .unwrap_or_else(|| panic!("{from} to {to}"));
        let (node, port) = net.end(to);
        assert_eq!((arrived.node, arrived.port), (node, port), "{from} to {to}");
        assert_eq!(*arrived.packet.payload, [n; 100]);
        assert_eq!(arrived.packet.lrh.slid, net.lid(from));
        assert!(net.arrived.is_empty(), "{from} to {to}");
    }
}

#[test]
fn packets_keep_their_order() {
    let (mut net, _) = rails();
    let (node, port) = net.end("vhca0/1");
    let (slid, dlid) = (net.lid("vhca0/1"), net.lid("vhca1/2"));
    for n in 0..200u8 {
        net.fabric
            .transmit(node, port, datagram(slid, dlid, 40, 50, &[n]), net.now);
    }
    net.run();
    let seen: Vec<u8> = net.arrived.iter().map(|a| a.packet.payload[0]).collect();
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
}

#[test]
fn a_packet_to_the_own_lid_does_not_touch_the_link() {
    let (mut net, _) = rails();
    let before = totals(&net, "vhca0/1");
    let lid = net.lid("vhca0/1");
    net.send("vhca0/1", datagram(lid, lid, 40, 50, b"myself"));
    assert_eq!(net.take_arrived(), ["vhca0/1"]);
    assert_eq!(totals(&net, "vhca0/1"), before);
}

#[test]
fn the_other_port_of_the_same_hca_is_reached_by_the_link() {
    let (mut net, _) = rails();
    let before = totals(&net, "sw0/3").xmit_packets;
    let packet = datagram(
        net.lid("vhca0/1"),
        net.lid("vhca0/2"),
        40,
        50,
        b"other side",
    );
    net.send("vhca0/1", packet);
    assert_eq!(net.take_arrived(), ["vhca0/2"]);
    assert_eq!(totals(&net, "sw0/3").xmit_packets, before + 1);
}

#[test]
fn an_unknown_lid_ends_in_the_first_switch() {
    let (mut net, _) = rails();
    for lid in [0, 999, 0xbfff] {
        let before = totals(&net, "sw0/1").relay_errors;
        let packet = datagram(net.lid("vhca0/1"), lid, 40, 50, b"?");
        net.send("vhca0/1", packet);
        assert_eq!(net.take_arrived(), [""; 0]);
        assert_eq!(totals(&net, "sw0/1").relay_errors, before + 1, "LID {lid}");
    }
}

#[test]
fn data_waits_for_active_and_management_does_not() {
    let mut net = Net::named("rails");
    let mut sm = Sm::new("vhca2/1");
    sm.discover(&mut net);
    net.send("vhca0/1", datagram(1, 2, 40, 50, b"too soon"));
    assert_eq!(totals(&net, "vhca0/1").xmit_discards, 1);
    assert_eq!(net.take_arrived(), [""; 0]);
    sm.sweep(&mut net);
    // One link back to Init: a packet that needs it is lost at its near end.
    net.control("cut sw0/3");
    net.control("join sw0/3");
    assert_eq!(net.state("sw0/3"), PortState::Init);
    net.arrived.clear();
    let before = dropped(&net, "sw0/3");
    let packet = datagram(net.lid("vhca0/1"), net.lid("vhca1/2"), 40, 50, b"too soon");
    net.send("vhca0/1", packet);
    assert_eq!(net.take_arrived(), [""; 0]);
    assert_eq!(dropped(&net, "sw0/3"), before + 1);
    // LID-routed management passes.
    sm.sweep(&mut net);
}

#[test]
fn a_packet_larger_than_the_mtu_is_not_sent() {
    let (mut net, _) = rails();
    let (slid, dlid) = (net.lid("vhca0/1"), net.lid("vhca1/1"));
    net.send("vhca0/1", datagram(slid, dlid, 40, 50, &[0; 4096]));
    assert_eq!(net.take_arrived(), ["vhca1/1"]);
    net.send("vhca0/1", datagram(slid, dlid, 40, 50, &[0; 4097]));
    assert_eq!(net.take_arrived(), [""; 0]);
    assert_eq!(totals(&net, "vhca0/1").xmit_discards, 1);
}

#[test]
fn lmc_gives_a_port_several_lids_on_different_ways() {
    let mut net = Net::named("spine");
    let mut sm = Sm::new("vhca2/1");
    sm.lmc = 1;
    sm.sweep(&mut net);
    let (from, to) = ("vhca3/1", "vhca4/1");
    for (offset, spine) in [(0, "spine0/1"), (1, "spine1/1")] {
        let before = totals(&net, spine).rcv_packets;
        let packet = datagram(net.lid(from), net.lid(to) + offset, 40, 50, b"either way");
        net.send(from, packet);
        assert_eq!(net.take_arrived(), [to]);
        assert_eq!(totals(&net, spine).rcv_packets, before + 1, "{spine}");
    }
    let beyond = net.lid(to) + 2;
    net.send(from, datagram(net.lid(from), beyond, 40, 50, b"not there"));
    assert!(!net.take_arrived().contains(&to.to_string()));
}

#[test]
fn multicast_reaches_members_only_and_the_sender_itself() {
    let (mut net, sm) = rails();
    sm.set_multicast(&mut net, 0xc025, &["vhca0/1", "vhca1/1", "vhca1/2"]);
    let slid = net.lid("vhca0/1");
    net.send("vhca0/1", datagram(slid, 0xc025, 0xff_ffff, 50, &[7; 60]));
    assert!(net
        .arrived
        .iter()
        .all(|a| *a.packet.payload == [7; 60] && a.packet.lrh.slid == slid));
    let mut arrived = net.take_arrived();
    arrived.sort();
    assert_eq!(arrived, ["vhca0/1", "vhca1/1", "vhca1/2"]);
    assert_eq!(totals(&net, "sw0/3").multicast_xmit, 1);
    assert_eq!(totals(&net, "vhca1/2").multicast_rcv, 1);
    // A group that no switch knows goes no further than the first, and is no error there.
    let before = (dropped(&net, "sw0/1"), totals(&net, "sw0/1").relay_errors);
    net.send("vhca0/1", datagram(slid, 0xc026, 0xff_ffff, 50, b"nobody"));
    assert_eq!(net.take_arrived(), ["vhca0/1"]);
    let after = (dropped(&net, "sw0/1"), totals(&net, "sw0/1").relay_errors);
    assert_eq!(after, (before.0 + 1, before.1));
}

#[test]
fn multicast_ports_above_15_are_in_further_positions() {
    let mut net = Net::new("hca a ports=1;hca b ports=1;hca c ports=1;switch s ports=36;link a/1 s/1;link b/1 s/16;link c/1 s/36");
    let mut sm = Sm::new("a/1");
    sm.sweep(&mut net);
    sm.set_multicast(&mut net, 0xc000, &["a/1", "b/1", "c/1"]);
    net.arrived.clear();
    net.send(
        "a/1",
        datagram(net.lid("a/1"), 0xc000, 0xff_ffff, 50, b"all"),
    );
    let mut arrived = net.take_arrived();
    arrived.sort();
    assert_eq!(arrived, ["a/1", "b/1", "c/1"]);
}

#[test]
fn a_loop_in_the_forwarding_tables_ends() {
    let (mut net, sm) = rails();
    // LID 40 leads from either switch to the other; so does a group.
    for s in ["sw0", "sw1"] {
        let path = sm.path_to(s).to_vec();
        let mut info = sm.ask(&mut net, &path, GET, SWITCH_INFO, 0, &[]).unwrap()[64..128].to_vec();
        info[6..8].copy_from_slice(&63u16.to_be_bytes());
        sm.ask(&mut net, &path, SET, SWITCH_INFO, 0, &info).unwrap();
        let mut table = sm.ask(&mut net, &path, GET, LFT, 0, &[]).unwrap()[64..128].to_vec();
        table[40] = 3;
        sm.ask(&mut net, &path, SET, LFT, 0, &table).unwrap();
        let mut masks = [0; 64];
        masks[0..2].copy_from_slice(&0x000eu16.to_be_bytes());
        sm.ask(&mut net, &path, SET, MFT, 1, &masks).unwrap();
    }
    let slid = net.lid("vhca0/1");
    net.send("vhca0/1", datagram(slid, 40, 40, 50, b"round"));
    assert_eq!(net.take_arrived(), [""; 0]);
    // With two switches and one link between them, the second sends it back where it came from.
    assert_eq!(totals(&net, "sw1/3").relay_errors, 1);
    net.send("vhca0/1", datagram(slid, 0xc020, 0xff_ffff, 50, b"round"));
    let mut arrived = net.take_arrived();
    arrived.sort();
    assert_eq!(arrived, ["vhca0/1", "vhca0/2", "vhca1/1", "vhca1/2"]);
}

#[test]
fn a_ring_of_switches_ends_by_hop_count() {
    let text = "hca a ports=1;switch x ports=4;switch y ports=4;switch z ports=4;link a/1 x/1;link x/2 y/1;link y/2 z/1;link z/2 x/3";
    let mut net = Net::new(text);
    let mut sm = Sm::new("a/1");
    sm.sweep(&mut net);
    for s in ["x", "y", "z"] {
        let path = sm.path_to(s).to_vec();
        let mut table = sm.ask(&mut net, &path, GET, LFT, 0, &[]).unwrap()[64..128].to_vec();
        let mut info = sm.ask(&mut net, &path, GET, SWITCH_INFO, 0, &[]).unwrap()[64..128].to_vec();
        info[6..8].copy_from_slice(&63u16.to_be_bytes());
        sm.ask(&mut net, &path, SET, SWITCH_INFO, 0, &info).unwrap();
        table[50] = 2;
        sm.ask(&mut net, &path, SET, LFT, 0, &table).unwrap();
        let mut masks = [0; 64];
        masks[0..2].copy_from_slice(&0x000eu16.to_be_bytes());
        sm.ask(&mut net, &path, SET, MFT, 0, &masks).unwrap();
    }
    let slid = net.lid("a/1");
    net.send("a/1", datagram(slid, 50, 40, 50, b"round"));
    assert_eq!(net.take_arrived(), [""; 0]);
    assert_eq!(net.fabric.stats().looped, 1);
    net.send("a/1", datagram(slid, 0xc000, 0xff_ffff, 50, b"round"));
    // One copy each way round; each passes the HCA's switch every third hop.
    assert_eq!(net.fabric.stats().looped, 3);
    assert_eq!(net.fabric.next_due(), None);
}

#[test]
fn lids_above_the_top_of_the_table_lead_nowhere() {
    let (mut net, sm) = rails();
    let (slid, dlid) = (net.lid("vhca0/1"), net.lid("vhca1/1"));
    for (top, arrives) in [(dlid, true), (dlid - 1, false)] {
        let mut info = sm.ask(&mut net, &[1], GET, SWITCH_INFO, 0, &[]).unwrap()[64..128].to_vec();
        info[6..8].copy_from_slice(&top.to_be_bytes());
        sm.ask(&mut net, &[1], SET, SWITCH_INFO, 0, &info).unwrap();
        net.send("vhca0/1", datagram(slid, dlid, 40, 50, b"top"));
        assert_eq!(
            !net.take_arrived().is_empty(),
            arrives,
            "LinearFDBTop {top}"
        );
    }
}

#[test]
fn too_many_packets_are_lost_and_counted_and_the_rest_keeps_its_order() {
    let (mut net, _) = rails();
    let (node, port) = net.end("vhca0/1");
    let (slid, dlid) = (net.lid("vhca0/1"), net.lid("vhca1/1"));
    for n in 0..66_000u32 {
        let packet = datagram(slid, dlid, 40, 50, &n.to_be_bytes());
        net.fabric.transmit(node, port, packet, net.now);
    }
    net.run();
    let lost = net.fabric.stats().no_room;
    assert!(lost > 0);
    assert_eq!(net.arrived.len() as u64 + lost, 66_000);
    for (n, a) in (0u32..).zip(&net.arrived) {
        assert_eq!(*a.packet.payload, n.to_be_bytes());
    }
    assert_eq!(dropped(&net, "sw0/1"), lost);
    // And it goes on.
    net.arrived.clear();
    net.send("vhca0/1", datagram(slid, dlid, 40, 50, b"next"));
    assert_eq!(net.take_arrived(), ["vhca1/1"]);
}
