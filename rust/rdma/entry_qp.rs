// SPDX-License-Identifier: GPL-2.0-only

//! The wrappers around the making and the end of QPs and CQs: room for nudges is asked for.
//!
//! Whatever is asked for beyond what the ULP wants, and is not to be had, is done without: the original
//! is then called as it would have been without the module. QPs of processes do not come here.

use super::bindings as rdma;
use super::connect::verdict;
use super::device::has_infiniband;
use super::hook::{InFlight, Ops};
use super::name::Name;
use super::room::{self, CqNode, Room};
use super::service::Service;
use super::stats;
use crate::apm::policy::Verdict;
use crate::apm::slots::{enlarged, own_cq_entries, send_wr, NUDGES};
use crate::apm::stats::Stat;
use kernel::error::from_err_ptr;
use kernel::ffi::{c_char, c_int, c_uint, c_void};

/// Wrapper of `int ib_destroy_qp_user(struct ib_qp *, struct ib_udata *)`.
static DESTROY_QP: Ops = Ops::wrapper(destroy_qp as *const ());
/// Wrapper of `void ib_free_cq(struct ib_cq *)`.
static FREE_CQ: Ops = Ops::wrapper(free_cq as *const ());
/// Wrapper of `void ib_cq_pool_put(struct ib_cq *, unsigned int)`.
static POOL_PUT: Ops = Ops::wrapper(pool_put as *const ());
/// Wrapper of `struct ib_cq *ib_cq_pool_get(struct ib_device *, unsigned int, int, enum
/// ib_poll_context)`.
static POOL_GET: Ops = Ops::wrapper(pool_get as *const ());
/// Wrapper of `struct ib_cq *__ib_alloc_cq(struct ib_device *, void *, int, int, enum ib_poll_context,
/// const char *)`.
static ALLOC_CQ: Ops = Ops::wrapper(alloc_cq as *const ());
/// Wrapper of `struct ib_qp *ib_create_qp_kernel(struct ib_pd *, struct ib_qp_init_attr *, const char *)`.
static CREATE_QP: Ops = Ops::wrapper(create_qp as *const ());

/// The hooks, by name, with the addresses where they belong, in the order of their registration.
pub(crate) fn hooks() -> [(&'static str, &'static Ops, usize); 6] {
    [
        (
            "ib_destroy_qp_user",
            &DESTROY_QP,
            rdma::ib_destroy_qp_user as usize,
        ),
        ("ib_free_cq", &FREE_CQ, rdma::ib_free_cq as usize),
        ("ib_cq_pool_put", &POOL_PUT, rdma::ib_cq_pool_put as usize),
        ("ib_cq_pool_get", &POOL_GET, rdma::ib_cq_pool_get as usize),
        ("__ib_alloc_cq", &ALLOC_CQ, rdma::__ib_alloc_cq as usize),
        (
            "ib_create_qp_kernel",
            &CREATE_QP,
            rdma::ib_create_qp_kernel as usize,
        ),
    ]
}

/// The CQs of the pool and of the MAD layer are made in its name. What is asked for beyond in the pool
/// itself would be lent to the next user.
const CORE: &str = "ib_core";

/// Whether a connection of this ULP on this device might be served.
///
/// # Safety
///
/// `dev` stays registered during this call.
unsafe fn serves(dev: *mut rdma::ib_device, ulp: Option<&Name>) -> bool {
    // SAFETY: By the function's contract.
    unsafe { verdict(dev, has_infiniband(dev), 0, ulp) == Verdict::Serve }
}

impl Service {
    /// Takes room for the nudges of a QP, with the depth to ask for; `None` for a QP that does not get
    /// any.
    ///
    /// # Safety
    ///
    /// `pd` and `attr` are what `ib_create_qp_kernel` is called with, during that call.
    unsafe fn room(
        &self,
        pd: *mut rdma::ib_pd,
        attr: &rdma::ib_qp_init_attr,
    ) -> Option<(Room, u32)> {
        if attr.qp_type != rdma::ib_qp_type_IB_QPT_RC
            || attr.send_cq.is_null()
            || !self.slots.is_open()
        {
            return None;
        }
        // SAFETY: The caller keeps the PD and what it belongs to; its name is a string of the ULP's.
        let (dev, ulp) = unsafe { ((*pd).device, Name::copy((*pd).res.kern_name)) };
        // SAFETY: As above.
        if !unsafe { serves(dev, Some(&ulp)) } {
            return None;
        }
        // SAFETY: The caller keeps the CQ.
        let room = unsafe { self.slots.take(attr.send_cq) };
        let Ok(room) = room else {
            stats::count(Stat::SlotsRefused);
            return None;
        };
        // SAFETY: As above.
        let limit = unsafe { (*dev).attrs.max_qp_wr };
        let cap = &attr.cap;
        match send_wr(cap.max_send_wr, cap.max_rdma_ctxs, room.len(), limit) {
            Some(depth) => Some((room, depth)),
            None => {
                stats::count(Stat::SlotsRefused);
                // SAFETY: As above.
                unsafe { self.slots.give_back(room) };
                None
            }
        }
    }
}

