// SPDX-License-Identifier: GPL-2.0-only

//! Anything may arrive: nothing panics, and nothing changes that must not.

use crate::net::{bytes, datagram, mad, status, Net, PERMISSIVE};
use crate::sm::{rails, Sm};
use proptest::prelude::*;
use std::fmt::Write;
use vfabric_core::model::fabric::port::PhysState;
use vfabric_core::model::fabric::{MadRequest, PortState};
use vfabric_core::model::packet::Opcode;

/// Everything that an SM configures, as text; counters and violations left out.
fn configuration(net: &mut Net) -> String {
    let mut text = String::new();
    for n in ["vhca0", "vhca1", "vhca2", "sw0", "sw1"] {
        let node = net.fabric.find(n).unwrap();
        write!(text, "{n} {:?} ", &node.desc[..8]).unwrap();
        for p in node.ports() {
            write!(
                text,
                "{:?}",
                (
                    (
                        p.state,
                        p.phys,
                        p.lid,
                        p.lmc,
                        p.sm_lid,
                        p.sm_sl,
                        p.cap_mask,
                        p.neighbor_mtu
                    ),
                    (
                        p.mkey,
                        p.mkey_protect,
                        p.mkey_lease,
                        p.gid_prefix,
                        p.guids,
                        p.subnet_timeout,
                        p.pkeys
                    ),
                    (
                        p.width_enabled,
                        p.width_active,
                        p.speed_enabled,
                        p.speed_active,
                        p.operational_vls,
                        p.enforce
                    ),
                    (
                        p.link_down_default,
                        p.vl_high_limit,
                        p.vl_stall_hoq,
                        p.init_type_reply,
                        p.error_thresholds
                    ),
                )
            )
            .unwrap();
        }
    }
    // The tables of the switches, by their agents' own word: a datagram each, LID-routed.
    for s in ["sw0/0", "sw1/0"] {
        for (attr, modifier) in [
            (0x12, 0),
            (0x19, 0),
            (0x19, 1),
            (0x1b, 0),
            (0x17, 0x0102),
            (0x18, (1 << 16) | 1),
        ] {
            let m = mad(1, 1, attr, modifier);
            let lid = net.lid(s);
            net.arrived.clear();
            net.send("vhca2/1", datagram(net.lid("vhca2/1"), lid, 0, 0, &m));
            let answer = net
                .arrived
                .pop_front()
                .map(|a| a.packet.payload[64..128].to_vec());
            write!(text, "{attr:x} {answer:?}").unwrap();
        }
    }
    text
}

/// What holds in any state of the fabric.
fn sound(net: &Net) {
    for id in ["vhca0", "vhca1", "vhca2", "sw0", "sw1"].map(|n| net.id(n)) {
        for p in net.fabric.node(id).unwrap().ports() {
            assert!(
                p.lid < 0xc000 && p.lmc <= 7 && (1..=5).contains(&p.neighbor_mtu),
                "{p:?}"
            );
            assert!(u32::from(p.lid) + (1 << p.lmc) <= 0xc000);
            assert_eq!(
                p.state == PortState::Down,
                p.phys != PhysState::LinkUp,
                "{p:?}"
            );
            if let Some(peer) = p.peer {
                let far = net.fabric.port(peer.node, peer.port).unwrap();
                assert_eq!(
                    p.state == PortState::Down,
                    far.state == PortState::Down,
                    "both ends or none"
                );
                assert_eq!(p.cut, far.cut);
                assert!(!p.cut || p.state == PortState::Down);
            }
        }
    }
}

/// A MAD that is random but often nearly right.
fn any_mad() -> impl Strategy<Value = [u8; 256]> {
    let class = prop_oneof![4 => Just(0x81u8), 4 => Just(1), 2 => Just(4), 1 => any::<u8>()];
    let method = prop_oneof![
        Just(1u8),
        Just(2),
        Just(5),
        Just(7),
        Just(0x81),
        any::<u8>()
    ];
    let attr = prop_oneof![4 => 0x10u16..0x21, 1 => Just(2), 1 => any::<u16>()];
    let modifier = prop_oneof![4 => 0u32..8, 2 => (0u32..5, 0u32..8).prop_map(|(a, b)| (a << 16) | b), 1 => any::<u32>()];
    let header = (class, method, attr, modifier, 0u8..6, 0u8..6);
    let noise = proptest::collection::vec(any::<u8>(), 256);
    (header, noise, any::<[bool; 3]>()).prop_map(
        |((class, method, attr, modifier, ptr, cnt), noise, keep)| {
            let mut m: [u8; 256] = noise.try_into().unwrap();
            let good = mad(class, method, attr, modifier);
            m[..24].copy_from_slice(&good[..24]);
            if keep[0] {
                (m[6], m[7]) = (ptr, cnt);
                m[32..36].fill(0xff);
            }
            if keep[1] {
                for b in &mut m[128..] {
                    *b %= 6;
                }
            }
            if keep[2] {
                m[4] = 0;
            }
            m
        },
    )
}

