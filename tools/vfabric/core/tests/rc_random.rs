// SPDX-License-Identifier: GPL-2.0

//! Whatever the network and the ULPs do: each request ends once, data arrive in order, intact and
//! not twice, and both ends stay on the same path.

mod support;

use proptest::prelude::*;
use support::*;
use vfabric_core::mem::{KVec, GFP_ATOMIC};
use vfabric_core::model::host::{SendOp, SendWqe, Status};
use vfabric_core::model::packet::{
    Aeth, Bth, Lrh, NakCode, Opcode, Packet, Position, Reth, Syndrome,
};
use vfabric_core::model::rc::{MigState, Quirks, State};

/// Kind and length of a request, fence, and nanoseconds until the next.
type Request = (u8, usize, bool, u64);

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let len = prop_oneof![Just(0usize), 1usize..300, 255usize..258, 300usize..6000];
    prop::collection::vec(
        (0u8..7, len, prop::bool::weighted(0.1), 0u64..30_000),
        0..30,
    )
}

fn faults(
    seed: u64,
    loss: [u64; 2],
    twice: u64,
    late: u64,
) -> impl FnMut(&world::Flight<'_>) -> Fate {
    let mut dice = Dice::new(seed);
    // An end to it, so that retries do not run out for ever.
    let mut left = 400;
    move |f| {
        if left == 0 {
            return Fate::Deliver;
        }
        left -= 1;
        match dice.roll(1000) {
            x if x < loss[f.from] => Fate::Drop,
            x if x < loss[f.from] + twice => Fate::Twice,
            x if x < loss[f.from] + twice + late => Fate::Late(dice.roll(3 * TIMEOUT_NS)),
            _ => Fate::Deliver,
        }
    }
}

/// What both sides were asked to do.
#[derive(Default)]
struct Work {
    /// For each node, what the peer has to receive, in order.
    messages: [Vec<(u32, Vec<u8>)>; 2],
    /// Packets of WRITEs that carry data.
    write_packets: [usize; 2],
}

impl Work {
    /// Posts one request at `node`; each has memory of its own at the peer.
    fn post(&mut self, w: &mut World, node: usize, request: &Request) {
        let (kind, len, fence, _) = *request;
        let index = w.nodes[node].sq.len() as u32;
        let seed = index + 1000 * node as u32;
        let data = pattern(seed, len);
        let (va, rkey) = (0x1_0000 + u64::from(index), 100 + index);
        let mut region = |data| {
            w.nodes[1 - node].regions.insert(
                rkey,
                Region {
                    va,
                    data,
                    read: true,
                    write: true,
                },
            );
        };
        let op = match kind {
            0 | 1 => SendOp::Send,
            2 => SendOp::SendImm(seed),
            3 => SendOp::Write { va, rkey },
            4 => SendOp::WriteImm {
                va,
                rkey,
                imm: seed,
            },
            5 => SendOp::Read { va, rkey },
            _ => SendOp::Local,
        };
        let mut mine = data.clone();
        match op {
            SendOp::Write { .. } | SendOp::WriteImm { .. } => {
                region(vec![0; len]);
                self.write_packets[node] += len.div_ceil(256);
            }
            SendOp::Read { .. } => {
                region(data.clone());
                mine = vec![0; len];
            }
            SendOp::Local => mine.clear(),
            _ => {}
        }
        match op {
            SendOp::Send | SendOp::SendImm(_) => self.messages[node].push((index, data)),
            SendOp::WriteImm { .. } => self.messages[node].push((index, vec![0; len])),
            _ => {}
        }
        let r = SendWqe {
            fence,
            ..wqe(op, mine.len())
        };
        w.post(node, r, mine);
    }

    /// What has ended well has had its effect, once, and in order.
    fn check(&self, w: &World) {
        for node in 0..2 {
            let (n, peer) = (&w.nodes[node], &w.nodes[1 - node]);
            let good = |i: u32| {
                n.sent
                    .get(i as usize)
                    .is_some_and(|s| s.1 == Status::Success)
            };
            let got: Vec<_> = peer
                .received
                .iter()
                .filter(|r| r.0.status == Status::Success)
                .map(|r| r.1[..r.0.len as usize].to_vec())
                .collect();
            let all = &self.messages[node];
            assert!(got.len() <= all.len(), "nothing twice");
            for (got, (_, want)) in got.iter().zip(all) {
                assert!(got == want, "in order and intact");
            }
            let ended = all.iter().filter(|(i, _)| good(*i)).count();
            assert!(ended <= got.len(), "what has ended has arrived");
            assert!(
                peer.remote_writes <= self.write_packets[node],
                "nothing twice"
            );
            for (i, p) in n.sq.iter().enumerate().filter(|(i, _)| good(*i as u32)) {
                let there = |rkey| peer.regions.get(&rkey).map_or(&[][..], |r| &r.data);
                match p.wqe.op {
                    SendOp::Write { rkey, .. } | SendOp::WriteImm { rkey, .. } => {
                        assert!(there(rkey) == p.data);
                    }
                    SendOp::Read { rkey, .. } => assert!(there(rkey) == p.data),
                    SendOp::Local => assert!(n.local_ops.contains(&(i as u32))),
                    _ => {}
                }
            }
            let mut ops = n.local_ops.clone();
            ops.dedup();
            assert_eq!(ops, n.local_ops, "no local operation twice");
        }
    }
}

