// SPDX-License-Identifier: GPL-2.0-only

//! Random requests, and what has to come of them.

use crate::support::*;
use proptest::prelude::*;
use vfabric_core::model::host::{SendOp, SendWqe, Status};

/// Kind and length of a request, fence, and nanoseconds until the next.
pub(crate) type Request = (u8, usize, bool, u64);

pub(crate) fn requests() -> impl Strategy<Value = Vec<Request>> {
    let len = prop_oneof![Just(0usize), 1usize..300, 255usize..258, 300usize..6000];
    prop::collection::vec(
        (0u8..7, len, prop::bool::weighted(0.1), 0u64..30_000),
        0..30,
    )
}

/// What both sides were asked to do.
#[derive(Default)]
pub(crate) struct Work {
    /// For each node, what the peer has to receive, in order.
    messages: [Vec<(u32, Vec<u8>)>; 2],
    /// Packets of WRITEs that carry data.
    write_packets: [usize; 2],
}

impl Work {
    /// Posts one request at `node`; each has memory of its own at the peer.
    pub(crate) fn post(&mut self, w: &mut World, node: usize, request: &Request) {
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
    pub(crate) fn check(&self, w: &World) {
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
