// SPDX-License-Identifier: GPL-2.0-only

//! How the SM learns of a change.

use crate::net::{Net, GET, SET};
use crate::sm::{rails, Sm, SWITCH_INFO};

const MS: u64 = 1_000_000;

/// LIDs of the switches whose traps have arrived, oldest first.
fn traps(net: &Net) -> Vec<u16> {
    net.arrived
        .iter()
        .filter(|a| a.packet.payload[3] == 5)
        .map(|a| {
            let m = &a.packet.payload;
            assert_eq!((m[1], m[16], m[17]), (1, 0, 2), "a Notice, LID-routed");
            assert_eq!(
                m[64..70],
                [0x81, 0, 0, 2, 0, 128],
                "generic, urgent, of a switch, 128"
            );
            assert_eq!(m[70..72], m[74..76], "issuer and the LID meant");
            assert_eq!(a.packet.lrh.slid, u16::from_be_bytes([m[70], m[71]]));
            a.packet.lrh.slid
        })
        .collect()
}

fn port_state_change(net: &mut Net, sm: &Sm, name: &str) -> bool {
    let path = sm.path_to(name).to_vec();
    let info = sm
        .ask(net, &path, GET, SWITCH_INFO, 0, &[])
        .expect("an answer");
    info[64 + 11] & 4 != 0
}

#[test]
fn a_cut_at_an_hca_is_told_by_its_switch() {
    let (mut net, sm) = rails();
    assert!(!port_state_change(&mut net, &sm, "sw0"));
    net.control("cut vhca0/1");
    assert_eq!(traps(&net), [net.lid("sw0/0")]);
    assert!(port_state_change(&mut net, &sm, "sw0"));
    assert!(!port_state_change(&mut net, &sm, "sw1"));
}

#[test]
fn port_state_change_is_cleared_by_writing_it() {
    let (mut net, sm) = rails();
    net.control("cut vhca0/1");
    let path = sm.path_to("sw0").to_vec();
    let mut info = sm.ask(&mut net, &path, GET, SWITCH_INFO, 0, &[]).unwrap()[64..128].to_vec();
    info[11] &= !4;
    sm.ask(&mut net, &path, SET, SWITCH_INFO, 0, &info).unwrap();
    assert!(port_state_change(&mut net, &sm, "sw0"));
    info[11] |= 4;
    sm.ask(&mut net, &path, SET, SWITCH_INFO, 0, &info).unwrap();
    assert!(!port_state_change(&mut net, &sm, "sw0"));
}

#[test]
fn a_switch_without_a_way_to_the_sm_is_not_heard() {
    let (mut net, _) = rails();
    net.control("cut sw0/3");
    assert_eq!(traps(&net), [net.lid("sw0/0")]);
}

#[test]
fn a_trap_is_repeated_until_it_is_repressed() {
    let (mut net, sm) = rails();
    net.control("cut vhca0/1");
    assert_eq!(traps(&net).len(), 1);
    let due = net.fabric.next_due().expect("a repetition");
    assert!(due > net.now);
    net.now = due - 1;
    net.run();
    assert_eq!(traps(&net).len(), 1, "not before its time");
    net.now = due;
    net.run();
    assert_eq!(traps(&net).len(), 2);
    let first = sm.repress(&mut net).unwrap();
    let second = net
        .arrived
        .iter()
        .find(|a| a.packet.payload[3] == 5)
        .unwrap();
    assert_eq!(
        first[8..16],
        second.packet.payload[8..16],
        "the same transaction"
    );
    assert_eq!(net.fabric.next_due(), None);
}

#[test]
fn a_repress_of_something_else_does_not_silence_it() {
    let (mut net, sm) = rails();
    net.control("cut vhca0/1");
    net.arrived[0].packet.payload[15] ^= 1;
    sm.repress(&mut net).unwrap();
    assert!(net.fabric.next_due().is_some());
}

#[test]
fn a_trap_that_nobody_hears_is_given_up() {
    let (mut net, _) = rails();
    net.control("cut vhca2/1");
    let mut times = 0;
    while let Some(due) = net.fabric.next_due() {
        net.now = due.max(net.now);
        net.run();
        times += 1;
        assert!(times < 100);
    }
    assert_eq!(traps(&net).len(), 0);
    assert!(times > 3);
}

#[test]
fn two_changes_are_two_traps_at_the_rate_the_sm_has_set() {
    let (mut net, mut sm) = rails();
    sm.subnet_timeout = 16;
    sm.sweep(&mut net);
    net.control("cut vhca0/1");
    sm.repress(&mut net).unwrap();
    net.now += 10 * MS;
    net.control("join vhca0/1");
    assert_eq!(traps(&net).len(), 0, "4.096 us x 2^16 have not passed");
    let due = net.fabric.next_due().unwrap();
    assert_eq!(due, net.now - 10 * MS + (4096 << 16));
    net.now = due;
    net.run();
    let trap = sm.repress(&mut net).expect("the second");
    assert_eq!(trap[64..70], [0x81, 0, 0, 2, 0, 128]);
    assert_eq!(net.fabric.next_due(), None);
}

#[test]
fn before_the_first_sweep_nobody_is_told() {
    let mut net = Net::named("rails");
    net.control("cut vhca0/1");
    assert_eq!(net.fabric.next_due(), None);
    net.control("join vhca0/1");
    let mut sm = Sm::new("vhca2/1");
    sm.sweep(&mut net);
    assert_eq!(traps(&net), [0; 0]);
}