/// Where a MAD is sent: to whom (an index of LIDs), by which port, on which QP.
fn way() -> impl Strategy<Value = (u16, &'static str, u32)> {
    let port = prop_oneof![Just("vhca0/1"), Just("vhca1/2"), Just("vhca2/1")];
    (
        prop_oneof![0u16..12, Just(PERMISSIVE), any::<u16>()],
        port,
        0u32..2,
    )
}

fn throw(net: &mut Net, m: &[u8; 256], way: (u16, &str, u32)) {
    let (dlid, from, qp) = way;
    net.send(from, datagram(net.lid(from), dlid, qp, qp, m));
    let (node, port) = net.end(from);
    let mut own = *m;
    net.fabric
        .process_mad(node, port, &mut own, MadRequest::default(), net.now);
    net.run();
    net.arrived.clear();
}

/// A port and changes to its PortInfo: which byte becomes what.
fn any_edits() -> impl Strategy<Value = (&'static str, Vec<(usize, u8)>)> {
    let port = prop_oneof![
        Just("vhca0/1"),
        Just("vhca1/2"),
        Just("sw0/0"),
        Just("sw0/1"),
        Just("sw1/3")
    ];
    let state = (Just(32usize), 0u8..6);
    let phys = (
        Just(33usize),
        (0u8..5, 0u8..4).prop_map(|(phys, down)| (phys << 4) | down),
    );
    let lid = (16usize..20, any::<u8>());
    let other = (20usize..64, any::<u8>());
    let edit = prop_oneof![4 => state, 1 => phys, 1 => lid, 2 => other];
    (port, proptest::collection::vec(edit, 1..3))
}

/// Sets a PortInfo that is the present one, with no change of state, but for `edits`; by the SM's
/// directed routes, whatever state the links are in, so that it may or may not get there.
fn set_edited(net: &mut Net, at: &str, edits: &[(usize, u8)]) {
    let (node, port) = net.end(at);
    let sm = Sm::new("vhca2/1");
    let path: &[u8] = match at {
        "vhca0/1" => &[1, 1],
        "vhca1/2" => &[1, 3, 2],
        "sw1/3" => &[1, 3],
        _ => &[1],
    };
    let Some(now) = sm.ask(net, path, 1, 0x15, u32::from(port), &[]) else {
        return;
    };
    let before = net.fabric.port(node, port).unwrap().state;
    let mut data = now[64..128].to_vec();
    data[32] &= 0xf0;
    data[33] &= 0x0f;
    for (byte, value) in edits {
        data[*byte] = *value;
    }
    let Some(answer) = sm.ask(net, path, 2, 0x15, u32::from(port), &data) else {
        return;
    };
    // A state is only reached from the one below it.
    let after = net.fabric.port(node, port).unwrap().state;
    if after > before && after > PortState::Init {
        assert_eq!((status(&answer), after as u8), (0, before as u8 + 1));
    }
}

