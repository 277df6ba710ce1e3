// SPDX-License-Identifier: GPL-2.0-only

//! Which connections are served.

use super::reason::Reason;
use crate::wire::cm;

/// Drivers (module names) whose HCAs do path migration: in hardware, or, for vfabric, for tests.
const DRIVERS: [&str; 4] = ["mlx5_ib", "mlx4_ib", "ib_mthca", "vfabric"];

/// ULPs (names of the kernel module that owns the QP) for which path migration is no gain: RDS drops
/// the connection on any QP event, IPoIB-CM destroys its QP when the port goes down.
const EXCLUDED_ULPS: [&str; 2] = ["rds_rdma", "ib_ipoib"];

/// Whether the comma-separated list has an entry `name`.
pub(crate) fn list_has(list: &str, name: &str) -> bool {
    entries(list).any(|entry| entry == name)
}

/// Whether a list parameter is well-formed: names of letters, digits and `_ - . :`, separated by
/// commas; empty is well-formed. White space around a name is allowed.
pub(crate) fn list_valid(list: &str) -> bool {
    list.trim().is_empty()
        || list.split(',').all(|entry| {
            let entry = entry.trim();
            !entry.is_empty()
                && entry
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':'))
        })
}

fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|e| !e.is_empty())
}

/// What the decision about a connection rests on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    /// Parameter `enable`.
    pub(crate) enable: bool,
    /// Parameter `devices`: names of HCAs, empty for all.
    pub(crate) devices: &'a str,
    /// Parameter `drivers`: names of driver modules to serve beside the known ones.
    pub(crate) drivers: &'a str,
    /// Name of the HCA.
    pub(crate) device: &'a str,
    /// Name of the module that drives it.
    pub(crate) driver: &'a str,
    /// The link layer of the connection's port is InfiniBand.
    pub(crate) infiniband: bool,
    /// The HCA has IB_DEVICE_AUTO_PATH_MIG set.
    pub(crate) apm: bool,
    /// Service id of the connection, host byte order.
    pub(crate) service_id: u64,
    /// Module that owns the QP, where the QP is known.
    pub(crate) ulp: Option<&'a str>,
    /// The QP, where it is known, belongs to a process.
    pub(crate) user: bool,
}

/// What is done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It gets an alternate path, or may take the one that the peer offers.
    Serve,
    /// It is left as it would be without the module, whatever the peer offers.
    LeaveAlone(Reason),
    /// It gets no alternate path, and one that the peer offers is kept from its QP.
    Refuse(Reason),
}

/// Decides about a connection.
pub(crate) fn verdict(facts: &Facts<'_>) -> Verdict {
    if !facts.infiniband {
        return Verdict::LeaveAlone(Reason::Roce);
    }
    if !facts.enable {
        return Verdict::LeaveAlone(Reason::PolicyOff);
    }
    if entries(facts.devices).next().is_some() && !list_has(facts.devices, facts.device) {
        return Verdict::LeaveAlone(Reason::PolicyOff);
    }
    if facts.user {
        return Verdict::LeaveAlone(Reason::UlpExcluded);
    }
    if !DRIVERS.contains(&facts.driver) && !list_has(facts.drivers, facts.driver) {
        return Verdict::Refuse(Reason::DriverNotAllowed);
    }
    if !facts.apm {
        return Verdict::Refuse(Reason::HcaNoApm);
    }
    if facts.service_id == cm::SERVICE_RDS
        || cm::is_ipoib_cm(facts.service_id)
        || facts.ulp.is_some_and(|ulp| EXCLUDED_ULPS.contains(&ulp))
    {
        return Verdict::Refuse(Reason::UlpExcluded);
    }
    Verdict::Serve
}

/// A name for the ULP of a connection whose QP is not known, from its service id (host byte order).
pub(crate) fn ulp_by_service(service_id: u64) -> &'static str {
    match service_id {
        cm::SERVICE_RDS => "rds_rdma",
        id if cm::is_ipoib_cm(id) => "ib_ipoib",
        // Port space of rdma_cm.
        id if id >> 24 == 1 => "rdma_cm",
        _ => "ib_cm",
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts() -> Facts<'static> {
        Facts {
            enable: true,
            devices: "",
            drivers: "",
            device: "mlx5_0",
            driver: "mlx5_ib",
            infiniband: true,
            apm: true,
            service_id: 0x0106_1144,
            ulp: Some("nvme_rdma"),
            user: false,
        }
    }

    #[test]
    fn served() {
        assert_eq!(verdict(&facts()), Verdict::Serve);
        let f = Facts {
            devices: "mlx5_1, mlx5_0",
            ..facts()
        };
        assert_eq!(verdict(&f), Verdict::Serve);
        let f = Facts {
            driver: "vhca",
            drivers: "hfi1,vhca",
            ..facts()
        };
        assert_eq!(verdict(&f), Verdict::Serve);
    }

    #[test]
    fn left_alone() {
        let alone = |f: Facts<'_>, reason| assert_eq!(verdict(&f), Verdict::LeaveAlone(reason));
        let f = facts();
        alone(Facts { enable: false, ..f }, Reason::PolicyOff);
        alone(
            Facts {
                devices: "mlx5_10",
                ..f
            },
            Reason::PolicyOff,
        );
        alone(
            Facts {
                infiniband: false,
                ..f
            },
            Reason::Roce,
        );
        alone(Facts { user: true, ..f }, Reason::UlpExcluded);
    }

    #[test]
    fn refused() {
        let refused = |f: Facts<'_>, reason| assert_eq!(verdict(&f), Verdict::Refuse(reason));
        let f = facts();
        refused(
            Facts {
                driver: "rdma_rxe",
                ..f
            },
            Reason::DriverNotAllowed,
        );
        refused(Facts { apm: false, ..f }, Reason::HcaNoApm);
        refused(
            Facts {
                service_id: 0x0106_48ca,
                ulp: None,
                ..f
            },
            Reason::UlpExcluded,
        );
        refused(
            Facts {
                service_id: 0x1000_0000_0000_0048,
                ulp: None,
                ..f
            },
            Reason::UlpExcluded,
        );
        refused(
            Facts {
                ulp: Some("rds_rdma"),
                ..f
            },
            Reason::UlpExcluded,
        );
    }

    #[test]
    fn lists() {
        assert!(list_valid(""));
        assert!(list_valid("mlx5_0"));
        assert!(list_valid(" mlx5_0 , mlx5_1\n"));
        assert!(!list_valid("mlx5_0,,mlx5_1"));
        assert!(!list_valid("mlx5 0"));
        assert!(!list_valid("mlx5_0;mlx5_1"));
        assert!(!list_has("mlx5_01", "mlx5_0"));
    }

    proptest! {
        #[test]
        fn whatever_is_valid_has_its_entries(names in prop::collection::vec("[a-z0-9_]{1,8}", 1..5)) {
            let list = names.join(",");
            prop_assert!(list_valid(&list));
            for name in &names {
                prop_assert!(list_has(&list, name));
            }
            prop_assert!(!list_has(&list, ""));
        }
    }
}
