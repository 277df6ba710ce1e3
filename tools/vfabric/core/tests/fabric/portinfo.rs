// SPDX-License-Identifier: GPL-2.0-only

//! PortInfo: what an SM may set, and what becomes of it.

use crate::agents::{hca, port_info, INVALID};
use crate::net::{mad, status, Net, GET, SET};
use crate::sm::{rails, PORT_INFO};
use vfabric_core::model::fabric::{PortEvent, PortState};

#[test]
fn the_modifier_of_a_port_info_names_the_port() {
    let (mut net, sm) = rails();
    for (modifier, lid) in [
        (0, net.lid("vhca0/1")),
        (1, net.lid("vhca0/1")),
        (2, net.lid("vhca0/2")),
    ] {
        let mut m = mad(1, GET, PORT_INFO, modifier);
        hca(&mut net, "vhca0/1", &mut m);
        assert_eq!((status(&m), u16::from_be_bytes([m[80], m[81]])), (0, lid));
    }
    let mut m = mad(1, GET, PORT_INFO, 3);
    hca(&mut net, "vhca0/1", &mut m);
    assert_eq!(status(&m), INVALID);
    let path = sm.path_to("sw0").to_vec();
    assert_eq!(
        status(&sm.ask(&mut net, &path, GET, PORT_INFO, 5, &[]).unwrap()),
        INVALID
    );
    assert_eq!(
        status(&sm.ask(&mut net, &path, GET, PORT_INFO, 4, &[]).unwrap()),
        0
    );
}

#[test]
fn a_port_climbs_one_step_at_a_time() {
    let mut net = Net::named("rails");
    let want = |net: &mut Net, state: u8| {
        let mut m = port_info(net, "vhca0/1");
        m[80..82].copy_from_slice(&9u16.to_be_bytes());
        m[82..84].copy_from_slice(&1u16.to_be_bytes());
        m[64 + 32] |= state;
        hca(net, "vhca0/1", &mut m);
        (status(&m), net.state("vhca0/1"))
    };
    assert_eq!(want(&mut net, 4), (INVALID, PortState::Init));
    assert_eq!(want(&mut net, 2), (INVALID, PortState::Init));
    assert_eq!(want(&mut net, 0), (0, PortState::Init));
    assert_eq!(want(&mut net, 3), (0, PortState::Armed));
    assert_eq!(want(&mut net, 3), (0, PortState::Armed));
    assert_eq!(want(&mut net, 4), (0, PortState::Active));
    assert_eq!(want(&mut net, 4), (0, PortState::Active));
    assert_eq!(want(&mut net, 3), (INVALID, PortState::Active));
    assert_eq!(want(&mut net, 7), (INVALID, PortState::Active));
    let active = net
        .events
        .iter()
        .filter(|e| e.2 == PortEvent::PortActive)
        .count();
    assert_eq!(active, 1);
    net.control("cut vhca0/1");
    assert_eq!(want(&mut net, 3), (INVALID, PortState::Down));
    assert_eq!(want(&mut net, 4), (INVALID, PortState::Down));
}

#[test]
fn a_set_that_makes_no_sense_changes_nothing() {
    let (mut net, _) = rails();
    let good = port_info(&mut net, "vhca0/1");
    for (at, bytes) in [
        (16, &[0xc0, 0x01][..]), // LID is multicast
        (16, &[0, 0]),           // no LID, while Active
        (18, &[0xff, 0xff]),     // SM LID
        (29, &[0x40]),           // LinkWidthEnabled
        (32, &[0x75]),           // PortState
        (33, &[0x52]),           // PortPhysicalState
        (33, &[0x03]),           // LinkDownDefaultState
        (35, &[0x48]),           // LinkSpeedEnabled
        (36, &[0x60]),           // NeighborMTU
        (43, &[0x20]),           // OperationalVLs
    ] {
        let mut m = good;
        // Something valid beside it, which must not be done either.
        m[64 + 51] = 30;
        m[64 + 8] = 0x12;
        m[64 + at..64 + at + bytes.len()].copy_from_slice(bytes);
        hca(&mut net, "vhca0/1", &mut m);
        assert_eq!(status(&m), INVALID, "byte {at}");
        assert_eq!(
            port_info(&mut net, "vhca0/1")[64..128],
            good[64..128],
            "byte {at}"
        );
        assert_eq!(net.events, []);
    }
}

#[test]
fn lids_of_an_lmc_stay_unicast() {
    let (mut net, _) = rails();
    let mut m = port_info(&mut net, "vhca0/1");
    m[80..82].copy_from_slice(&0xbfffu16.to_be_bytes());
    m[64 + 34] = 1;
    hca(&mut net, "vhca0/1", &mut m);
    assert_eq!(status(&m), INVALID);
}

#[test]
fn changes_that_a_host_must_know_are_events() {
    use PortEvent::*;
    let (mut net, _) = rails();
    for (at, value, event) in [
        (17, 77, LidChange),
        (34, 1, LidChange),
        (19, 78, SmChange),
        (36, 0x51, SmChange),
        (8, 0x20, GidChange),
        (51, 0x80 | 12, ClientReregister),
    ] {
        let mut m = port_info(&mut net, "vhca0/1");
        m[64 + at] = value;
        hca(&mut net, "vhca0/1", &mut m);
        assert_eq!(status(&m), 0);
        assert_eq!(
            std::mem::take(&mut net.events),
            [("vhca0".to_string(), 1, event)],
            "byte {at}"
        );
        assert_eq!(
            m[64 + 51] & 0x80 != 0,
            event == ClientReregister,
            "echoed once"
        );
    }
    let m = port_info(&mut net, "vhca0/1");
    assert_eq!(m[64 + 51], 12);
}

#[test]
fn a_base_port_0_has_one_lid_whatever_the_lmc() {
    let (mut net, sm) = rails();
    let lid = net.lid("sw0/0");
    let path = sm.path_to("sw0").to_vec();
    let mut pi = sm.ask(&mut net, &path, GET, PORT_INFO, 0, &[]).unwrap()[64..128].to_vec();
    pi[34] = 2;
    let answer = sm.ask(&mut net, &path, SET, PORT_INFO, 0, &pi).unwrap();
    assert_eq!((status(&answer), answer[64 + 34] & 7), (0, 0));
    let port0 = net.fabric.port(net.id("sw0"), 0).unwrap();
    assert!(port0.owns_lid(lid) && !port0.owns_lid(lid + 1));
}
