// SPDX-License-Identifier: GPL-2.0-only

//! References to entries of a device's GID table.
//!
//! C header: [`include/rdma/ib_cache.h`](srctree/include/rdma/ib_cache.h)

use super::bindings as rdma;
use crate::wire::Gid;
use core::ptr::NonNull;
use kernel::error::from_err_ptr;
use kernel::prelude::*;

/// A GID of the kernel's.
///
/// # Safety
///
/// `gid` is initialised.
pub(crate) unsafe fn read(gid: &rdma::ib_gid) -> Gid {
    // SAFETY: By the function's contract.
    Gid(unsafe { *gid.raw.as_ref() })
}

/// A GID for the kernel.
pub(crate) fn write(gid: &Gid) -> rdma::ib_gid {
    let mut raw = rdma::ib_gid::default();
    // SAFETY: Sixteen bytes, whichever way the union is seen.
    unsafe { *raw.raw.as_mut() = gid.0 };
    raw
}

/// A counted reference to a GID table entry.
///
/// # Invariants
///
/// The pointer is valid, and this holds one reference.
pub(crate) struct GidRef(NonNull<rdma::ib_gid_attr>);

// SAFETY: GID entries are counted and immutable; any task may put a reference.
unsafe impl Send for GidRef {}

impl GidRef {
    /// Takes one more reference to an entry; `None` for a null pointer.
    ///
    /// # Safety
    ///
    /// `attr` is null, or somebody holds a reference to it during this call.
    pub(crate) unsafe fn hold(attr: *const rdma::ib_gid_attr) -> Option<Self> {
        let attr = NonNull::new(attr.cast_mut())?;
        // SAFETY: By the function's contract.
        unsafe { rdma::rdma_hold_gid_attr(attr.as_ptr()) };
        // INVARIANT: Just taken.
        Some(Self(attr))
    }

    /// Looks a GID up on one port of a device.
    ///
    /// # Safety
    ///
    /// `dev` stays registered during this call.
    pub(crate) unsafe fn find(dev: *mut rdma::ib_device, port: u32, gid: &Gid) -> Result<Self> {
        let raw = write(gid);
        // SAFETY: `dev` is valid by the function's contract.
        let attr = unsafe {
            rdma::rdma_find_gid_by_port(
                dev,
                &raw,
                rdma::ib_gid_type_IB_GID_TYPE_IB,
                port,
                core::ptr::null_mut(),
            )
        };
        let attr = from_err_ptr(attr.cast_mut())?;
        // INVARIANT: The lookup took a reference.
        NonNull::new(attr).map(Self).ok_or(ENOENT)
    }

    /// Looks a GID up on all ports of a device; the port that has it.
    ///
    /// # Safety
    ///
    /// `dev` stays registered during this call.
    pub(crate) unsafe fn port_of(dev: *mut rdma::ib_device, gid: &Gid) -> Option<u32> {
        // SAFETY: By the function's contract; the device has these ports.
        unsafe { (1..=(*dev).phys_port_cnt).find(|port| Self::find(dev, *port, gid).is_ok()) }
    }

    /// The entry, for as long as this lives.
    pub(crate) fn as_ptr(&self) -> *const rdma::ib_gid_attr {
        self.0.as_ptr()
    }

    /// Gives the reference away, to an owner in C.
    pub(crate) fn into_raw(self) -> *const rdma::ib_gid_attr {
        core::mem::ManuallyDrop::new(self).as_ptr()
    }

    /// Takes a reference over from an owner in C; `None` for a null pointer.
    ///
    /// # Safety
    ///
    /// `attr` is null, or the caller owns one reference and gives it up.
    pub(crate) unsafe fn from_raw(attr: *const rdma::ib_gid_attr) -> Option<Self> {
        // INVARIANT: By the function's contract.
        NonNull::new(attr.cast_mut()).map(Self)
    }
}

impl Drop for GidRef {
    fn drop(&mut self) {
        // SAFETY: By the invariant.
        unsafe { rdma::rdma_put_gid_attr(self.0.as_ptr()) };
    }
}
