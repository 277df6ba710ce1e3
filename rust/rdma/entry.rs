// SPDX-License-Identifier: GPL-2.0-only

//! The wrappers around functions of ib_cm: each does its part for the connection and calls the original.
//!
//! Whatever goes wrong here, the original is called as it would have been without the module.

use super::bindings as rdma;
use super::connect::Records;
use super::hook::{InFlight, Ops};
use super::service::Service;
use kernel::ffi::c_int;
use kernel::sync::atomic::{Acquire, Atomic};

/// Wrapper of `int ib_send_cm_req(struct ib_cm_id *, struct ib_cm_req_param *)`.
pub(crate) static REQ: Ops = Ops::wrapper(send_req as *const ());
/// Wrapper of `int ib_send_cm_rep(struct ib_cm_id *, struct ib_cm_rep_param *)`.
pub(crate) static REP: Ops = Ops::wrapper(send_rep as *const ());
/// Wrapper of `int ib_cm_init_qp_attr(struct ib_cm_id *, struct ib_qp_attr *, int *)`.
pub(crate) static ATTR: Ops = Ops::wrapper(init_qp_attr as *const ());
/// Wrapper of `static void cm_destroy_id(struct ib_cm_id *, int)`.
pub(crate) static DESTROY: Ops = Ops::wrapper(destroy_id as *const ());

/// Address of `cm_destroy_id`, which is static; set before it is hooked.
pub(crate) static DESTROY_ID: Atomic<usize> = Atomic::new(0);

/// # Safety
///
/// Runs in the place of `ib_send_cm_req`, with its arguments.
unsafe extern "C" fn send_req(id: *mut rdma::ib_cm_id, param: *mut rdma::ib_cm_req_param) -> c_int {
    let inflight = InFlight::enter();
    // SAFETY: The caller's `id` and `param` are valid during the call.
    unsafe {
        let Some(service) = Service::get(&inflight) else {
            return rdma::ib_send_cm_req(id, param);
        };
        // Never written to: the ULP may use it again.
        let mut copy = core::ptr::read(param);
        let mut records = Records::default();
        let offered = service.offer(id, &copy, &mut records);
        if offered.is_some() {
            copy.primary_path = &mut records.primary;
            copy.alternate_path = &mut records.alternate;
            copy.retry_count = records.retry_count.unwrap_or(copy.retry_count);
        }
        let ret = rdma::ib_send_cm_req(id, &mut copy);
        if ret != 0 {
            // The cm_id cannot be used for a second try: ib_cm may have kept a timewait structure.
            service.forget(id);
        }
        ret
    }
}

/// # Safety
///
/// Runs in the place of `ib_send_cm_rep`, with its arguments.
unsafe extern "C" fn send_rep(id: *mut rdma::ib_cm_id, param: *mut rdma::ib_cm_rep_param) -> c_int {
    let inflight = InFlight::enter();
    // SAFETY: The caller's `id` and `param` are valid during the call.
    unsafe {
        let Some(service) = Service::get(&inflight) else {
            return rdma::ib_send_cm_rep(id, param);
        };
        let mut copy = core::ptr::read(param);
        service.accept(id, &mut copy);
        let ret = rdma::ib_send_cm_rep(id, &mut copy);
        drop(inflight);
        ret
    }
}

/// # Safety
///
/// Runs in the place of `ib_cm_init_qp_attr`, with its arguments.
unsafe extern "C" fn init_qp_attr(
    id: *mut rdma::ib_cm_id,
    attr: *mut rdma::ib_qp_attr,
    mask: *mut c_int,
) -> c_int {
    let inflight = InFlight::enter();
    // SAFETY: The caller's `id`, `attr` and `mask` are valid during the call.
    unsafe {
        let to = (*attr).qp_state;
        let ret = rdma::ib_cm_init_qp_attr(id, attr, mask);
        if ret == 0 {
            if let Some(service) = Service::get(&inflight) {
                service.qp_attr(id, to, &*attr, &mut *mask);
            }
        }
        ret
    }
}

/// # Safety
///
/// Runs in the place of `cm_destroy_id`, with its arguments.
unsafe extern "C" fn destroy_id(id: *mut rdma::ib_cm_id, err: c_int) {
    let inflight = InFlight::enter();
    // SAFETY: `id` is live until the original is called. The hook was registered at that address.
    unsafe {
        if let Some(service) = Service::get(&inflight) {
            service.end(id);
        }
        rdma::apm_call_destroy(id, err, DESTROY_ID.load(Acquire));
    }
    drop(inflight);
}