fn post_receives(w: &mut World, n: usize) {
    for node in 0..2 {
        for _ in 0..n {
            w.nodes[node].post_recv(6000);
        }
    }
}

/// Both on the same pair of ports.
fn agree(w: &World) -> bool {
    let path = |n: usize| w.qps[n].path_in_use().unwrap();
    path(0).dlid == lid(1, path(1).port) && path(1).dlid == lid(0, path(0).port)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_request_completes_once_under_loss(
        work in [requests(), requests()],
        loss in [0u64..150, 0u64..150],
        twice in 0u64..100,
        late in 0u64..20,
        seed: u64,
        ack_delay in prop_oneof![Just(0u32), 1u32..10_000_000],
        rnr in any::<bool>(),
    ) {
        let mut w = World::connected();
        w.fault = Box::new(faults(seed, loss, twice, late));
        for qp in &mut w.qps {
            qp.set_quirks(Quirks { ack_delay, ..Quirks::NONE });
        }
        post_receives(&mut w, if rnr { 2 } else { 60 });
        let mut done = Work::default();
        for i in 0..30 {
            for (node, work) in work.iter().enumerate() {
                if let Some(r) = work.get(i) {
                    done.post(&mut w, node, r);
                    w.run_for(r.3);
                }
            }
        }
        w.run_for(5 * MS);
        post_receives(&mut w, 60);
        w.run();
        done.check(&w);
        for node in 0..2 {
            let exceeded = w.nodes[node].statuses().contains(&Status::RetryExceeded);
            prop_assert_eq!(w.nodes[node].sent.len(), w.nodes[node].sq.len());
            if !exceeded && w.states() == [State::Rts, State::Rts] {
                w.assert_all_sent(node);
            }
        }
        // Eight losses of one packet in a row hardly ever happen.
        if loss[0].max(loss[1]) < 80 && late == 0 {
            prop_assert_eq!(w.states(), [State::Rts, State::Rts]);
        }
    }

    #[test]
    fn a_cut_is_survived_whenever_it_comes(
        work in [requests(), requests()],
        loss in [0u64..20, 0u64..20],
        seed: u64,
        at in 0u64..600_000,
        cut in (0usize..2, 1u8..2),
        commanded in prop::option::of((0usize..2, 0u64..40 * MS)),
        retransmit in any::<bool>(),
    ) {
        let mut w = World::armed();
        w.fault = Box::new(faults(seed, loss, 10, 0));
        for qp in &mut w.qps {
            qp.set_quirks(Quirks { retransmit_on_migration: retransmit, ..Quirks::NONE });
        }
        post_receives(&mut w, 60);
        let mut done = Work::default();
        let start = w.now;
        let mut at = Some(start + at);
        let mut command = commanded.map(|(node, after)| (node, at.unwrap() + after));
        for i in 0..30 {
            for (node, work) in work.iter().enumerate() {
                if at.is_some_and(|t| t <= w.now) {
                    w.cut.push(cut);
                    at = None;
                }
                if let Some(r) = work.get(i) {
                    done.post(&mut w, node, r);
                    w.run_for(r.3);
                }
            }
        }
        if let Some(t) = at {
            w.run_for(t - w.now);
            w.cut.push(cut);
        }
        if let Some((node, t)) = command.take() {
            w.run_for(t.saturating_sub(w.now));
            // Refused where it has migrated already.
            let armed = w.mig()[node] == MigState::Armed;
            prop_assert_eq!(w.modify(node, &migrate()).is_ok(), armed);
        }
        for node in 0..2 {
            w.write_nothing(node);
        }
        w.run();
        done.check(&w);
        for node in 0..2 {
            w.assert_all_sent(node);
        }
        prop_assert_eq!(w.mig(), [MigState::Migrated, MigState::Migrated]);
        prop_assert!(agree(&w));
        for node in 0..2 {
            prop_assert_eq!(w.nodes[node].migrations.len(), 1);
        }
    }

    #[test]
    fn whatever_happens_to_the_paths_nothing_is_doubled_or_forgotten(
        work in [requests(), requests()],
        actions in prop::collection::vec((0u8..8, 0usize..2, 1u8..3, 0u64..10 * MS), 0..30),
        loss in [0u64..100, 0u64..100],
        seed: u64,
        retransmit in any::<bool>(),
    ) {
        let mut w = World::connected();
        w.fault = Box::new(faults(seed, loss, 20, 5));
        for qp in &mut w.qps {
            qp.set_quirks(Quirks { retransmit_on_migration: retransmit, ..Quirks::NONE });
        }
        post_receives(&mut w, 60);
        let mut done = Work::default();
        for i in 0..30 {
            if let Some(&(what, node, port, wait)) = actions.get(i) {
                match what {
                    0 => w.cut.push((node, port)),
                    1 | 2 => w.cut.clear(),
                    3 => {
                        let before = w.qps[node].query();
                        let r = w.modify(node, &migrate());
                        prop_assert_eq!(r.is_ok(), before.mig == MigState::Armed && before.state == State::Rts);
                    }
                    4 => {
                        let _ = w.modify(node, &load(path(node, port, port)));
                    }
                    _ => {
                        for n in 0..2 {
                            let other = 3 - w.qps[n].path_in_use().unwrap().port;
                            let _ = w.modify(n, &load(path(n, other, other)));
                        }
                    }
                }
                w.run_for(wait);
            }
            for (node, work) in work.iter().enumerate() {
                if let Some(r) = work.get(i) {
                    done.post(&mut w, node, r);
                    w.run_for(r.3);
                }
            }
        }
        w.run();
        done.check(&w);
        // Each has ended; in ERR for certain.
        for node in 0..2 {
            prop_assert_eq!(w.nodes[node].sent.len(), w.nodes[node].sq.len());
            if w.states()[node] == State::Err {
                prop_assert!(w.nodes[node].rq.is_empty());
            } else {
                w.assert_all_sent(node);
            }
        }
    }

    #[test]
    fn no_packet_makes_it_panic(
        work in requests(),
        junk in prop::collection::vec(junk(), 1..60),
        armed in any::<bool>(),
    ) {
        let mut w = if armed { World::armed() } else { World::connected() };
        post_receives(&mut w, 90);
        let mut done = Work::default();
        for (i, (port, packet)) in junk.iter().enumerate() {
            if let Some(r) = work.get(i) {
                done.post(&mut w, 0, r);
            }
            w.deliver(0, *port, copy(packet));
        }
        w.run();
        let _ = w.modify(0, &to_state(State::Err));
        prop_assert_eq!(w.nodes[0].sent.len(), w.nodes[0].sq.len());
    }
}

