// SPDX-License-Identifier: GPL-2.0-only

//! Which packets a queue pair takes.

use crate::support::*;
use vfabric_core::mem::{KVec, GFP_ATOMIC};
use vfabric_core::model::host::QpEvent;
use vfabric_core::model::packet::{
    Aeth, Bth, Grh, Lrh, NakCode, Opcode, Packet, Position, Reth, Syndrome,
};
use vfabric_core::model::rc::State;

#[test]
fn pkeys_have_to_match_with_one_full_member() {
    for (a, b, good) in [
        (0xffff, 0xffff, true),
        (0xffff, 0x7fff, true),
        (0x7fff, 0xffff, true),
        (0x7fff, 0x7fff, false),
        (0x8001, 0x8002, false),
        (0x8001, 0x0001, true),
        (0x8000, 0x8000, false),
    ] {
        let mut w = World::connected();
        w.nodes[0].pkeys[0] = a;
        w.nodes[1].pkeys[0] = b;
        w.write_nothing(0);
        w.run_for(TIMEOUT_NS / 2);
        assert_eq!(w.nodes[0].sent.len(), usize::from(good), "{a:x} {b:x}");
        assert_eq!(w.nodes[1].bad_pkeys, usize::from(!good), "{a:x} {b:x}");
    }
}

#[test]
fn the_pkey_is_the_one_at_the_index_of_the_path() {
    let mut w = World::connected_with(|_, m| {
        if let Some(p) = m.path.as_mut() {
            p.pkey_index = 1;
        }
    });
    for node in &mut w.nodes {
        node.pkeys.push(0x8123);
    }
    w.write_nothing(0);
    w.run();
    w.assert_all_sent(0);
    assert!(w.log.iter().all(|(_, _, p)| p.bth.pkey == 0x8123));
}

/// Whether node 1 answers a request that it gets changed, or by another port.
fn answers(port: u8, change: impl FnOnce(&mut Packet)) -> bool {
    let mut w = World::connected();
    w.cut.push((0, 1));
    w.write_nothing(0);
    let (_, _, mut packet) = w.log.pop().unwrap();
    change(&mut packet);
    w.deliver(1, port, packet);
    w.sent[1] == 1
}

#[test]
fn packets_from_another_place_are_dropped() {
    let grh = Grh::default();
    assert!(answers(1, |_| {}));
    assert!(!answers(2, |_| {}));
    assert!(!answers(1, |p| p.lrh.slid = lid(0, 2)));
    assert!(!answers(1, |p| p.lrh.dlid = lid(1, 2)));
    assert!(!answers(1, |p| p.grh = Some(grh)));
}

#[test]
fn a_global_route_has_to_match() {
    let gid = |n: u8| [n; 16];
    let mut w = World::connected_with(|node, m| {
        if let Some(p) = m.path.as_mut() {
            p.grh = Some(Grh {
                sgid: gid(node as u8),
                dgid: gid(1 - node as u8),
                hop_limit: 64,
                ..Grh::default()
            });
        }
    });
    w.write_nothing(0);
    w.run();
    w.assert_all_sent(0);
    let (_, _, first) = &w.log[0];
    assert_eq!(first.grh.unwrap().hop_limit, 64);
    for change in [Some(gid(7)), None] {
        let mut packet = copy(&w.log[0].2);
        packet.grh = change.map(|sgid| Grh {
            sgid,
            ..packet.grh.unwrap()
        });
        let sent = w.sent[1];
        w.deliver(1, 1, packet);
        assert_eq!(w.sent[1], sent);
    }
}

#[test]
fn path_bits_choose_one_of_a_ports_lids() {
    let mut w = World::connected_with(|node, m| {
        if let Some(p) = m.path.as_mut() {
            p.path_bits = 2;
            p.dlid = 0x100 * (2 - node as u16) + 2;
        }
    });
    for (i, node) in w.nodes.iter_mut().enumerate() {
        node.ports.insert(1, (0x100 * (1 + i as u16), 2));
    }
    w.write_nothing(0);
    let (_, _, packet) = w.log.pop().unwrap();
    assert_eq!((packet.lrh.slid, packet.lrh.dlid), (0x102, 0x202));
    let mut other = copy(&packet);
    other.lrh.dlid = 0x201;
    w.deliver(1, 1, other);
    assert_eq!(w.sent[1], 0);
    w.deliver(1, 1, packet);
    assert_eq!(w.sent[1], 1);
}

