// SPDX-License-Identifier: GPL-2.0-only

//! Cables that still carry packets, but lose some of them or take their time.

use crate::net::{datagram, Net};
use crate::sm::rails;
use vfabric_core::model::fabric::control::ControlError;
use vfabric_core::model::fabric::counters::Counters;

fn counters(net: &Net, at: &str) -> Counters {
    let (node, port) = net.end(at);
    net.fabric.port(node, port).unwrap().counters
}

fn line(net: &Net, at: &str) -> String {
    let mut text = String::new();
    net.fabric.write_ports(&mut text).unwrap();
    let wanted = format!("{at} ");
    let found = text.lines().find(|l| l.starts_with(&wanted));
    found.expect("a line for the port").to_string()
}

/// Puts numbered packets on the link without letting anything arrive.
fn post(net: &mut Net, from: &str, to: &str, numbers: std::ops::Range<u32>) {
    let (node, port) = net.end(from);
    for n in numbers {
        let packet = datagram(net.lid(from), net.lid(to), 40, 50, &n.to_be_bytes());
        net.fabric.transmit(node, port, packet, net.now);
    }
}

/// Numbers of the packets that have arrived since the last call.
fn arrived(net: &mut Net) -> Vec<u32> {
    net.run();
    std::mem::take(&mut net.arrived)
        .iter()
        .filter(|a| a.packet.bth.dest_qp == 40)
        .map(|a| u32::from_be_bytes((*a.packet.payload).try_into().unwrap()))
        .collect()
}

fn pass(net: &mut Net, from: &str, to: &str, count: u32) -> Vec<u32> {
    post(net, from, to, 0..count);
    arrived(net)
}

#[test]
fn loss_is_as_large_as_asked_for() {
    for (percent, expected) in [
        ("0", 0.0),
        ("0.5", 0.005),
        ("1", 0.01),
        ("10", 0.1),
        ("100", 1.0),
    ] {
        let (mut net, _) = rails();
        net.control(&format!("loss vhca0/1 {percent} out"));
        let mut lost = 0;
        for _ in 0..10 {
            lost += 5000 - pass(&mut net, "vhca0/1", "vhca1/1", 5000).len();
        }
        let share = lost as f64 / 50_000.0;
        // Five standard deviations.
        let spread = 5.0 * (expected * (1.0 - expected) / 50_000.0f64).sqrt();
        assert!(
            (share - expected).abs() <= spread,
            "{percent}%: {lost} lost"
        );
    }
}

#[test]
fn loss_one_way_leaves_the_other_alone() {
    for (way, there, back) in [
        ("out", true, false),
        ("in", false, true),
        ("both", true, true),
        ("", true, true),
    ] {
        let (mut net, _) = rails();
        net.control(&format!("loss vhca0/1 50 {way}"));
        let lost = |net: &mut Net, a, b| pass(net, a, b, 200).len() < 200;
        assert_eq!(lost(&mut net, "vhca0/1", "vhca1/1"), there, "{way}");
        assert_eq!(lost(&mut net, "vhca1/1", "vhca0/1"), back, "{way}");
        assert!(!lost(&mut net, "vhca0/2", "vhca1/2"), "the other rail");
        net.control("clear vhca0/1");
        assert!(!lost(&mut net, "vhca0/1", "vhca1/1"));
        assert!(!lost(&mut net, "vhca1/1", "vhca0/1"));
    }
}

