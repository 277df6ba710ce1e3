// SPDX-License-Identifier: GPL-2.0-only

//! What a subnet manager sees is what the text says.

use crate::net::Net;
use crate::sm::{rails, swept, Sm};
use vfabric_core::model::fabric::{PortEvent, PortState};
use vfabric_core::model::topology::Topology;

/// Links as the SM has found them and as the text has them, in the same form.
fn compare(name: &str, sm: &Sm) {
    let t = Topology::parse(Topology::named(name).unwrap()).unwrap();
    let end = |(n, p): (usize, u8)| format!("{}/{p}", t.nodes()[n].name);
    let mut expected: Vec<_> = t
        .links()
        .iter()
        .flat_map(|l| [(end(l.a), end(l.b)), (end(l.b), end(l.a))])
        .collect();
    let seen = |(g, p): &(u64, u8)| format!("{}/{p}", sm.nodes[g].name);
    let mut found: Vec<_> = sm.links.iter().map(|(a, b)| (seen(a), seen(b))).collect();
    // Behind an HCA that is not its own, the SM sees the ports that are reached, all of them here.
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    assert_eq!(sm.nodes.len(), t.nodes().len());
}

#[test]
fn sweep_finds_rails_and_brings_it_up() {
    let mut net = Net::named("rails");
    assert_eq!(net.state("vhca0/1"), PortState::Init);
    let mut sm = Sm::new("vhca2/1");
    sm.sweep(&mut net);
    compare("rails", &sm);
    let mut text = String::new();
    net.fabric.write_ports(&mut text).unwrap();
    for line in text.lines().filter(|l| !l.contains("peer=-")) {
        assert!(line.contains("state=ACTIVE phys=LinkUp"), "{line}");
    }
    let active = net
        .events
        .iter()
        .filter(|e| e.2 == PortEvent::PortActive)
        .count();
    assert_eq!(active, 5, "each HCA port says so once");
    assert!(net
        .events
        .contains(&("vhca1".into(), 2, PortEvent::LidChange)));
    assert!(net
        .events
        .contains(&("vhca1".into(), 2, PortEvent::SmChange)));
    assert_eq!(net.fabric.stats(), Default::default());
}

#[test]
fn sweep_finds_spine() {
    let (_, sm) = swept("spine", "vhca2/1");
    compare("spine", &sm);
}

#[test]
fn a_second_sweep_changes_nothing() {
    let (mut net, mut sm) = rails();
    let lids = [net.lid("vhca0/1"), net.lid("vhca1/2"), net.lid("sw1/0")];
    sm.sweep(&mut net);
    assert_eq!(net.events, []);
    assert_eq!(
        [net.lid("vhca0/1"), net.lid("vhca1/2"), net.lid("sw1/0")],
        lids
    );
}

#[test]
fn the_dump_has_one_line_a_port() {
    let (net, _) = rails();
    let mut text = String::new();
    net.fabric.write_ports(&mut text).unwrap();
    assert_eq!(text.lines().count(), 5 + 2 * 5);
    let line = text.lines().next().unwrap();
    let head = format!(
        "vhca0/1 state=ACTIVE phys=LinkUp lid={} peer=sw0/1 cut=0 blackhole=none loss_in=0 loss_out=0 delay_in=0 delay_out=0 tx_pkts=",
        net.lid("vhca0/1")
    );
    assert!(line.starts_with(&head), "{line}");
    assert!(line.ends_with(" dropped=0"), "{line}");
}
