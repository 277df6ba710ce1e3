// SPDX-License-Identifier: GPL-2.0-only

//! Connections older than the module: counted and shown, never touched.
//!
//! Their cm_ids are not known, so nothing can be done for them. They are found once, at load, among the
//! QPs of each device, and shown as long as their QP is there and connected as it was.
//!
//! Locks: `Older::list`, a leaf but for what looking a QP up takes.

use super::bindings as rdma;
use super::device::{Device, Devices};
use super::name::Name;
use super::qp::QpRef;
use super::stats;
use crate::apm::stats::Stat;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Mutex};
use kernel::time::{Instant, Monotonic};

/// QP numbers have 24 bits.
const QPN_LIMIT: u32 = 1 << 24;
/// After so many numbers others get a chance to run.
const BATCH: u32 = 1 << 14;

/// Longest search in one device, in milliseconds: where QP numbers are spread over the whole range, or
/// a QP goes meanwhile, some may be missed.
const LIMIT_MS: i64 = 1000;

/// A QP that was connected before the module was loaded.
#[derive(Clone, Copy)]
pub(crate) struct OlderQp {
    device: usize,
    /// Local QP number.
    pub(crate) qpn: u32,
    /// The peer's QP number.
    pub(crate) peer_qpn: u32,
    /// The ULP.
    pub(crate) ulp: Name,
}

/// The connections older than the module.
#[pin_data]
pub(crate) struct Older {
    #[pin]
    list: Mutex<KVVec<OlderQp>>,
}

impl Older {
    /// None known yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(KVVec::new()),
        })
    }

    /// Looks for the connections of a device; how many there are. Process context.
    pub(crate) fn find(&self, device: &Device) -> Result<usize> {
        let mut found = 0;
        let begun = Instant::<Monotonic>::now();
        // SAFETY: Whoever has `device` to call this on holds a `DeviceUse`.
        let mut left = unsafe {
            rdma::rdma_restrack_count(
                device.raw(),
                rdma::rdma_restrack_type_RDMA_RESTRACK_QP,
                true,
            )
        };
        // The special QPs of each port are found by port and number; they are none of those, but have to
        // be counted to stop after the last of the others.
        for id in (1..=u32::from(u8::MAX)).flat_map(|port| [port << 24, port << 24 | 1]) {
            // SAFETY: As above.
            if unsafe { QpRef::find(device.raw(), id) }.is_some() {
                left = left.saturating_sub(1);
            }
        }
        for qpn in 0..QPN_LIMIT {
            if left == 0 {
                break;
            }
            if qpn % BATCH == 0 {
                // SAFETY: Process context, no lock held.
                unsafe { rdma::apm_cond_resched() };
                if begun.elapsed().as_millis() > LIMIT_MS {
                    break;
                }
            }
            // SAFETY: As above.
            let Some(qp) = (unsafe { QpRef::find(device.raw(), qpn) }) else {
                continue;
            };
            left = left.saturating_sub(1);
            let Some(peer_qpn) = qp.connected_to() else {
                continue;
            };
            let older = OlderQp {
                device: device.raw() as usize,
                qpn,
                peer_qpn,
                ulp: qp.owner(),
            };
            self.list.lock().push(older, GFP_KERNEL)?;
            stats::count(Stat::PredatesLoad);
            found += 1;
        }
        Ok(found)
    }

    /// Those that are still there, with the name of their device as `f` finds it; the others are
    /// forgotten. Process context.
    pub(crate) fn for_each(&self, devices: &Devices, mut f: impl FnMut(&Device, &OlderQp)) {
        self.list.lock().retain(|older| {
            let Some(device) = devices.enter(older.device as *mut rdma::ib_device) else {
                return false;
            };
            // SAFETY: Inside the device's gate.
            let qp = unsafe { QpRef::find(device.raw(), older.qpn) };
            let same = qp.is_some_and(|qp| qp.connected_to() == Some(older.peer_qpn));
            if same {
                f(&device, older);
            }
            same
        });
    }
}