/// # Safety
///
/// Runs in the place of `ib_create_qp_kernel`, with its arguments.
unsafe extern "C" fn create_qp(
    pd: *mut rdma::ib_pd,
    attr: *mut rdma::ib_qp_init_attr,
    caller: *const c_char,
) -> *mut rdma::ib_qp {
    let inflight = InFlight::enter();
    // SAFETY: The caller's `pd` and `attr` are valid during the call.
    unsafe {
        let reserved = Service::get(&inflight)
            .and_then(|service| service.room(pd, &*attr).map(|room| (service, room)));
        let Some((service, (room, depth))) = reserved else {
            let qp = rdma::ib_create_qp_kernel(pd, attr, caller);
            drop(inflight);
            return qp;
        };
        // Core and driver write back what they made of it.
        let asked = core::ptr::read(attr);
        let more = room.len();
        (*attr).cap.max_send_wr = depth;
        let qp = rdma::ib_create_qp_kernel(pd, attr, caller);
        if from_err_ptr(qp).is_ok() {
            (*attr).cap.max_send_wr = (*attr).cap.max_send_wr.saturating_sub(more);
            service.slots.qp_made(qp, room);
            return qp;
        }
        stats::count(Stat::SlotsRefused);
        core::ptr::write(attr, asked);
        service.slots.give_back(room);
        rdma::ib_create_qp_kernel(pd, attr, caller)
    }
}

/// # Safety
///
/// Runs in the place of `ib_destroy_qp_user`, with its arguments.
unsafe extern "C" fn destroy_qp(qp: *mut rdma::ib_qp, udata: *mut rdma::ib_udata) -> c_int {
    let inflight = InFlight::enter();
    let found = Service::get(&inflight)
        .and_then(|service| service.slots.qp_going(qp).map(|slot| (service, slot)));
    // SAFETY: The call as it was.
    let ret = unsafe { rdma::ib_destroy_qp_user(qp, udata) };
    if let Some((service, slot)) = found {
        if ret == 0 {
            // SAFETY: Destroyed; the ULP still has the CQ.
            unsafe { service.slots.qp_gone(slot) };
        } else {
            service.slots.qp_stays(qp, slot);
        }
    }
    ret
}

/// # Safety
///
/// Runs in the place of `__ib_alloc_cq`, with its arguments.
unsafe extern "C" fn alloc_cq(
    dev: *mut rdma::ib_device,
    private: *mut c_void,
    nr_cqe: c_int,
    comp_vector: c_int,
    poll_ctx: rdma::ib_poll_context,
    caller: *const c_char,
) -> *mut rdma::ib_cq {
    let inflight = InFlight::enter();
    let direct = poll_ctx == rdma::ib_poll_context_IB_POLL_DIRECT;
    let more = own_cq_entries(direct);
    // SAFETY: The caller's arguments are valid during the call.
    unsafe {
        let larger = || {
            let service = Service::get(&inflight)?;
            let ulp = Name::copy(caller);
            if ulp.as_str() == CORE || !service.slots.is_open() || !serves(dev, Some(&ulp)) {
                return None;
            }
            let total = enlarged(u32::try_from(nr_cqe).ok()?, more, (*dev).attrs.max_cqe)?;
            let node = CqNode::new().ok()?;
            let total = c_int::try_from(total).ok()?;
            let cq = rdma::__ib_alloc_cq(dev, private, total, comp_vector, poll_ctx, caller);
            let cq = from_err_ptr(cq).ok()?;
            service.slots.cq_made(cq, more, node);
            Some(cq)
        };
        let cq = match larger() {
            Some(cq) => cq,
            None => rdma::__ib_alloc_cq(dev, private, nr_cqe, comp_vector, poll_ctx, caller),
        };
        drop(inflight);
        cq
    }
}

/// # Safety
///
/// Runs in the place of `ib_free_cq`, with its arguments.
unsafe extern "C" fn free_cq(cq: *mut rdma::ib_cq) {
    let inflight = InFlight::enter();
    // SAFETY: The CQ is there until the original is called.
    unsafe {
        let left = rdma::apm_cq_in_use(cq);
        let going = Service::get(&inflight).map(|service| (service, service.slots.cq_going(cq)));
        rdma::ib_free_cq(cq);
        match going {
            None => {}
            // Who frees a CQ that is in use has it left as it is.
            Some((service, orphans)) if left => service.slots.abandon(orphans),
            Some((_, orphans)) => room::cq_gone(orphans),
        }
    }
    drop(inflight);
}

/// # Safety
///
/// Runs in the place of `ib_cq_pool_get`, with its arguments.
unsafe extern "C" fn pool_get(
    dev: *mut rdma::ib_device,
    nr_cqe: c_uint,
    comp_vector_hint: c_int,
    poll_ctx: rdma::ib_poll_context,
) -> *mut rdma::ib_cq {
    let inflight = InFlight::enter();
    // SAFETY: The caller's arguments are valid during the call.
    unsafe {
        let larger = || {
            let service = Service::get(&inflight)?;
            if !service.slots.is_open() || !serves(dev, None) {
                return None;
            }
            // Beyond this the pool would make CQs for ever and never find one that is large enough.
            let total = enlarged(nr_cqe, NUDGES, (*dev).attrs.max_cqe)?;
            let node = CqNode::new().ok()?;
            let cq = rdma::ib_cq_pool_get(dev, total, comp_vector_hint, poll_ctx);
            let cq = from_err_ptr(cq).ok()?;
            if !service.slots.cq_lent(cq, node) {
                rdma::ib_cq_pool_put(cq, NUDGES);
            }
            Some(cq)
        };
        let cq = match larger() {
            Some(cq) => cq,
            None => rdma::ib_cq_pool_get(dev, nr_cqe, comp_vector_hint, poll_ctx),
        };
        drop(inflight);
        cq
    }
}

/// # Safety
///
/// Runs in the place of `ib_cq_pool_put`, with its arguments.
unsafe extern "C" fn pool_put(cq: *mut rdma::ib_cq, nr_cqe: c_uint) {
    let inflight = InFlight::enter();
    let more = Service::get(&inflight).map_or(0, |service| service.slots.cq_put(cq));
    // SAFETY: The call as it was, and what was lent to this module with it.
    unsafe { rdma::ib_cq_pool_put(cq, nr_cqe.saturating_add(more)) };
    drop(inflight);
}
