// SPDX-License-Identifier: GPL-2.0-only

//! Cut, join, blackhole.

use crate::net::{datagram, directed, Net, GET, SET};
use crate::sm::{rails, Sm, NODE_INFO, PORT_INFO};
use vfabric_core::model::fabric::control::ControlError;
use vfabric_core::model::fabric::port::PhysState;
use vfabric_core::model::fabric::{PortEvent, PortState};

/// Whether a packet from one port arrives at the other.
fn passes(net: &mut Net, from: &str, to: &str) -> bool {
    net.arrived.clear();
    let packet = datagram(net.lid(from), net.lid(to), 40, 50, b"is it there");
    net.send(from, packet);
    net.take_arrived().contains(&to.to_string())
}

fn dropped(net: &Net, at: &str) -> u64 {
    let (node, port) = net.end(at);
    net.fabric.port(node, port).unwrap().counters.dropped
}

#[test]
fn a_cut_takes_both_ends_down_and_tells_the_hca() {
    let (mut net, _) = rails();
    assert!(passes(&mut net, "vhca0/1", "vhca1/1"));
    net.control("cut vhca0/1");
    assert_eq!(
        (net.state("vhca0/1"), net.state("sw0/1")),
        (PortState::Down, PortState::Down)
    );
    assert_eq!(net.events, [("vhca0".into(), 1, PortEvent::PortErr)]);
    assert!(!passes(&mut net, "vhca0/1", "vhca1/1"));
    assert!(!passes(&mut net, "vhca1/1", "vhca0/1"));
    assert!(passes(&mut net, "vhca0/2", "vhca1/2"), "the other rail");
    let (node, port) = net.end("vhca0/1");
    let p = net.fabric.port(node, port).unwrap();
    assert_eq!(
        (p.phys, p.cut, p.counters.total.link_downed),
        (PhysState::Polling, true, 1)
    );
    // Cutting the other end of the same cable is the same and says nothing twice.
    net.control("cut sw0/1");
    assert_eq!(net.events.len(), 1);
}

#[test]
fn a_packet_on_the_cable_is_lost_with_it() {
    let (mut net, _) = rails();
    let (node, port) = net.end("vhca0/1");
    let packet = datagram(
        net.lid("vhca0/1"),
        net.lid("vhca1/1"),
        40,
        50,
        b"on its way",
    );
    net.fabric.transmit(node, port, packet, net.now);
    net.fabric.control("cut sw0/1", net.now).unwrap();
    net.fabric.control("join sw0/1", net.now).unwrap();
    net.run();
    net.arrived.retain(|a| a.packet.bth.dest_qp == 40);
    assert_eq!(net.take_arrived(), [""; 0]);
    assert_eq!(dropped(&net, "sw0/1"), 1);
}

#[test]
fn after_a_join_the_sm_brings_the_link_back() {
    let (mut net, mut sm) = rails();
    let lid = net.lid("vhca0/1");
    net.control("cut vhca0/1");
    net.control("join vhca0/1");
    assert_eq!(
        (net.state("vhca0/1"), net.state("sw0/1")),
        (PortState::Init, PortState::Init)
    );
    assert_eq!(net.lid("vhca0/1"), lid, "the LID is kept");
    assert!(
        !passes(&mut net, "vhca0/1", "vhca1/1"),
        "not before the SM has been there"
    );
    net.events.clear();
    sm.sweep(&mut net);
    assert!(passes(&mut net, "vhca0/1", "vhca1/1"));
    assert_eq!(net.events, [("vhca0".into(), 1, PortEvent::PortActive)]);
}

#[test]
fn a_cut_between_switches_leaves_the_rails_alone() {
    let (mut net, _) = rails();
    net.control("cut sw1/3");
    assert!(passes(&mut net, "vhca0/1", "vhca1/1"));
    assert!(passes(&mut net, "vhca0/2", "vhca1/2"));
    assert!(!passes(&mut net, "vhca0/1", "vhca1/2"));
    assert_eq!(net.events, []);
}

#[test]
fn a_blackhole_loses_what_it_says_and_no_more() {
    for (direction, there, back) in [
        ("in", true, false),
        ("out", false, true),
        ("both", false, false),
        ("", false, false),
    ] {
        let (mut net, _) = rails();
        net.control(&format!("blackhole vhca0/1 {direction}"));
        assert_eq!(passes(&mut net, "vhca0/1", "vhca1/1"), there, "{direction}");
        assert_eq!(passes(&mut net, "vhca1/1", "vhca0/1"), back, "{direction}");
        let lost = u64::from(!there) + u64::from(!back);
        assert_eq!(dropped(&net, "vhca0/1"), lost);
        assert_eq!(net.state("vhca0/1"), PortState::Active);
        assert_eq!(net.events, []);
        net.control("clear vhca0/1");
        assert!(passes(&mut net, "vhca0/1", "vhca1/1") && passes(&mut net, "vhca1/1", "vhca0/1"));
    }
}

