// SPDX-License-Identifier: GPL-2.0-only

//! What the communication manager's messages say in numbers (IBA volume 1, chapter 12).

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

#[cfg(test)]
mod tests {
    use super::*;

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
