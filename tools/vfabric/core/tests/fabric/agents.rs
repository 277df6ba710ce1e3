// SPDX-License-Identifier: GPL-2.0-only

//! The subnet management agents: what they answer, what they refuse.

use crate::net::{datagram, mad, status, Net, GET, GET_RESP, SET};
use crate::sm::{rails, Sm, NODE_DESC, NODE_INFO, PORT_INFO, SWITCH_INFO};
use vfabric_core::model::fabric::{MadRequest, MadResult, PortEvent};

const GUID_INFO: u16 = 0x14;
const PKEY: u16 = 0x16;
const SL_TO_VL: u16 = 0x17;
const VLARB: u16 = 0x18;
const SM_INFO: u16 = 0x20;
pub const INVALID: u16 = 0x1c;
const UNSUPPORTED: u16 = 0x0c;

/// Puts a LID-routed SMP to an HCA port's agent.
pub fn hca(net: &mut Net, at: &str, m: &mut [u8; 256]) -> MadResult {
    let (node, port) = net.end(at);
    let result = net
        .fabric
        .process_mad(node, port, m, MadRequest::default(), net.now);
    net.run();
    result
}

/// Its PortInfo as it is, ready to be set: no state wanted.
pub fn port_info(net: &mut Net, at: &str) -> [u8; 256] {
    let mut m = mad(1, GET, PORT_INFO, 0);
    assert_eq!(hca(net, at, &mut m), MadResult::Reply);
    m[3] = SET;
    m[64 + 32] &= 0xf0;
    m[64 + 33] &= 0x0f;
    m
}

#[test]
fn unknown_attributes_methods_and_versions_get_their_status() {
    let (mut net, _) = rails();
    for (method, attr, expected) in [
        (GET, 0x13, UNSUPPORTED),
        (GET, 0x30, UNSUPPORTED),
        (GET, 0xff90, UNSUPPORTED),
        (SET, NODE_INFO, UNSUPPORTED),
        (SET, NODE_DESC, UNSUPPORTED),
        (GET, SWITCH_INFO, UNSUPPORTED),
        (GET, 0x19, UNSUPPORTED),
        (GET, 0x1b, UNSUPPORTED),
        (GET, NODE_INFO, 0),
    ] {
        let mut m = mad(1, method, attr, 0);
        assert_eq!(hca(&mut net, "vhca0/1", &mut m), MadResult::Reply);
        assert_eq!(
            (m[3], status(&m)),
            (GET_RESP, expected),
            "method {method} attribute {attr:#x}"
        );
    }
    for (at, value) in [(0, 2), (2, 9)] {
        let mut m = mad(1, GET, NODE_INFO, 0);
        m[at] = value;
        assert_eq!(hca(&mut net, "vhca0/1", &mut m), MadResult::Reply);
        assert_eq!(status(&m), 4);
    }
}

#[test]
fn what_an_sm_in_the_hca_has_to_see_is_passed_on() {
    let (mut net, _) = rails();
    for (class, method, attr) in [
        (1, GET, SM_INFO),
        (0x81, SET, SM_INFO),
        (1, 5, 2),
        (1, GET_RESP, NODE_INFO),
        (4, GET_RESP, 0x12),
        (3, GET, 0x35),
        (7, 3, 0x10),
    ] {
        let mut m = mad(class, method, attr, 0);
        let before = m;
        assert_eq!(
            hca(&mut net, "vhca0/1", &mut m),
            MadResult::PassToAgents,
            "class {class} attribute {attr:#x}"
        );
        assert_eq!(m, before);
    }
}

#[test]
fn a_directed_answer_has_its_direction_set() {
    let (mut net, _) = rails();
    let mut m = mad(0x81, GET, NODE_INFO, 0);
    assert_eq!(hca(&mut net, "vhca0/2", &mut m), MadResult::Reply);
    assert_eq!(m[4..6], [0x80, 0]);
    assert_eq!(m[64 + 36], 2, "LocalPortNum");
}

