// SPDX-License-Identifier: GPL-2.0-only

//! Protection domains and address handles.

use super::bindings;
use crate::model::packet::Grh;
use kernel::sync::atomic::{Atomic, Relaxed};

/// Core's protection domain with our number behind it.
#[repr(C)]
pub(crate) struct VPd {
    ib: bindings::ib_pd,
    id: u32,
}

/// Numbers are never reused, so that a key of a domain long gone opens nothing.
static NEXT_PD: Atomic<u32> = Atomic::new(1);

/// `alloc_pd`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn alloc(
    ib: *mut bindings::ib_pd,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    // SAFETY: Core allocated `size_ib_pd` bytes, which is a `VPd`.
    unsafe { (*ib.cast::<VPd>()).id = NEXT_PD.fetch_add(1, Relaxed) };
    0
}

/// `dealloc_pd`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn dealloc(
    _ib: *mut bindings::ib_pd,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    0
}

/// Number of a protection domain.
///
/// # Safety
///
/// `ib` is a live protection domain of ours.
pub(crate) unsafe fn id(ib: *mut bindings::ib_pd) -> u32 {
    // SAFETY: By the caller's promise.
    unsafe { (*ib.cast::<VPd>()).id }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Av {
    pub(crate) port: u8,
    pub(crate) sl: u8,
    pub(crate) dlid: u16,
    pub(crate) path_bits: u8,
    /// Global route, its source GID still to be filled in from the port.
    pub(crate) grh: Option<Grh>,
}

/// Core's address handle with the address vector behind it.
#[repr(C)]
pub(crate) struct VAh {
    ib: bindings::ib_ah,
    attr: bindings::rdma_ah_attr,
}

/// The address in `attr`.
///
/// # Safety
///
/// `attr` is of an InfiniBand port.
unsafe fn av(attr: &bindings::rdma_ah_attr) -> Av {
    // SAFETY: Of the union's members it is the InfiniBand one that is in use.
    let ib = unsafe { attr.__bindgen_anon_1.ib.as_ref() };
    let grh = (u32::from(attr.ah_flags) & bindings::ib_ah_flags_IB_AH_GRH != 0).then(|| Grh {
        tclass: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        sgid: [0; 16],
        // SAFETY: A GID is sixteen bytes however it is looked at.
        dgid: unsafe { *attr.grh.dgid.raw.as_ref() },
    });
    Av {
        port: attr.port_num as u8,
        sl: attr.sl,
        dlid: ib.dlid,
        path_bits: ib.src_path_bits,
        grh,
    }
}

/// `create_ah`; may be called where nothing may sleep.
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn create_ah(
    ib: *mut bindings::ib_ah,
    attr: *mut bindings::rdma_ah_init_attr,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    // SAFETY: Core allocated `size_ib_ah` bytes, which is a `VAh`, and hands us a valid attribute.
    // The reference on the SGID stays core's.
    unsafe {
        let v = ib.cast::<VAh>();
        core::ptr::copy((*attr).ah_attr, &raw mut (*v).attr, 1);
        (*v).attr.grh.sgid_attr = core::ptr::null();
    }
    0
}

/// `query_ah`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn query_ah(
    ib: *mut bindings::ib_ah,
    attr: *mut bindings::rdma_ah_attr,
) -> i32 {
    // SAFETY: A live address handle, and room for the answer.
    unsafe { core::ptr::copy(&raw const (*ib.cast::<VAh>()).attr, attr, 1) };
    0
}

/// `destroy_ah`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn destroy_ah(_ib: *mut bindings::ib_ah, _flags: u32) -> i32 {
    0
}

/// The address behind an address handle.
///
/// # Safety
///
/// `ib` is a live address handle of ours.
pub(crate) unsafe fn av_of(ib: *mut bindings::ib_ah) -> Av {
    // SAFETY: By the caller's promise; our ports are InfiniBand.
    unsafe { av(&(*ib.cast::<VAh>()).attr) }
}