/// Commands, most of them good ones.
const COMMAND: &str = "(cut|join|blackhole|clear|c)( (vhca[0-3]|sw[01])/[0-5])?( (in|out|both|x))?\
    |(loss|delay) (vhca[0-2]|sw[01])/[0-4] [0-9]{1,3}(\\.[0-9])?( (in|out|both|x))?\
    |(seed|grh) ([0-9]{1,3}|on|off)\
    |mad (drop|delay|duplicate) class=(1|129|0x81|3) attr=(0x11|0x15|2)( us=[0-9]{1,7})?( count=[0-9])?";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_no_set_changes_nothing(mads in proptest::collection::vec((any_mad(), way()), 1..40)) {
        let (mut net, _) = rails();
        let before = configuration(&mut net);
        for (mut m, way) in mads {
            if m[3] == 2 {
                m[3] = 1;
            }
            throw(&mut net, &m, way);
        }
        prop_assert_eq!(configuration(&mut net), before);
    }

    #[test]
    fn whatever_is_set_the_fabric_stays_sound(steps in proptest::collection::vec((any_mad(), way(), any_edits()), 1..60)) {
        let (mut net, _) = rails();
        for (m, way, (at, edits)) in steps {
            throw(&mut net, &m, way);
            sound(&net);
            set_edited(&mut net, at, &edits);
            sound(&net);
            net.now += 1_000_000;
        }
    }

    #[test]
    fn without_the_mkey_nothing_is_set(mads in proptest::collection::vec((any_mad(), way()), 1..40)) {
        let (mut net, _) = rails();
        for at in ["vhca0/1", "vhca0/2", "vhca1/1", "vhca1/2", "vhca2/1", "sw0/0", "sw1/0"] {
            let (node, port) = net.end(at);
            let mut m = mad(1, 1, 0x15, u32::from(port));
            if at.starts_with("sw") {
                m[3] = 1;
                net.arrived.clear();
                net.send("vhca2/1", datagram(net.lid("vhca2/1"), net.lid(at), 0, 0, &m));
                m = (*net.arrived.pop_front().unwrap().packet.payload).try_into().unwrap();
            } else {
                net.fabric.process_mad(node, port, &mut m, MadRequest::default(), net.now);
            }
            m[3] = 2;
            m[64..72].fill(0x77);
            m[96] &= 0xf0;
            m[97] &= 0x0f;
            net.send("vhca2/1", datagram(net.lid("vhca2/1"), net.lid(at), 0, 0, &m));
            prop_assert_eq!(net.fabric.port(node, port).unwrap().mkey, 0x7777_7777_7777_7777);
        }
        let before = configuration(&mut net);
        for (mut m, way) in mads {
            m[24] = 1;
            throw(&mut net, &m, way);
        }
        prop_assert_eq!(configuration(&mut net), before);
    }

    #[test]
    fn packets_of_any_kind_do_no_harm(
        packets in proptest::collection::vec((any::<u8>(), any::<u16>(), any::<u16>(), any::<u32>(), 0usize..300, any::<u8>()), 1..60),
        port in prop_oneof![Just(0u8), Just(1), Just(2), Just(3), Just(255)],
    ) {
        let (mut net, _) = rails();
        let before = configuration(&mut net);
        let node = net.id("vhca0");
        for (kind, slid, dlid, qp, len, fill) in packets {
            let mut packet = datagram(slid, dlid, qp >> (fill & 31), qp, &vec![fill; len]);
            packet.lrh.vl = fill;
            packet.lrh.sl = fill;
            match kind % 4 {
                0 => packet.bth.opcode = Opcode::Acknowledge,
                1 => packet.deth = None,
                2 => packet.lrh.dlid %= 16,
                _ => {}
            }
            if packet.bth.dest_qp < 2 && packet.bth.opcode == Opcode::UdSend && len != 256 {
                // What an HCA makes of a MAD of another length is its own business.
                packet.payload = bytes(&[0; 256]);
            }
            net.fabric.transmit(node, port, packet, net.now);
            while let Some(output) = net.fabric.poll(net.now) {
                drop(output);
            }
        }
        prop_assert_eq!(configuration(&mut net), before);
    }

    #[test]
    fn any_order_of_commands_leaves_links_whole(
        commands in proptest::collection::vec((COMMAND, 0u64..2_000_000_000), 0..60),
    ) {
        let (mut net, mut sm) = rails();
        for (line, pause) in commands {
            net.now += pause;
            let _ = net.fabric.control(&line, net.now);
            net.run();
            sound(&net);
        }
        for at in ["vhca0/1", "vhca0/2", "vhca1/1", "vhca1/2", "vhca2/1", "sw0/3", "sw0/1", "sw0/2", "sw0/4", "sw1/1", "sw1/2", "sw1/3"] {
            net.control(&format!("join {at}"));
            net.control(&format!("clear {at}"));
        }
        net.control("mad clear");
        // What is still held up on cables arrives before anything new.
        net.now += 20_000_000_000;
        net.run();
        sm.sweep(&mut net);
        prop_assert_eq!(sm.links.len(), 12);
        prop_assert_eq!(net.state("vhca0/2"), PortState::Active);
    }

    #[test]
    fn delays_lose_nothing_double_nothing_and_keep_the_order(
        steps in proptest::collection::vec((0..4usize, 0..4usize, 0u32..2000), 1..80),
    ) {
        let (mut net, _) = rails();
        let (node, port) = net.end("vhca0/1");
        let (slid, dlid) = (net.lid("vhca0/1"), net.lid("vhca1/2"));
        let mut sent = 0u32;
        for (what, which, amount) in steps {
            let at = ["vhca0/1", "sw0/3", "sw1/3", "vhca1/2"][which];
            match what {
                0 => {
                    for _ in 0..amount % 5 {
                        let packet = datagram(slid, dlid, 40, 50, &sent.to_be_bytes());
                        net.fabric.transmit(node, port, packet, net.now);
                        sent += 1;
                    }
                }
                1 => { net.fabric.control(&format!("delay {at} {amount}"), net.now).unwrap(); }
                2 => { net.fabric.control(&format!("clear {at}"), net.now).unwrap(); }
                _ => {
                    net.now += u64::from(amount) * 1000;
                    if which > 0 {
                        net.run();
                    }
                }
            }
        }
        while let Some(due) = net.fabric.next_due() {
            net.now = net.now.max(due);
            net.run();
        }
        let got: Vec<u32> = net
            .arrived
            .iter()
            .filter(|a| a.packet.bth.dest_qp == 40)
            .map(|a| u32::from_be_bytes((*a.packet.payload).try_into().unwrap()))
            .collect();
        prop_assert_eq!(got, (0..sent).collect::<Vec<_>>());
    }
}