#[test]
fn node_description_can_be_changed_by_the_host() {
    let (mut net, _) = rails();
    let id = net.id("vhca0");
    net.fabric.set_node_desc(id, b"somewhere else");
    let mut m = mad(1, GET, NODE_DESC, 0);
    hca(&mut net, "vhca0/1", &mut m);
    assert_eq!(m[64..80], *b"somewhere else\0\0");
}

#[test]
fn pkeys_and_guids_can_be_set() {
    let (mut net, _) = rails();
    let mut m = mad(1, SET, PKEY, 0);
    m[64..68].copy_from_slice(&[0xff, 0xff, 0x80, 0x05]);
    hca(&mut net, "vhca0/1", &mut m);
    assert_eq!(status(&m), 0);
    let mut m = mad(1, SET, GUID_INFO, 0);
    m[64..88].copy_from_slice(&[7; 24]);
    hca(&mut net, "vhca0/1", &mut m);
    let events: Vec<_> = net.events.iter().map(|e| e.2).collect();
    assert_eq!(events, [PortEvent::PkeyChange, PortEvent::GidChange]);
    let (node, port) = net.end("vhca0/1");
    let p = net.fabric.port(node, port).unwrap();
    assert_eq!(p.pkeys[..3], [0xffff, 0x8005, 0]);
    assert_eq!(p.guid(), 0x0002_c903_0000_0101, "entry 0 stays");
    assert_eq!(
        p.gid(1).unwrap(),
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7]
    );
    assert_eq!(p.gid(3).unwrap(), [0; 16]);
    assert_eq!(p.gid(8), None);
    for attr in [PKEY, GUID_INFO] {
        let mut m = mad(1, GET, attr, 1);
        hca(&mut net, "vhca0/1", &mut m);
        assert_eq!(status(&m), INVALID, "block 1");
    }
}

#[test]
fn lanes_are_chosen_by_sl_to_vl() {
    let (mut net, _) = rails();
    let mut m = mad(1, SET, SL_TO_VL, 0);
    // SL 3 to VL 15, which means drop; SL 4 to VL 1, which does not operate.
    m[65] = 0x0f;
    m[66] = 0x10;
    hca(&mut net, "vhca0/1", &mut m);
    assert_eq!(status(&m), 0);
    for (sl, arrives) in [(2, true), (3, false), (4, false), (5, true)] {
        let mut packet = datagram(net.lid("vhca0/1"), net.lid("vhca1/1"), 40, 50, b"lane");
        packet.lrh.sl = sl;
        net.send("vhca0/1", packet);
        assert_eq!(!net.take_arrived().is_empty(), arrives, "SL {sl}");
    }
}

#[test]
fn vl_arbitration_is_kept() {
    let (mut net, sm) = rails();
    let path = sm.path_to("sw0").to_vec();
    let table: Vec<u8> = (0..64).collect();
    for (modifier, expected) in [
        ((1 << 16) | 2, 0),
        ((3 << 16) | 2, 0),
        ((2 << 16) | 2, INVALID),
        ((1 << 16) | 5, INVALID),
        (0, INVALID),
    ] {
        let m = sm
            .ask(&mut net, &path, SET, VLARB, modifier, &table)
            .unwrap();
        assert_eq!(status(&m), expected, "{modifier:#x}");
    }
    assert_eq!(
        sm.ask(&mut net, &path, GET, VLARB, (3 << 16) | 2, &[])
            .unwrap()[64..128],
        table
    );
    assert_eq!(
        sm.ask(&mut net, &path, GET, VLARB, (3 << 16) | 1, &[])
            .unwrap()[64..128],
        [0; 64]
    );
}