#[test]
fn what_loss_takes_is_counted_where_it_happens() {
    let (mut net, _) = rails();
    net.control("loss vhca0/1 20 out");
    let before = (counters(&net, "vhca0/1"), counters(&net, "sw0/1"));
    let got = pass(&mut net, "vhca0/1", "vhca1/1", 1000).len() as u64;
    let after = (counters(&net, "vhca0/1"), counters(&net, "sw0/1"));
    let lost = 1000 - got;
    assert!(lost > 0 && got > 0);
    // The sender does not know; the far end gets them all and throws the spoilt ones away.
    let sent = after.0.total.xmit_packets - before.0.total.xmit_packets;
    let received = after.1.total.rcv_packets - before.1.total.rcv_packets;
    assert_eq!((sent, received), (1000, 1000));
    assert_eq!(after.1.total.rcv_errors - before.1.total.rcv_errors, lost);
    assert_eq!(after.0.dropped - before.0.dropped, lost);
    assert_eq!(after.1.dropped, before.1.dropped, "counted once");
    assert_eq!(after.0.total.xmit_discards, before.0.total.xmit_discards);

    net.control("clear vhca0/1");
    net.control("loss vhca0/1 20 in");
    let before = counters(&net, "vhca0/1");
    let got = pass(&mut net, "vhca1/1", "vhca0/1", 1000).len() as u64;
    let after = counters(&net, "vhca0/1");
    assert_eq!(after.dropped - before.dropped, 1000 - got);
    let errors = after.total.rcv_errors - before.total.rcv_errors;
    assert_eq!(errors, 1000 - got);
}

#[test]
fn the_same_seed_loses_the_same_packets() {
    let run = |commands: &[&str]| {
        let (mut net, _) = rails();
        for command in commands {
            net.control(command);
        }
        pass(&mut net, "vhca0/1", "vhca1/1", 500)
    };
    let first = run(&["loss vhca0/1 30 out"]);
    assert_eq!(run(&["loss vhca0/1 30 out"]), first);
    assert_eq!(run(&["seed 1", "loss vhca0/1 30 out"]), first);
    assert_ne!(run(&["seed 2", "loss vhca0/1 30 out"]), first);
    assert_eq!(
        run(&["seed 2", "loss vhca0/1 30 out"]),
        run(&["loss vhca0/1 30 out", "seed 2"])
    );
    // What other ports lose, and how much has passed before, changes nothing.
    assert_eq!(run(&["loss sw1/2 30", "loss vhca0/1 30 out"]), first);
    let (mut net, _) = rails();
    net.control("loss vhca0/1 30 out");
    assert_eq!(pass(&mut net, "vhca0/1", "vhca1/1", 500), first);
    assert_ne!(
        pass(&mut net, "vhca0/1", "vhca1/1", 500),
        first,
        "the sequence goes on"
    );
    net.control("seed 1");
    assert_eq!(pass(&mut net, "vhca0/1", "vhca1/1", 500), first);
    // Another port with the same seed has another sequence.
    assert_ne!(run(&["loss sw0/2 30 out"]), first);
}

#[test]
fn a_delayed_packet_arrives_when_it_is_due_and_not_before() {
    let (mut net, _) = rails();
    net.control("delay vhca0/1 250 out");
    let start = net.now;
    post(&mut net, "vhca0/1", "vhca1/1", 0..3);
    assert_eq!(arrived(&mut net), []);
    assert_eq!(net.fabric.next_due(), Some(start + 250_000));
    net.now = start + 249_999;
    assert_eq!(arrived(&mut net), []);
    net.now = start + 250_000;
    assert_eq!(arrived(&mut net), [0, 1, 2]);
    assert_eq!(net.fabric.next_due(), None);
}

#[test]
fn a_delay_one_way_leaves_the_other_alone() {
    for (way, there, back) in [
        ("out", true, false),
        ("in", false, true),
        ("both", true, true),
        ("", true, true),
    ] {
        let (mut net, _) = rails();
        net.control(&format!("delay vhca0/1 1000 {way}"));
        let late = |net: &mut Net, a, b| {
            let at_once = pass(net, a, b, 1) == [0];
            net.now += 1_000_000;
            at_once != (arrived(net) == [0]) && !at_once
        };
        assert_eq!(late(&mut net, "vhca0/1", "vhca1/1"), there, "{way}");
        assert_eq!(late(&mut net, "vhca1/1", "vhca0/1"), back, "{way}");
        assert!(!late(&mut net, "vhca0/2", "vhca1/2"), "the other rail");
        net.control("clear vhca0/1");
        assert!(!late(&mut net, "vhca0/1", "vhca1/1"));
    }
}

