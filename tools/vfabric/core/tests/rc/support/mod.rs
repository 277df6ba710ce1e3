// SPDX-License-Identifier: GPL-2.0-only

//! Two queue pairs, each on a two-port HCA, and a network between them that does what it is told.
//!
//! Node 0 has the LIDs 1 (port 1) and 2 (port 2), node 1 the LIDs 11 and 12. Every port reaches
//! every other; packets between the same two ports stay in order.

pub mod node;
pub mod world;

pub use node::{Node, Region};
pub use world::{Fate, World};

use vfabric_core::mem::{KVec, GFP_ATOMIC};
use vfabric_core::model::host::{SendOp, SendWqe};
use vfabric_core::model::packet::Packet;
use vfabric_core::model::rc::{MigState, Modify, Path, State};

pub const MS: u64 = 1_000_000;
/// ACK timeout code of the tests: 4.096 us x 2^10 is about 4.2 ms.
pub const TIMEOUT: u8 = 10;
pub const TIMEOUT_NS: u64 = 4096 << TIMEOUT;
/// Time a packet takes.
pub const LATENCY: u64 = 2_000;

pub fn lid(node: usize, port: u8) -> u16 {
    (node * 10) as u16 + u16::from(port)
}

/// The path of `node` from its `port` to the peer's `to`.
pub fn path(node: usize, port: u8, to: u8) -> Path {
    Path {
        port,
        dlid: lid(1 - node, to),
        path_bits: 0,
        sl: 0,
        grh: None,
        pkey_index: 0,
        timeout: TIMEOUT,
    }
}

pub fn to_init() -> Modify {
    Modify {
        state: Some(State::Init),
        ..Modify::default()
    }
}

pub fn to_rtr(node: usize) -> Modify {
    Modify {
        state: Some(State::Rtr),
        path: Some(path(node, 1, 1)),
        dest_qpn: Some(0x40 + 1 - node as u32),
        rq_psn: Some(start_psn(1 - node)),
        mtu: Some(256),
        min_rnr_timer: Some(14),
        max_dest_rd_atomic: Some(4),
        ..Modify::default()
    }
}

pub fn to_rts(node: usize) -> Modify {
    Modify {
        state: Some(State::Rts),
        sq_psn: Some(start_psn(node)),
        timeout: Some(TIMEOUT),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(4),
        ..Modify::default()
    }
}

pub fn to_state(state: State) -> Modify {
    Modify {
        state: Some(state),
        ..Modify::default()
    }
}

/// Port 2 to port 2 as alternate path, and REARM.
pub fn rearm(node: usize) -> Modify {
    load(path(node, 2, 2))
}

pub fn load(alternate: Path) -> Modify {
    Modify {
        alt_path: Some(alternate),
        mig: Some(MigState::Rearm),
        ..Modify::default()
    }
}

pub fn migrate() -> Modify {
    Modify {
        mig: Some(MigState::Migrated),
        ..Modify::default()
    }
}

/// The first PSN that a node sends: close to the wrap.
pub fn start_psn(node: usize) -> u32 {
    [0xff_fffa, 0x00_1234][node]
}

pub fn wqe(op: SendOp, len: usize) -> SendWqe {
    SendWqe {
        op,
        len: len as u32,
        solicited: false,
        fence: false,
    }
}

/// Data that tells where it belongs.
pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| {
            let x = seed
                .wrapping_mul(0x9e37_79b9)
                .wrapping_add(i)
                .wrapping_mul(0x85eb_ca6b);
            (x >> 24) as u8
        })
        .collect()
}

/// Numbers that look random (xorshift).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed | 1)
    }

    /// From 0 to `n` - 1.
    pub fn roll(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

pub fn copy(p: &Packet) -> Packet {
    let mut payload = KVec::new();
    payload.extend_from_slice(&p.payload, GFP_ATOMIC).unwrap();
    Packet { payload, ..*p }
}