#[test]
fn a_blackhole_loses_subnet_management_too() {
    let (mut net, sm) = rails();
    let path = sm.path_to("sw1").to_vec();
    assert!(sm.ask(&mut net, &path, GET, NODE_INFO, 0, &[]).is_some());
    net.control("blackhole sw1/3 in");
    assert!(sm.ask(&mut net, &path, GET, NODE_INFO, 0, &[]).is_none());
    net.control("blackhole sw1/3 out");
    assert!(sm
        .ask_raw(&mut net, directed(&path, GET, NODE_INFO, 0))
        .is_none());
}

#[test]
fn the_sm_can_disable_and_enable_a_port() {
    let (mut net, sm) = rails();
    let path = sm.path_to("sw0").to_vec();
    let set = |net: &mut Net, state: u8, phys: u8| {
        let mut pi = sm.ask(net, &path, GET, PORT_INFO, 1, &[]).unwrap()[64..128].to_vec();
        pi[32] = pi[32] & 0xf0 | state;
        pi[33] = phys << 4;
        sm.ask(net, &path, SET, PORT_INFO, 1, &pi).unwrap()
    };
    set(&mut net, 1, 3);
    assert_eq!(
        (net.state("sw0/1"), net.state("vhca0/1")),
        (PortState::Down, PortState::Down)
    );
    assert_eq!(net.events, [("vhca0".into(), 1, PortEvent::PortErr)]);
    // A cut and a join do not undo that.
    net.control("cut sw0/1");
    net.control("join sw0/1");
    assert_eq!(net.state("vhca0/1"), PortState::Down);
    set(&mut net, 1, 2);
    assert_eq!(
        (net.state("sw0/1"), net.state("vhca0/1")),
        (PortState::Init, PortState::Init)
    );
}

#[test]
fn set_down_lets_a_link_train_again() {
    let (mut net, sm) = rails();
    let path = sm.path_to("sw0").to_vec();
    let mut pi = sm.ask(&mut net, &path, GET, PORT_INFO, 2, &[]).unwrap()[64..128].to_vec();
    // 1x and SDR from now on.
    pi[29] = 1;
    pi[35] = 1;
    pi[32] = pi[32] & 0xf0 | 1;
    pi[33] &= 0x0f;
    sm.ask(&mut net, &path, SET, PORT_INFO, 2, &pi).unwrap();
    let (node, port) = net.end("vhca1/1");
    let p = net.fabric.port(node, port).unwrap();
    assert_eq!(
        (p.state, p.width_active, p.speed_active),
        (PortState::Init, 1, 1)
    );
    assert_eq!(net.events, [("vhca1".into(), 1, PortEvent::PortErr)]);
}

#[test]
fn a_cut_port_stays_down_whatever_the_sm_says() {
    let (mut net, sm) = rails();
    net.control("cut vhca0/1");
    let path = sm.path_to("sw0").to_vec();
    let mut pi = sm.ask(&mut net, &path, GET, PORT_INFO, 1, &[]).unwrap()[64..128].to_vec();
    for (state, phys) in [(1, 0), (1, 2), (0, 2)] {
        pi[32] = pi[32] & 0xf0 | state;
        pi[33] = pi[33] & 0x0f | (phys << 4);
        sm.ask(&mut net, &path, SET, PORT_INFO, 1, &pi).unwrap();
        assert_eq!(net.state("sw0/1"), PortState::Down);
    }
}

#[test]
fn a_bad_command_is_refused_with_its_reason() {
    use ControlError::*;
    let (mut net, _) = rails();
    let mut before = String::new();
    net.fabric.write_ports(&mut before).unwrap();
    for (line, error) in [
        ("", Empty),
        ("  \n", Empty),
        ("sever vhca0/1", UnknownCommand),
        ("cut", BadPort),
        ("cut vhca0", BadPort),
        ("cut vhca0/x", BadPort),
        ("cut vhca0/256", BadPort),
        ("cut nobody/1", UnknownNode),
        ("cut vhca0/3", NoSuchPort),
        ("cut sw0/0", NoSuchPort),
        ("cut vhca0/0", NoSuchPort),
        ("cut sw1/4", NoLink),
        ("cut vhca0/1 now", TooMuch),
        ("blackhole vhca0/1 up", BadDirection),
        ("blackhole vhca0/1 in out", TooMuch),
    ] {
        assert_eq!(net.fabric.control(line, net.now), Err(error), "{line:?}");
    }
    let mut after = String::new();
    net.fabric.write_ports(&mut after).unwrap();
    assert_eq!(after, before);
}

#[test]
fn the_fabric_survives_the_loss_of_the_sm_port() {
    let (mut net, _) = rails();
    net.control("cut vhca2/1");
    assert!(passes(&mut net, "vhca0/1", "vhca1/2"));
    net.control("join vhca2/1");
    let mut sm = Sm::new("vhca2/1");
    sm.sweep(&mut net);
    assert!(passes(&mut net, "vhca2/1", "vhca1/2"));
}