fn position() -> impl Strategy<Value = Position> {
    prop_oneof![
        Just(Position::First),
        Just(Position::Middle),
        Just(Position::Last),
        Just(Position::Only),
    ]
}

/// A packet for node 0 that mostly passes the checks of path and P_Key, and makes no sense.
fn junk() -> impl Strategy<Value = (u8, Packet)> {
    let opcode = prop_oneof![
        position().prop_map(Opcode::Send),
        position().prop_map(Opcode::Write),
        Just(Opcode::ReadRequest),
        position().prop_map(Opcode::ReadResponse),
        Just(Opcode::Acknowledge),
        Just(Opcode::UdSend),
    ];
    let syndrome = prop_oneof![
        3 => Just(Syndrome::Ack),
        3 => any::<u8>().prop_map(Syndrome::RnrNak),
        3 => Just(Syndrome::Nak(NakCode::PsnSequence)),
        1 => Just(Syndrome::Nak(NakCode::InvalidRequest)),
        1 => Just(Syndrome::Nak(NakCode::RemoteAccess)),
        1 => Just(Syndrome::Nak(NakCode::RemoteOperational)),
    ];
    let psn = prop_oneof![
        4 => (0u32..80).prop_map(|n| start_psn(1) + n),
        4 => (0u32..80).prop_map(|n| (start_psn(0) + n) & 0xff_ffff),
        1 => any::<u32>(),
    ];
    let len = prop_oneof![Just(0usize), Just(256), 0usize..300];
    let reth = (
        any::<u64>(),
        99u32..103,
        prop_oneof![0u32..600, any::<u32>()],
    );
    (
        opcode,
        prop::option::weighted(0.9, syndrome),
        psn,
        len,
        prop::option::weighted(0.8, reth),
        (any::<bool>(), any::<bool>(), prop::bool::weighted(0.1)),
        prop::option::of(any::<u32>()),
        prop::option::weighted(0.1, any::<u32>()),
    )
        .prop_map(
            |(opcode, syndrome, psn, len, reth, flags, imm, invalidate)| {
                let (mig_req, ack_req, second) = flags;
                let port = if second { 2 } else { 1 };
                let packet = Packet {
                    lrh: Lrh {
                        slid: lid(1, port),
                        dlid: lid(0, port),
                        ..Lrh::default()
                    },
                    grh: None,
                    bth: Bth {
                        opcode,
                        solicited: false,
                        mig_req,
                        pkey: 0xffff,
                        dest_qp: 0x40,
                        ack_req,
                        psn,
                    },
                    deth: None,
                    reth: reth.map(|(va, rkey, len)| Reth { va, rkey, len }),
                    aeth: syndrome.map(|syndrome| Aeth { syndrome, msn: 0 }),
                    imm,
                    invalidate,
                    payload: KVec::from_elem(7, len, GFP_ATOMIC).unwrap(),
                };
                (port, packet)
            },
        )
}
