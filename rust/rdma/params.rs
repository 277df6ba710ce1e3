// SPDX-License-Identifier: GPL-2.0-only

//! Module parameters, which live in `rust/helpers.c`.

use super::bindings as rdma;
use crate::apm::failback::Mode;
use crate::apm::policy;
use kernel::ffi::c_char;
use kernel::prelude::*;

const LIST_MAX: usize = rdma::APM_LIST_MAX as usize;

/// The parameters of a decision, as they are now.
pub(crate) struct Params {
    /// `enable`.
    pub(crate) enable: bool,
    devices: List,
    drivers: List,
}

/// On the heap: the stack below a ULP is shared with it.
struct List(KVec<u8>);

impl List {
    fn read(which: rdma::apm_list) -> Result<Self> {
        let mut bytes = KVec::from_elem(0, LIST_MAX, GFP_KERNEL)?;
        // SAFETY: The buffer has `LIST_MAX` bytes.
        let len = unsafe { rdma::apm_list(which, bytes.as_mut_ptr().cast(), LIST_MAX) };
        bytes.truncate(len);
        Ok(Self(bytes))
    }

    fn as_str(&self) -> &str {
        // Checked to be ASCII when it was set.
        core::str::from_utf8(&self.0).unwrap_or("")
    }
}

impl Params {
    /// Reads them. ENOMEM; process context.
    pub(crate) fn read() -> Result<Self> {
        Ok(Self {
            // SAFETY: No preconditions.
            enable: unsafe { rdma::apm_enable() },
            devices: List::read(rdma::apm_list_APM_LIST_DEVICES)?,
            drivers: List::read(rdma::apm_list_APM_LIST_DRIVERS)?,
        })
    }

    /// `devices`.
    pub(crate) fn devices(&self) -> &str {
        self.devices.as_str()
    }

    /// `drivers`.
    pub(crate) fn drivers(&self) -> &str {
        self.drivers.as_str()
    }
}

/// `req_hold_ms`, in milliseconds.
pub(crate) fn req_hold_ms() -> u32 {
    // SAFETY: No preconditions.
    unsafe { rdma::apm_req_hold_ms() }
}

/// `proactive`.
pub(crate) fn proactive() -> bool {
    // SAFETY: No preconditions.
    unsafe { rdma::apm_proactive() }
}

/// `rearm`.
pub(crate) fn rearm() -> bool {
    // SAFETY: No preconditions.
    unsafe { rdma::apm_rearm() }
}

/// `timers`.
pub(crate) fn timers() -> bool {
    // SAFETY: No preconditions.
    unsafe { rdma::apm_timers() }
}

/// `keep_alive_ms`, in milliseconds.
pub(crate) fn keep_alive_ms() -> u32 {
    // SAFETY: No preconditions.
    unsafe { rdma::apm_keep_alive_ms() }
}

/// `failback`.
pub(crate) fn failback() -> Mode {
    // SAFETY: No preconditions.
    let place = unsafe { rdma::apm_failback() };
    let mode = usize::try_from(place).ok().and_then(|n| Mode::ALL.get(n));
    mode.copied().unwrap_or(Mode::Off)
}

/// `failback_hold_ms`, in milliseconds.
pub(crate) fn failback_hold_ms() -> u64 {
    // SAFETY: No preconditions.
    unsafe { rdma::apm_failback_hold_ms() }.into()
}

/// Asked by the C side whether a list parameter is well-formed, before the module's init runs.
///
/// # Safety
///
/// `list` points to `len` readable bytes.
#[no_mangle]
unsafe extern "C" fn ib_cm_apm_list_valid(list: *const c_char, len: usize) -> bool {
    // SAFETY: By the function's contract.
    let bytes = unsafe { core::slice::from_raw_parts(list.cast::<u8>(), len) };
    core::str::from_utf8(bytes).is_ok_and(policy::list_valid)
}