#[test]
fn delays_on_the_way_add_up() {
    let (mut net, _) = rails();
    // One cable with a delay at both ends, another one further on.
    net.control("delay vhca0/1 100 out");
    net.control("delay sw0/1 10 in");
    net.control("delay vhca1/2 1 in");
    let start = net.now;
    post(&mut net, "vhca0/1", "vhca1/2", 0..1);
    for (after, due) in [(0, 110_000), (110_000, 111_000)] {
        net.now = start + after;
        assert_eq!(arrived(&mut net), []);
        assert_eq!(net.fabric.next_due(), Some(start + due));
    }
    net.now = start + 111_000;
    assert_eq!(arrived(&mut net), [0]);
}

#[test]
fn packets_keep_their_order_whatever_becomes_of_the_delay() {
    let (mut net, _) = rails();
    // On the cable before there is a delay, but looked at only after it has passed.
    post(&mut net, "vhca0/1", "vhca1/2", 0..2);
    net.fabric
        .control("delay vhca0/1 500 out", net.now)
        .unwrap();
    post(&mut net, "vhca0/1", "vhca1/2", 2..4);
    // Shorter, and none at all: nobody overtakes.
    net.fabric.control("delay vhca0/1 1 out", net.now).unwrap();
    post(&mut net, "vhca0/1", "vhca1/2", 4..6);
    net.fabric.control("clear vhca0/1", net.now).unwrap();
    post(&mut net, "vhca0/1", "vhca1/2", 6..8);
    net.now += 600_000;
    post(&mut net, "vhca0/1", "vhca1/2", 8..10);
    assert_eq!(arrived(&mut net), (0..10).collect::<Vec<_>>());
}

#[test]
fn packets_of_two_senders_keep_their_order_on_a_shared_slow_link() {
    let (mut net, _) = rails();
    net.control("delay sw0/3 700 out");
    for n in 0..50 {
        let from = ["vhca0/1", "vhca1/1"][n as usize % 2];
        post(&mut net, from, "vhca1/2", n..n + 1);
        if n % 7 == 0 {
            net.run();
            net.now += 100_000;
        }
    }
    let mut got = arrived(&mut net);
    while let Some(due) = net.fabric.next_due() {
        net.now = due;
        got.extend(arrived(&mut net));
    }
    assert_eq!(got, (0..50).collect::<Vec<_>>());
}

#[test]
fn a_cut_loses_what_is_held_up_on_the_cable() {
    let (mut net, mut sm) = rails();
    net.control("delay vhca0/1 5000 out");
    post(&mut net, "vhca0/1", "vhca1/1", 0..4);
    let before = counters(&net, "sw0/1").dropped;
    net.control("cut vhca0/1");
    net.control("join vhca0/1");
    net.control("clear vhca0/1");
    sm.sweep(&mut net);
    // The link is whole again before they would have arrived, and does not wait for them.
    assert_eq!(pass(&mut net, "vhca0/1", "vhca1/1", 1), [0]);
    net.now += 10_000_000;
    assert_eq!(arrived(&mut net), []);
    assert_eq!(counters(&net, "sw0/1").dropped - before, 4);
}

#[test]
fn too_many_held_packets_are_lost_and_counted() {
    let (mut net, _) = rails();
    net.control("delay vhca0/1 1000 out");
    let before = counters(&net, "sw0/1").dropped;
    for n in 0..70u32 {
        post(&mut net, "vhca0/1", "vhca1/1", n * 1000..(n + 1) * 1000);
    }
    net.now += 1_000_000;
    let got = arrived(&mut net);
    assert_eq!(got, (0..got.len() as u32).collect::<Vec<_>>());
    let lost = 70_000 - got.len() as u64;
    assert!(lost > 0);
    assert_eq!(counters(&net, "sw0/1").dropped - before, lost);
    assert_eq!(net.fabric.stats().no_room, lost);
}

#[test]
fn subnet_management_suffers_too() {
    let (mut net, sm) = rails();
    let path = sm.path_to("sw1").to_vec();
    let ask = |net: &mut Net| sm.ask(net, &path, crate::net::GET, crate::sm::NODE_INFO, 0, &[]);
    net.control("loss sw1/3 100 in");
    assert!(ask(&mut net).is_none());
    net.control("clear sw1/3");
    assert!(ask(&mut net).is_some());
}

