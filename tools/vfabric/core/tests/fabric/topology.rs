// SPDX-License-Identifier: GPL-2.0-only

use proptest::prelude::*;
use vfabric_core::model::fabric::Fabric;
use vfabric_core::model::topology::{Kind, ParseErrorKind, Topology};

#[test]
fn a_text_becomes_nodes_and_links() {
    let t =
        Topology::parse("hca a ports=2 # the host\n\n switch s ports=63;link a/2 s/63;").unwrap();
    let nodes: Vec<_> = t
        .nodes()
        .iter()
        .map(|n| (n.name.as_str(), n.kind, n.ports))
        .collect();
    assert_eq!(nodes, [("a", Kind::Hca, 2), ("s", Kind::Switch, 63)]);
    assert_eq!(t.links().len(), 1);
    assert_eq!((t.links()[0].a, t.links()[0].b), ((0, 2), (1, 63)));
}

#[test]
fn a_wrong_line_is_named() {
    use ParseErrorKind::*;
    for (text, line, what) in [
        ("hca a ports=2\nrouter r ports=2", 2, UnknownWord),
        ("hca a ports=2;switch s", 2, Incomplete),
        ("hca", 1, Incomplete),
        ("hca a ports=2\n\nlink a/1", 3, Incomplete),
        ("hca a ports=2 fast", 1, TooMuch),
        ("hca a/b ports=2", 1, BadName),
        (
            "hca abcdefghijklmnopqrstuvwxyz0123456789 ports=1",
            1,
            BadName,
        ),
        ("hca \u{e4} ports=1", 1, BadName),
        ("hca . ports=1", 1, BadName),
        ("hca a ports=1;switch -s ports=4", 2, BadName),
        ("hca a ports=2;switch a ports=4", 2, DuplicateName),
        ("hca a ports=0", 1, BadPorts),
        ("hca a ports=9", 1, BadPorts),
        ("hca a ports=-1", 1, BadPorts),
        ("hca a 2", 1, BadPorts),
        ("hca a ports=two", 1, BadPorts),
        ("hca a ports=1;switch s ports=64", 2, BadPorts),
        ("hca a ports=1;switch s ports=4;link a s/1", 3, BadEnd),
        ("hca a ports=1;switch s ports=4;link a/x s/1", 3, BadEnd),
        (
            "hca a ports=1;link a/1 s/1;switch s ports=4",
            2,
            UnknownNode,
        ),
        ("hca a ports=1;switch s ports=4;link a/2 s/1", 3, NoSuchPort),
        ("hca a ports=1;switch s ports=4;link a/1 s/0", 3, NoSuchPort),
        ("hca a ports=1;switch s ports=4;link s/1 s/1", 3, SelfLink),
        (
            "hca a ports=2;switch s ports=4;link a/1 s/1\nlink a/2 s/1",
            4,
            PortInUse,
        ),
        ("switch s ports=4", 1, NoHca),
        ("", 1, NoHca),
    ] {
        let e = Topology::parse(text).expect_err(text);
        assert_eq!((e.line, e.what), (line, what), "{text:?}");
        assert!(e.to_string().starts_with(&format!("line {line}: ")), "{e}");
    }
}

#[test]
fn guids_follow_the_order_of_the_text() {
    let t = Topology::parse(Topology::named("rails").unwrap()).unwrap();
    let f = Fabric::new(&t).unwrap();
    let guids: Vec<_> = f
        .hcas()
        .map(|(_, n)| {
            (
                n.name.as_str(),
                n.guid,
                n.ports().iter().map(|p| p.guid()).collect::<Vec<_>>(),
            )
        })
        .collect();
    let base = 0x0002_c903_0000_0000;
    assert_eq!(
        guids,
        [
            ("vhca0", base + 0x100, vec![base + 0x101, base + 0x102]),
            ("vhca1", base + 0x200, vec![base + 0x201, base + 0x202]),
            ("vhca2", base + 0x300, vec![base + 0x301]),
        ]
    );
    let sw0 = f.find("sw0").unwrap();
    assert_eq!(
        (sw0.guid, sw0.port(0).unwrap().guid()),
        (base + 0x400, base + 0x400)
    );
    assert_eq!(sw0.port(1).unwrap().guid(), 0);
}

#[test]
fn there_are_rails_and_spine_and_no_others() {
    for name in ["rails", "spine"] {
        Topology::parse(Topology::named(name).unwrap()).unwrap();
    }
    assert!(Topology::named("ring").is_none());
}

#[test]
fn one_node_too_many_is_named_by_its_line() {
    let lines: Vec<_> = (0..=1024).map(|n| format!("hca h{n} ports=1\n")).collect();
    let text = lines.concat();
    let e = Topology::parse(&text).unwrap_err();
    assert_eq!((e.line, e.what), (1025, ParseErrorKind::TooManyNodes));
    let fits = text.strip_suffix("hca h1024 ports=1\n").unwrap();
    assert_eq!(Topology::parse(fits).unwrap().nodes().len(), 1024);
}

#[test]
fn every_reason_is_a_sentence_of_its_own() {
    use ParseErrorKind::*;
    let all = [
        UnknownWord,
        Incomplete,
        TooMuch,
        BadName,
        DuplicateName,
        BadPorts,
        TooManyNodes,
        BadEnd,
        UnknownNode,
        NoSuchPort,
        PortInUse,
        SelfLink,
        NoHca,
        NoMemory,
    ];
    let words: std::collections::BTreeSet<_> = all.iter().map(|k| k.as_str()).collect();
    assert_eq!(words.len(), all.len());
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "((hca|switch|link|h) ?[a-c]?[/ ]?(ports=)?[0-9]{0,3}[ ;\n#]?[a-c]?/?[0-9]?[;\n]?){0,12}") {
        match Topology::parse(&text) {
            Ok(t) => { Fabric::new(&t).unwrap(); }
            Err(e) => prop_assert!(e.line >= 1 && e.line <= text.split(['\n', ';']).count()),
        }
    }
}
