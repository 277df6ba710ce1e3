// SPDX-License-Identifier: GPL-2.0-only

//! Creation and end of a queue pair.

use super::bindings;
use super::cq::{self, Cq, QpHandle};
use super::hca::{self, Hca};
use super::pd;
use super::qp::{self, Cap, Kind, Parts, Qp, VQp};
use super::srq::{self, Srq};
use super::wq::{RecvQueue, SendQueue, MAX_SGE, MAX_WR};
use crate::model::knobs::Knobs;
use crate::model::rc::Rc;
use kernel::prelude::*;
use kernel::sync::atomic::Release;
use kernel::sync::{Arc, ArcBorrow};

/// # Safety
///
/// `ib` is new, `attr` valid, and both are of a device of ours.
unsafe fn try_create(ib: *mut bindings::ib_qp, attr: &mut bindings::ib_qp_init_attr) -> Result {
    // SAFETY: By the caller's promise.
    let hca: ArcBorrow<'_, Hca> = unsafe { hca::from_ib((*ib).device) };
    let kind = match attr.qp_type {
        bindings::ib_qp_type_IB_QPT_SMI => Kind::Smi,
        bindings::ib_qp_type_IB_QPT_GSI => Kind::Gsi,
        bindings::ib_qp_type_IB_QPT_UD => Kind::Ud,
        bindings::ib_qp_type_IB_QPT_RC => Kind::Rc,
        _ => return Err(EOPNOTSUPP),
    };
    if attr.create_flags != 0 || (!attr.srq.is_null() && kind != Kind::Rc) {
        return Err(EOPNOTSUPP);
    }
    let srq: Option<Arc<Srq>> = if attr.srq.is_null() {
        None
    } else {
        // SAFETY: A live queue of the same device.
        Some(unsafe { srq::from_ib(attr.srq).into() })
    };
    let c = &mut attr.cap;
    let sge_ok = c.max_send_sge as usize <= MAX_SGE && c.max_recv_sge as usize <= MAX_SGE;
    if !sge_ok || c.max_send_wr > MAX_WR || c.max_recv_wr > MAX_WR || c.max_inline_data != 0 {
        return Err(EINVAL);
    }
    let special = matches!(kind, Kind::Smi | Kind::Gsi);
    let port = if special { attr.port_num } else { 0 };
    if special && (port == 0 || port > u32::from(hca.ports)) {
        return Err(EINVAL);
    }
    let mut cap = Cap {
        send_wr: c.max_send_wr,
        recv_wr: c.max_recv_wr,
        send_sge: c.max_send_sge,
        recv_sge: c.max_recv_sge,
    };
    let knobs = hca.shared.lock().hca(hca.index).knobs;
    if kind == Kind::Rc && !Knobs::allows(knobs.max_send_wr, c.max_send_wr) {
        return Err(ENOMEM);
    }
    if knobs.round_depth {
        c.max_send_wr = c.max_send_wr.next_power_of_two();
        cap.send_wr = c.max_send_wr;
    }
    let sq = SendQueue::new(cap.send_wr, cap.send_sge, kind != Kind::Rc)?;
    let recv_wr = if srq.is_some() { 0 } else { cap.recv_wr };
    let rq = RecvQueue::new(recv_wr, cap.recv_sge)?;
    // SAFETY: Core has set these before it calls; queue pairs of ours have both queues.
    let (pd, send_cq, recv_cq) = unsafe {
        if attr.send_cq.is_null() || attr.recv_cq.is_null() {
            return Err(EINVAL);
        }
        (
            pd::id((*ib).pd),
            Arc::<Cq>::from(cq::from_ib(attr.send_cq)),
            Arc::<Cq>::from(cq::from_ib(attr.recv_cq)),
        )
    };
    let signal_all = attr.sq_sig_type == bindings::ib_sig_type_IB_SIGNAL_ALL_WR;
    let mut st = hca.shared.lock();
    let qpn = match kind {
        Kind::Smi => 0,
        Kind::Gsi => 1,
        _ => st.hca(hca.index).take_qpn()?,
    };
    let rc = match kind {
        Kind::Rc => {
            let mut rc = KBox::new(Rc::new(qpn), GFP_KERNEL)?;
            rc.set_quirks(st.hca(hca.index).knobs.rc);
            Some(rc)
        }
        _ => None,
    };
    let parts = Parts {
        handle: QpHandle(ib),
        hca: hca.index,
        qpn,
        kind,
        port: port as u8,
        pd,
        signal_all,
        cap,
        send_cq,
        recv_cq,
        srq,
        sq,
        rq,
        rc,
    };
    let qp = Qp::new(parts, hca.shared.mutex())?;
    st.hca(hca.index).insert(qp.clone())?;
    // SAFETY: A new object, by the caller's promise.
    unsafe {
        (*ib).qp_num = qpn;
        VQp::attach(ib, qp);
    }
    Ok(())
}

/// `create_qp`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn create(
    ib: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_init_attr,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    // SAFETY: Core hands us a new object and valid attributes.
    match unsafe { try_create(ib, &mut *attr) } {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}

/// `destroy_qp`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn destroy(
    ib: *mut bindings::ib_qp,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    // SAFETY: The device outlives its objects.
    let hca: ArcBorrow<'_, Hca> = unsafe { hca::from_ib((*ib).device) };
    // SAFETY: Created earlier, not destroyed yet.
    let qp: Arc<Qp> = unsafe { qp::from_ib(ib) }.into();
    // A port's receive completions may be in the hands of ib_mad, which destroys QP0 and QP1 before
    // it stops its queue's work, and gives each buffer back to the queue pair it came from.
    let mads = matches!(qp.kind, Kind::Smi | Kind::Gsi);
    let scrub = {
        let mut st = hca.shared.lock();
        qp.dead.store(true, Release);
        qp.stop_timer(&mut st);
        let h = st.hca(hca.index);
        h.remove(&qp);
        h.knobs.scrub || mads
    };
    hca.shared.wait_for_delivery();
    if scrub {
        qp.send_cq.scrub(qp.handle);
        if !Arc::ptr_eq(&qp.send_cq, &qp.recv_cq) {
            qp.recv_cq.scrub(qp.handle);
        }
    }
    if mads {
        // SAFETY: The consumer has both queues longer than the queue pair, which is why they are
        // alive; core alone makes such a queue pair, and destroys it from a thread, not from there.
        unsafe {
            bindings::vf_cq_flush(qp.send_cq.ib);
            bindings::vf_cq_flush(qp.recv_cq.ib);
        }
    }
    // SAFETY: Created earlier, destroyed once.
    drop(unsafe { VQp::detach(ib) });
    0
}
