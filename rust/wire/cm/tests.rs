// SPDX-License-Identifier: GPL-2.0-only

//! The bytes expected here are put together by hand, from the tables of IBA chapter 12, byte by byte.

use super::super::Gid;
use super::lap::{Apr, Kind, Lap, Mra, Mraed, Status, INFO_LEN};
use super::path::CmPath;
use super::req::{Rep, Req, TRANSPORT_RC};
use super::*;
use proptest::prelude::*;

/// A MAD of the CM: header with transaction id 0x0102030405060708, then `body`.
fn mad(attribute: u8, body: &[(usize, &[u8])]) -> [u8; MAD_LEN] {
    let mut mad = [0u8; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    mad[17] = attribute;
    for (offset, bytes) in body {
        mad[24 + offset..24 + offset + bytes.len()].copy_from_slice(bytes);
    }
    mad
}

const TID: u64 = 0x0102_0304_0506_0708;
const GID_A: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 1, 1];
const GID_B: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 2, 1];
const GID_C: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 1, 0, 2, 0xc9, 3, 0, 0, 1, 2];
const GID_D: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 1, 0, 2, 0xc9, 3, 0, 0, 2, 2];

fn a_req() -> [u8; MAD_LEN] {
    mad(
        0x10,
        &[
            (0, &[0xaa, 0xbb, 0xcc, 0xdd]),
            // Vendor id in the three bytes from 5: to be told from what lies beside it.
            (5, &[0xff, 0xff, 0xff]),
            (8, &[0, 0, 0, 0, 1, 6, 0x11, 0x44]),
            (16, &[0, 2, 0xc9, 3, 0, 0, 1, 0]),
            (28, &[0xff, 0xff, 0xff, 0xff]),
            // QP number, responder resources.
            (32, &[0x12, 0x34, 0x56, 0xff]),
            (36, &[0xff, 0xff, 0xff, 0xff]),
            // Response timeout 20 in the upper five bits, RC, end-to-end flow control.
            (40, &[0xff, 0xff, 0xff, 20 << 3 | 1]),
            // PSN; response timeout 21, retry count 6.
            (44, &[0xff, 0xff, 0xff, 21 << 3 | 6]),
            (48, &[0x80, 0x01]),
            // MTU 4 (2048), RDC, RNR retry; retries 15, SRQ.
            (50, &[4 << 4 | 0xf, 15 << 4 | 8]),
            // Primary.
            (52, &[0, 5, 0, 9]),
            (56, &GID_A),
            (72, &GID_B),
            // Flow label 0xabcde, 6 reserved bits, rate 3.
            (88, &[0xab, 0xcd, 0xe0, 3]),
            (92, &[0x11, 0x40, 2 << 4 | 8, 19 << 3]),
            // Alternate.
            (96, &[0, 6, 0, 10]),
            (100, &GID_C),
            (116, &GID_D),
            (132, &[0x12, 0x34, 0x5f, 0xc0 | 7]),
            (136, &[0x22, 0, 2 << 4 | 0xf, 18 << 3 | 4]),
            (140, &[0xff; 92]),
        ],
    )
}

#[test]
fn a_req_field_by_field() {
    let req = Req::parse(&a_req()).unwrap();
    assert_eq!(req.comm_id, 0xaabb_ccdd);
    assert_eq!(req.service_id, 0x0106_1144);
    assert_eq!(req.ca_guid, 0x0002_c903_0000_0100);
    assert_eq!((req.qpn, req.transport), (0x12_3456, TRANSPORT_RC));
    assert_eq!(req.remote_cm_response_timeout, 20);
    assert_eq!(req.local_cm_response_timeout, 21);
    assert_eq!((req.retry_count, req.max_cm_retries), (6, 15));
    assert_eq!((req.pkey, req.mtu), (0x8001, 4));
    let primary = CmPath {
        local_lid: 5,
        remote_lid: 9,
        local_gid: Gid(GID_A),
        remote_gid: Gid(GID_B),
        flow_label: 0xabcde,
        traffic_class: 0x11,
        hop_limit: 0x40,
        rate: 3,
        sl: 2,
        subnet_local: true,
        ack_timeout: 19,
    };
    assert_eq!(req.primary, primary);
    let alternate = CmPath {
        local_lid: 6,
        remote_lid: 10,
        local_gid: Gid(GID_C),
        remote_gid: Gid(GID_D),
        flow_label: 0x12345,
        traffic_class: 0x22,
        hop_limit: 0,
        rate: 7,
        sl: 2,
        subnet_local: true,
        ack_timeout: 18,
    };
    assert_eq!(req.alternate, Some(alternate));
}

