// SPDX-License-Identifier: GPL-2.0-only

//! `connections` and `statistics` in debugfs, until there is netlink.

use super::device::device_name;
use super::name::Name;
use super::path::Path;
use super::service::Service;
use super::stats;
use crate::apm::reason::Reason;
use crate::apm::search::Disjoint;
use crate::apm::state::State;
use crate::apm::stats::Stat;
use kernel::debugfs::{Dir, File};
use kernel::fmt;
use kernel::prelude::*;
use kernel::sync::Arc;

/// The kernel's `Display` for types of ours that have that of `core`.
macro_rules! display {
    ($($t:ty),*) => {$(
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }
    )*};
}
display!(Disjoint, Name, Path, Reason, State);

/// The files; they go when this is dropped.
pub(crate) struct Files {
    _connections: Pin<KBox<File<Arc<Service>>>>,
    _statistics: Pin<KBox<File<Arc<Service>>>>,
    _dir: Dir,
}

impl Files {
    /// Makes `/sys/kernel/debug/ib_cm_apm/`.
    pub(crate) fn new(service: &Arc<Service>) -> Result<Self> {
        let dir = Dir::new(c"ib_cm_apm");
        let connections = KBox::pin_init(
            dir.read_callback_file(c"connections", service.clone(), &connections),
            GFP_KERNEL,
        )?;
        let statistics = KBox::pin_init(
            dir.read_callback_file(c"statistics", service.clone(), &statistics),
            GFP_KERNEL,
        )?;
        Ok(Self {
            _connections: connections,
            _statistics: statistics,
            _dir: dir,
        })
    }
}

/// One line for each connection; its QP is asked for its state first.
fn connections(service: &Arc<Service>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut result = Ok(());
    let unprotected = State::Unprotected(Reason::PredatesLoad);
    service.table.for_each(|conn| {
        if result.is_err() {
            return;
        }
        service.attend(conn);
        // The device's name, where it is one of ours and still there.
        let name = service.devices.enter(conn.device()).map(|device| {
            // SAFETY: Inside the device's gate.
            unsafe { device_name(device.raw()) }
        });
        let inner = conn.lock();
        result = (|| {
            match &name {
                Some(name) => write!(f, "dev={name}")?,
                None => f.write_str("dev=-")?,
            }
            write!(
                f,
                " qpn={:#x} side={} peer_qpn={:#x} ulp={} state={} reason=",
                inner.qpn,
                conn.side.word(),
                inner.peer_qpn,
                inner.ulp,
                inner.state(),
            )?;
            match inner.state().reason() {
                Some(reason) => write!(f, "{reason}")?,
                None => f.write_str("-")?,
            }
            write!(f, " path={} alt=", inner.path)?;
            match &inner.alternate {
                Some(alternate) => write!(f, "{alternate}")?,
                None => f.write_str("-")?,
            }
            f.write_str(" disjoint=")?;
            match (&inner.alternate, &inner.disjoint) {
                (Some(_), Some(disjoint)) => write!(f, "{disjoint}")?,
                _ => f.write_str("-")?,
            }
            writeln!(f, " migrations={}", inner.migrations)
        })();
    });
    service.older.for_each(&service.devices, |device, older| {
        if result.is_ok() {
            // SAFETY: Inside the device's gate.
            let name = unsafe { device_name(device.raw()) };
            result = writeln!(
                f,
                "dev={name} qpn={:#x} side=- peer_qpn={:#x} ulp={} state={unprotected} reason={} path=- alt=- disjoint=- migrations=0",
                older.qpn,
                older.peer_qpn,
                older.ulp,
                Reason::PredatesLoad,
            );
        }
    });
    result
}

/// One line for each counter.
fn statistics(service: &Arc<Service>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "connections {}", service.table.len())?;
    writeln!(
        f,
        "paths_cached {}",
        service.cache.len() + service.standbys.len()
    )?;
    for stat in Stat::ALL {
        writeln!(f, "{} {}", stat.name(), stats::value(*stat))?;
    }
    for reason in Reason::ALL {
        writeln!(
            f,
            "unprotected_{} {}",
            reason.word(),
            stats::reason_value(reason)
        )?;
    }
    Ok(())
}