fn request(opcode: Opcode, psn: u32, len: usize) -> Packet {
    Packet {
        lrh: Lrh {
            dlid: lid(1, 1),
            slid: lid(0, 1),
            ..Lrh::default()
        },
        grh: None,
        bth: Bth {
            opcode,
            solicited: false,
            mig_req: true,
            pkey: 0xffff,
            dest_qp: 0x41,
            ack_req: true,
            psn: psn & 0xff_ffff,
        },
        deth: None,
        reth: None,
        aeth: None,
        imm: None,
        invalidate: None,
        payload: KVec::from_elem(1, len, GFP_ATOMIC).unwrap(),
    }
}

#[test]
fn packets_that_do_not_make_a_message_are_invalid_requests() {
    use Position::*;
    let reth = |len| {
        Some(Reth {
            va: 0x8000,
            rkey: 9,
            len,
        })
    };
    let write = |at, len, total| {
        let mut p = request(Opcode::Write(at), 0, len);
        p.reth = reth(total);
        p
    };
    let send = |at, len| request(Opcode::Send(at), 0, len);
    let read = || request(Opcode::ReadRequest, 0, 0);
    for (name, packets) in [
        ("middle of nothing", vec![send(Middle, 256)]),
        ("end of nothing", vec![send(Last, 5)]),
        (
            "first in a message",
            vec![send(First, 256), send(First, 256)],
        ),
        ("only in a message", vec![send(First, 256), send(Only, 5)]),
        ("write in a send", vec![send(First, 256), write(Last, 5, 0)]),
        (
            "send in a write",
            vec![write(First, 256, 300), send(Last, 5)],
        ),
        ("read in a send", vec![send(First, 256), read()]),
        ("short first", vec![send(First, 255)]),
        ("short middle", vec![send(First, 256), send(Middle, 1)]),
        ("empty last", vec![send(First, 256), send(Last, 0)]),
        ("too much", vec![send(Only, 257)]),
        (
            "write without header",
            vec![request(Opcode::Write(Only), 0, 5)],
        ),
        ("read without header", vec![read()]),
        ("write too short", vec![write(Only, 5, 6)]),
        ("write too long", vec![write(Only, 6, 5)]),
        ("first is all", vec![write(First, 256, 256)]),
        ("absurd length", vec![write(First, 256, u32::MAX)]),
    ] {
        let mut w = World::connected();
        w.nodes[1].post_recv(1000);
        let r = Region {
            va: 0x8000,
            data: vec![0; 1000],
            read: true,
            write: true,
        };
        w.nodes[1].regions.insert(9, r);
        for (i, mut p) in packets.into_iter().enumerate() {
            p.bth.psn = (start_psn(0) + i as u32) & 0xff_ffff;
            assert_eq!(w.states()[1], State::Rts, "{name}");
            w.deliver(1, 1, p);
        }
        assert_eq!(w.states()[1], State::Err, "{name}");
        assert_eq!(w.nodes[1].events, [QpEvent::ReqErr], "{name}");
        let (_, _, last) = w.log.last().unwrap();
        assert_eq!(
            last.aeth.unwrap().syndrome,
            Syndrome::Nak(NakCode::InvalidRequest),
            "{name}"
        );
    }
}

#[test]
fn datagrams_and_answers_to_nothing_are_ignored() {
    let mut w = World::connected();
    for opcode in [
        Opcode::UdSend,
        Opcode::Acknowledge,
        Opcode::ReadResponse(Position::Only),
    ] {
        for psn in [0, start_psn(0), start_psn(1), start_psn(1) + 1] {
            let mut p = request(opcode, psn, 10);
            w.deliver(1, 1, copy(&p));
            p.aeth = Some(Aeth {
                syndrome: Syndrome::Nak(NakCode::RemoteAccess),
                msn: 0,
            });
            w.deliver(1, 1, p);
        }
    }
    assert_eq!(w.sent, [0, 0]);
    assert_eq!(w.states(), [State::Rts, State::Rts]);
}