#[test]
fn a_req_without_alternate() {
    let mut mad = a_req();
    mad[24 + 96..24 + 98].fill(0);
    assert_eq!(Req::parse(&mad).unwrap().alternate, None);
    mad[17] = 0x13;
    assert_eq!(Req::parse(&mad), None);
    assert_eq!(Req::parse(&a_req()[..255]), None);
}

#[test]
fn a_transport_that_is_not_rc() {
    let mut mad = a_req();
    mad[24 + 43] = 20 << 3 | 3 << 1;
    assert_eq!(Req::parse(&mad).unwrap().transport, 3);
}

#[test]
fn a_rep_field_by_field() {
    let mad = mad(
        0x13,
        &[
            (0, &[0, 0, 0, 1, 0, 0, 0, 2]),
            (8, &[0xff, 0xff, 0xff, 0xff]),
            (12, &[0x65, 0x43, 0x21, 0xff]),
            (16, &[0xff; 10]),
            // Target ack delay 16, failover accepted 2, flow control.
            (26, &[16 << 3 | 2 << 1 | 1, 0xff]),
            (28, &[0, 2, 0xc9, 3, 0, 0, 2, 0]),
            (36, &[0xff; 196]),
        ],
    );
    let rep = Rep::parse(&mad).unwrap();
    assert_eq!((rep.ids.local, rep.ids.remote), (1, 2));
    assert_eq!((rep.qpn, rep.target_ack_delay), (0x65_4321, 16));
    assert_eq!(rep.failover_accepted, FAILOVER_REJECTED);
    assert_eq!(rep.ca_guid, 0x0002_c903_0000_0200);
    assert_eq!(Req::parse(&mad), None);
}

fn a_lap() -> (Lap, [u8; MAD_LEN]) {
    let lap = Lap {
        tid: TID,
        ids: Ids {
            local: 0x11,
            remote: 0x2233,
        },
        qpn: 0x12_3456,
        remote_cm_response_timeout: 20,
        alternate: CmPath {
            local_lid: 0x0102,
            remote_lid: 0x0304,
            local_gid: Gid(GID_A),
            remote_gid: Gid(GID_B),
            flow_label: 0xabcde,
            traffic_class: 0x55,
            hop_limit: 0x40,
            rate: 0x12,
            sl: 0xb,
            subnet_local: true,
            ack_timeout: 18,
        },
        kind: Kind::Ordinary,
    };
    let mad = mad(
        0x19,
        &[
            (0, &[0, 0, 0, 0x11, 0, 0, 0x22, 0x33]),
            (12, &[0x12, 0x34, 0x56, 20 << 3]),
            (20, &[1, 2, 3, 4]),
            (24, &GID_A),
            (40, &GID_B),
            // Flow label, 4 reserved bits, traffic class.
            (56, &[0xab, 0xcd, 0xe0, 0x55]),
            // Hop limit; rate; SL and subnet local; ack timeout.
            (60, &[0x40, 0x12, 0xb8, 18 << 3]),
        ],
    );
    (lap, mad)
}

