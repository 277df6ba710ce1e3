// SPDX-License-Identifier: GPL-2.0-only

//! What the communication manager's messages say in numbers (IBA volume 1, chapter 12).

use super::{be16, bytes, Gid};

/// Why a REQ was refused (`enum ib_cm_rej_reason`): the alternate path and nothing else is at fault.
///
/// Invalid alternate GID, LID, SL, traffic class, hop limit, packet rate (18 to 23) and flow label (33).
pub(crate) fn rejects_alternate(reason: u32) -> bool {
    matches!(reason, 18..=23 | 33)
}

/// REP `failover_accepted`: the alternate path of the REQ was taken.
pub(crate) const FAILOVER_ACCEPTED: u8 = 0;
/// REP `failover_accepted`: the passive side does not do path migration.
pub(crate) const FAILOVER_UNSUPPORTED: u8 = 1;
/// REP `failover_accepted`: it does, but not with this alternate path.
pub(crate) const FAILOVER_REJECTED: u8 = 2;

/// Service id of RDS over rdma_cm (port space TCP, port 18634), host byte order.
pub(crate) const SERVICE_RDS: u64 = 0x0106_48ca;

/// Whether a service id (host byte order) is one of IPoIB connected mode, which puts its UD QP
/// number into the low bits (RFC 4755).
pub(crate) fn is_ipoib_cm(service_id: u64) -> bool {
    service_id >> 56 == 0x10
}

const CLASS_CM: u8 = 7;
const METHOD_SEND: u8 = 3;
const ATTR_REQ: u16 = 0x10;

/// What a REQ (IBA 12.6.5) says of its alternate path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReqAlternate {
    /// The sender's communication id, host byte order.
    pub(crate) comm_id: u32,
    /// GID of the receiver's port ("alternate remote port").
    pub(crate) gid: Gid,
}

/// The alternate path in a MAD; `None` where the MAD is no REQ, or one without.
pub(crate) fn alternate_of_req(mad: &[u8]) -> Option<ReqAlternate> {
    if (*mad.get(1)?, *mad.get(3)?, be16(mad, 16)?) != (CLASS_CM, METHOD_SEND, ATTR_REQ) {
        return None;
    }
    // A REQ without an alternate has no LID for it.
    if be16(mad, 120)? == 0 {
        return None;
    }
    Some(ReqAlternate {
        comm_id: u32::from_be_bytes(bytes(mad, 24)?),
        gid: Gid(bytes(mad, 140)?),
    })
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn alternate_in_a_req() {
        let mut mad = [0u8; 256];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = 0x10;
        mad[24..28].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(alternate_of_req(&mad), None);
        mad[121] = 9;
        mad[140..156].copy_from_slice(&Gid::new(5, 6).0);
        let found = alternate_of_req(&mad).unwrap();
        assert_eq!((found.comm_id, found.gid), (0x0102_0304, Gid::new(5, 6)));
        assert_eq!(alternate_of_req(&mad[..155]), None);
        mad[17] = 0x13;
        assert_eq!(alternate_of_req(&mad), None);
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
}