#[test]
fn the_dump_says_what_is_wrong_with_a_cable() {
    let (mut net, _) = rails();
    for (command, expected) in [
        (
            "loss vhca0/1 0.5 in",
            "loss_in=0.5 loss_out=0 delay_in=0 delay_out=0",
        ),
        (
            "loss vhca0/1 12.0305 out",
            "loss_in=0.5 loss_out=12.0305 delay_in=0 delay_out=0",
        ),
        (
            "delay vhca0/1 70",
            "loss_in=0.5 loss_out=12.0305 delay_in=70 delay_out=70",
        ),
        (
            "delay vhca0/1 0 in",
            "loss_in=0.5 loss_out=12.0305 delay_in=0 delay_out=70",
        ),
        (
            "clear vhca0/1",
            "loss_in=0 loss_out=0 delay_in=0 delay_out=0",
        ),
    ] {
        net.control(command);
        let text = line(&net, "vhca0/1");
        assert!(text.contains(expected), "{command}: {text}");
    }
    assert!(line(&net, "sw0/1").contains("loss_in=0 loss_out=0"));
}

#[test]
fn the_log_says_what_was_done() {
    let (mut net, _) = rails();
    for (command, said) in [
        ("cut vhca0/1", "cut vhca0/1"),
        ("join vhca0/1", "join vhca0/1"),
        ("blackhole sw0/1 in", "blackhole sw0/1 in"),
        ("loss sw0/1 0.25", "loss sw0/1 0.25% both"),
        ("delay sw0/1 40 out", "delay sw0/1 40 us out"),
        ("clear sw0/1", "clear sw0/1"),
        ("seed 77", "seed 77"),
        ("grh on", "grh with HopLimit 1"),
        ("grh 64", "grh with HopLimit 64"),
        ("grh off", "grh off"),
        ("mad clear", "the rules for MADs are others now"),
    ] {
        let done = net.fabric.control(command, net.now).expect(command);
        let mut text = String::new();
        net.fabric.write_control(&mut text, done).unwrap();
        assert_eq!(text, said);
    }
}

#[test]
fn a_bad_loss_delay_or_seed_is_refused_and_changes_nothing() {
    use ControlError::*;
    let (mut net, _) = rails();
    net.control("loss vhca0/1 3 in");
    let before = line(&net, "vhca0/1");
    for (command, error) in [
        ("loss", BadPort),
        ("loss vhca0/1", BadPercent),
        ("loss vhca0/1 in", BadPercent),
        ("loss vhca0/1 -1", BadPercent),
        ("loss vhca0/1 +1", BadPercent),
        ("loss vhca0/1 101", BadPercent),
        ("loss vhca0/1 100.0001", BadPercent),
        ("loss vhca0/1 0.00001", BadPercent),
        ("loss vhca0/1 .", BadPercent),
        ("loss vhca0/1 .5", BadPercent),
        ("loss vhca0/1 5.", BadPercent),
        ("loss vhca0/1 99999999999", BadPercent),
        ("loss vhca0/1 5 up", BadDirection),
        ("loss vhca0/1 5 in out", TooMuch),
        ("loss sw1/4 5", NoLink),
        ("delay vhca0/1", BadDelay),
        ("delay vhca0/1 1.5", BadDelay),
        ("delay vhca0/1 10000001", BadDelay),
        ("delay vhca0/1 99999999999", BadDelay),
        ("delay vhca0/1 5 up", BadDirection),
        ("delay vhca0/1 5 in out", TooMuch),
        ("delay nobody/1 5", UnknownNode),
        ("seed", BadSeed),
        ("seed x", BadSeed),
        ("seed 18446744073709551616", BadSeed),
        ("seed 1 2", TooMuch),
        ("grh", BadHopLimit),
        ("grh 0", BadHopLimit),
        ("grh 256", BadHopLimit),
        ("grh maybe", BadHopLimit),
        ("grh on off", TooMuch),
    ] {
        assert_eq!(
            net.fabric.control(command, net.now),
            Err(error),
            "{command}"
        );
    }
    assert_eq!(line(&net, "vhca0/1"), before);
    let command = "loss vhca0/1 100.0000";
    assert!(net.fabric.control(command, net.now).is_ok());
}