#[test]
fn an_ordinary_lap_is_plain() {
    let (lap, bytes) = a_lap();
    let mut written = [0xee; MAD_LEN];
    lap.write(&mut written).unwrap();
    assert_eq!(written, bytes);
    assert!(written[88..].iter().all(|b| *b == 0));
    assert_eq!(Lap::parse(&bytes), Some(lap));
    assert_eq!(lap.write(&mut [0; 255]), None);
}

#[test]
fn reserved_bits_of_a_lap_are_not_read() {
    let (lap, mut bytes) = a_lap();
    bytes[24 + 8..24 + 12].fill(0xff);
    bytes[24 + 15] |= 7;
    bytes[24 + 16..24 + 20].fill(0xff);
    bytes[24 + 58] |= 0xf;
    bytes[24 + 61] |= 0xc0;
    bytes[24 + 62] |= 7;
    bytes[24 + 63] |= 7;
    // Private data of somebody else.
    bytes[88..].fill(0xff);
    assert_eq!(Lap::parse(&bytes), Some(lap));
}

#[test]
fn kinds_of_lap() {
    let (lap, _) = a_lap();
    let mut bytes = [0; MAD_LEN];
    for kind in [
        Kind::Notice,
        Kind::DeadStandby,
        Kind::PortBack,
        Kind::Own(0x1122_3344_5566_7788),
    ] {
        let lap = Lap { kind, ..lap };
        lap.write(&mut bytes).unwrap();
        assert_eq!(Lap::parse(&bytes), Some(lap));
    }
    assert_eq!(bytes[88..98], *b"ib_cmapm\x01\x02");
    assert_eq!(
        bytes[104..112],
        [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]
    );
    bytes[96] = 2;
    assert_eq!(Lap::parse(&bytes).unwrap().kind, Kind::Unknown);
    bytes[88] = 0;
    assert_eq!(Lap::parse(&bytes).unwrap().kind, Kind::Ordinary);
}

#[test]
fn an_apr_field_by_field() {
    let (lap, _) = a_lap();
    let mut apr = Apr::to(&lap, Status::LID);
    apr.info_len = 2;
    apr.info[..2].copy_from_slice(&[3, 4]);
    apr.info[INFO_LEN - 1] = 0x99;
    let bytes = mad(
        0x1a,
        &[
            (0, &[0, 0, 0x22, 0x33, 0, 0, 0, 0x11]),
            (8, &[2, 7]),
            (12, &[3, 4]),
            (83, &[0x99]),
        ],
    );
    let mut written = [0xee; MAD_LEN];
    apr.write(&mut written).unwrap();
    assert_eq!(written, bytes);
    assert_eq!(Apr::parse(&bytes), Some(apr));
    assert_eq!(Apr::parse(&a_lap().1), None);
}

#[test]
fn an_mra_field_by_field() {
    let mut bytes = mad(
        0x11,
        &[
            (0, &[0, 0, 0x22, 0x33, 0, 0, 0, 0x11]),
            (8, &[2 << 6 | 0x3f, 24 << 3 | 7]),
        ],
    );
    let ids = Ids {
        local: 0x2233,
        remote: 0x11,
    };
    let messages = [Mraed::Req, Mraed::Rep, Mraed::Lap, Mraed::Reserved];
    for (n, message) in messages.into_iter().enumerate() {
        bytes[32] = (n as u8) << 6 | 0x3f;
        let mra = Mra {
            tid: TID,
            ids,
            message,
            service_timeout: 24,
        };
        assert_eq!(Mra::parse(&bytes), Some(mra));
    }
    bytes[17] = 0x1a;
    assert_eq!(Mra::parse(&bytes), None);
}

#[test]
fn what_is_a_message() {
    let numbers = [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a];
    for number in 0..=255 {
        let found = attribute(&mad(number, &[]));
        assert_eq!(found.is_some(), numbers.contains(&number), "{number}");
        assert!(found.is_none_or(|a| a as u16 == u16::from(number)));
    }
    let mut other = mad(0x19, &[]);
    assert_eq!(tid(&other), Some(TID));
    other[16] = 1;
    assert_eq!(attribute(&other), None);
    for (offset, value) in [(1, 3), (3, 0x81)] {
        let mut other = mad(0x19, &[]);
        other[offset] = value;
        assert_eq!(attribute(&other), None);
    }
}