#[test]
fn an_mkey_protects_a_port_until_its_lease_ends() {
    let (mut net, _) = rails();
    let mut m = port_info(&mut net, "vhca0/1");
    m[64..72].copy_from_slice(&0x1234u64.to_be_bytes());
    m[64 + 27] = 2; // two seconds
    m[64 + 34] |= 1 << 6;
    hca(&mut net, "vhca0/1", &mut m);
    assert_eq!(status(&m), 0);
    // Without it: reading yes, the key itself no, setting no.
    let mut get = mad(1, GET, PORT_INFO, 0);
    assert_eq!(hca(&mut net, "vhca0/1", &mut get), MadResult::Reply);
    assert_eq!(get[64..72], [0; 8]);
    let mut set = port_info(&mut net, "vhca0/1");
    set[64 + 51] = 20;
    assert_eq!(hca(&mut net, "vhca0/1", &mut set), MadResult::Consumed);
    let (node, port) = net.end("vhca0/1");
    let p = net.fabric.port(node, port).unwrap();
    assert_eq!((p.subnet_timeout, p.mkey_violations), (12, 1));
    // With it, or for the host itself: yes.
    set[24..32].copy_from_slice(&0x1234u64.to_be_bytes());
    set[64..72].copy_from_slice(&0x1234u64.to_be_bytes());
    assert_eq!(hca(&mut net, "vhca0/1", &mut set), MadResult::Reply);
    assert_eq!(net.fabric.port(node, port).unwrap().subnet_timeout, 20);
    let mut local = mad(1, GET, PORT_INFO, 0);
    net.fabric.process_mad(
        node,
        port,
        &mut local,
        MadRequest { ignore_mkey: true },
        net.now,
    );
    assert_eq!(local[64..72], 0x1234u64.to_be_bytes());
    // Protection 2 hides everything, until two seconds after the first violation.
    let mut m = port_info(&mut net, "vhca0/1");
    m[24..32].copy_from_slice(&0x1234u64.to_be_bytes());
    m[64..72].copy_from_slice(&0x1234u64.to_be_bytes());
    m[64 + 34] = 2 << 6;
    hca(&mut net, "vhca0/1", &mut m);
    let mut get = mad(1, GET, NODE_INFO, 0);
    assert_eq!(hca(&mut net, "vhca0/1", &mut get), MadResult::Consumed);
    net.now += 2_000_000_000;
    let mut get = mad(1, GET, NODE_INFO, 0);
    assert_eq!(hca(&mut net, "vhca0/1", &mut get), MadResult::Reply);
}

#[test]
fn a_forwarding_table_has_the_size_it_says() {
    let (mut net, sm) = rails();
    let path = sm.path_to("sw1").to_vec();
    for (attr, modifier, expected) in [
        (0x19, 767, 0),
        (0x19, 768, INVALID),
        (0x19, u32::MAX, INVALID),
        (0x1b, 31, 0),
        (0x1b, 32, INVALID),
        (0x1b, 1 << 28, INVALID),
        (0x1b, 0xf000_01ff, INVALID),
    ] {
        let m = sm.ask(&mut net, &path, GET, attr, modifier, &[]).unwrap();
        assert_eq!(status(&m), expected, "{attr:#x} {modifier:#x}");
    }
    let mut info = sm.ask(&mut net, &path, GET, SWITCH_INFO, 0, &[]).unwrap()[64..128].to_vec();
    info[6..8].copy_from_slice(&0xc000u16.to_be_bytes());
    assert_eq!(
        status(&sm.ask(&mut net, &path, SET, SWITCH_INFO, 0, &info).unwrap()),
        INVALID
    );
}

#[test]
fn a_switch_answers_lid_routed_smps() {
    let (mut net, _) = rails();
    let packet = datagram(
        net.lid("vhca2/1"),
        net.lid("sw1/0"),
        0,
        0,
        &mad(1, GET, NODE_DESC, 0),
    );
    net.send("vhca2/1", packet);
    let answer = net.arrived.pop_front().expect("an answer").packet;
    assert_eq!(answer.payload[64..67], *b"sw1");
    assert_eq!((answer.lrh.slid, answer.lrh.vl), (net.lid("sw1/0"), 15));
    assert_eq!(answer.payload[8..16], 77u64.to_be_bytes());
}

#[test]
fn the_capability_mask_is_the_hosts() {
    let mut net = Net::named("rails");
    let id = net.id("vhca2");
    net.fabric.modify_port(id, 1, 1 << 1, 0);
    let mut sm = Sm::new("vhca2/1");
    sm.sweep(&mut net);
    assert_eq!(port_info(&mut net, "vhca2/1")[64 + 23] & 2, 2, "IsSM");
    net.fabric.modify_port(id, 1, 0, 1 << 1);
    assert_eq!(port_info(&mut net, "vhca2/1")[64 + 23] & 2, 0);
}
