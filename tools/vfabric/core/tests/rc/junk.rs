// SPDX-License-Identifier: GPL-2.0-only

//! Packets that make no sense.

use crate::support::*;
use proptest::prelude::*;
use vfabric_core::mem::{KVec, GFP_ATOMIC};
use vfabric_core::model::packet::{
    Aeth, Bth, Lrh, NakCode, Opcode, Packet, Position, Reth, Syndrome,
};

fn position() -> impl Strategy<Value = Position> {
    prop_oneof![
        Just(Position::First),
        Just(Position::Middle),
        Just(Position::Last),
        Just(Position::Only),
    ]
}

/// A packet for node 0 that mostly passes the checks of path and P_Key, and makes no sense.
pub(crate) fn junk() -> impl Strategy<Value = (u8, Packet)> {
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