#[test]
fn communication_ids() {
    let ids = Ids {
        local: 0x0a0b_0c0d,
        remote: 0x0102_0304,
    };
    assert_eq!(
        (ids.reversed().local, ids.reversed().remote),
        (ids.remote, ids.local)
    );
}

#[test]
fn reasons_that_name_the_alternate() {
    let all: [u32; 7] = [18, 19, 20, 21, 22, 23, 33];
    for reason in 0..64 {
        assert_eq!(rejects_alternate(reason), all.contains(&reason), "{reason}");
    }
}

#[test]
fn ipoib_service_ids() {
    assert!(is_ipoib_cm(0x1000_0000_0000_0048));
    assert!(!is_ipoib_cm(SERVICE_RDS));
}

fn path() -> impl Strategy<Value = CmPath> {
    (
        (
            any::<u16>(),
            any::<u16>(),
            any::<[u8; 16]>(),
            any::<[u8; 16]>(),
        ),
        (0u32..1 << 20, any::<u8>(), any::<u8>(), 0u8..64, 0u8..16),
        (any::<bool>(), 0u8..32),
    )
        .prop_map(|(ports, grh, rest)| CmPath {
            local_lid: ports.0,
            remote_lid: ports.1,
            local_gid: Gid(ports.2),
            remote_gid: Gid(ports.3),
            flow_label: grh.0,
            traffic_class: grh.1,
            hop_limit: grh.2,
            rate: grh.3,
            sl: grh.4,
            subnet_local: rest.0,
            ack_timeout: rest.1,
        })
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Ordinary),
        Just(Kind::Notice),
        Just(Kind::DeadStandby),
        Just(Kind::PortBack),
        any::<u64>().prop_map(Kind::Own),
    ]
}

proptest! {
    /// What is written is read again, and the other end's view of the other end's view is one's own.
    #[test]
    fn a_lap_there_and_back(
        alternate in path(),
        kind in kind(),
        tid in any::<u64>(),
        ids in any::<[u32; 2]>(),
        qpn in 0u32..1 << 24,
        timeout in 0u8..32,
    ) {
        let lap = Lap {
            tid,
            ids: Ids { local: ids[0], remote: ids[1] },
            qpn,
            remote_cm_response_timeout: timeout,
            alternate,
            kind,
        };
        let mut bytes = [0xee; MAD_LEN];
        lap.write(&mut bytes).unwrap();
        prop_assert_eq!(Lap::parse(&bytes), Some(lap));
        prop_assert_eq!(alternate.reversed().reversed(), alternate);
    }

    /// Whatever arrives, reading it doesn't panic; nor does writing what has no room in its field.
    #[test]
    fn anything_is_survived(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        attribute in 0x10u8..0x1b,
        flow_label in any::<u32>(),
        byte in any::<u8>(),
    ) {
        for _ in 0..2 {
            let _ = (Req::parse(&bytes), Rep::parse(&bytes), Lap::parse(&bytes));
            let _ = (Apr::parse(&bytes), Mra::parse(&bytes), tid(&bytes));
            // Once more as a message that it could be.
            for (offset, value) in [(1, 7), (3, 3), (16, 0), (17, attribute)] {
                if let Some(slot) = bytes.get_mut(offset) {
                    *slot = value;
                }
            }
        }
        let alternate = CmPath {
            flow_label,
            rate: byte,
            sl: byte,
            ack_timeout: byte,
            ..CmPath::default()
        };
        let lap = Lap {
            qpn: flow_label,
            remote_cm_response_timeout: byte,
            alternate,
            ..Lap::default()
        };
        let mut out = [0; MAD_LEN];
        lap.write(&mut out).unwrap();
        prop_assert!(Lap::parse(&out).is_some());
    }
}
