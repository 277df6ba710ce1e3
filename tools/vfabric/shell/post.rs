// SPDX-License-Identifier: GPL-2.0-only

//! Posting work requests. Any context: only the work queue's lock is taken, the engine does the rest.
//!
//! A request need not be aligned: ib_isert keeps its own, and their scatter lists, in a packed structure. So no
//! reference is made to what a consumer gives.

use super::bindings;
use super::hca::{self, Hca};
use super::qp;
use kernel::prelude::*;
use kernel::sync::ArcBorrow;

/// `post_send`; any context.
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn post_send(
    ib: *mut bindings::ib_qp,
    mut wr: *const bindings::ib_send_wr,
    bad: *mut *const bindings::ib_send_wr,
) -> i32 {
    // SAFETY: A live queue pair of a live device.
    let (qp, hca): (_, ArcBorrow<'_, Hca>) =
        unsafe { (qp::from_ib(ib), hca::from_ib((*ib).device)) };
    let mut ret = Ok(());
    {
        let mut sq = qp.sq.lock();
        if qp.state() < bindings::ib_qp_state_IB_QPS_RTS {
            ret = Err(EINVAL);
        }
        while ret.is_ok() && !wr.is_null() {
            // SAFETY: The consumer's list of valid work requests.
            ret = unsafe { sq.post(wr) };
            if ret.is_ok() {
                // SAFETY: As above.
                wr = unsafe { (&raw const (*wr).next).read_unaligned() };
            }
        }
    }
    hca.shared.activate(qp);
    match ret {
        Ok(()) => 0,
        Err(e) => {
            // SAFETY: The consumer wants to know which one; on success it is left alone.
            unsafe { *bad = wr };
            e.to_errno()
        }
    }
}

/// `post_recv`; any context.
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn post_recv(
    ib: *mut bindings::ib_qp,
    mut wr: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
) -> i32 {
    // SAFETY: A live queue pair of a live device.
    let (qp, hca): (_, ArcBorrow<'_, Hca>) =
        unsafe { (qp::from_ib(ib), hca::from_ib((*ib).device)) };
    let mut ret = Ok(());
    {
        let mut rq = qp.rq.lock();
        if qp.state() == bindings::ib_qp_state_IB_QPS_RESET {
            ret = Err(EINVAL);
        }
        while ret.is_ok() && !wr.is_null() {
            // SAFETY: The consumer's list of valid work requests.
            ret = unsafe { rq.post(wr) };
            if ret.is_ok() {
                // SAFETY: As above.
                wr = unsafe { (&raw const (*wr).next).read_unaligned() };
            }
        }
    }
    if qp.state() == bindings::ib_qp_state_IB_QPS_ERR {
        hca.shared.activate(qp);
    }
    match ret {
        Ok(()) => 0,
        Err(e) => {
            // SAFETY: As in `post_send`.
            unsafe { *bad = wr };
            e.to_errno()
        }
    }
}
