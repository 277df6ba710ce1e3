// SPDX-License-Identifier: GPL-2.0-only

//! `modify_qp`: from `struct ib_qp_attr` to what the transport and the HCA keep.

use super::bindings;
use super::hca::{self, Hca};
use super::qp::{self, Kind, Qp};
use super::state::State;
use crate::model::packet::Grh;
use crate::model::rc::{self, MigState, Modify, Path};
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};

/// `enum ib_qp_state`
pub(crate) fn state_to_ib(state: rc::State) -> bindings::ib_qp_state {
    match state {
        rc::State::Reset => bindings::ib_qp_state_IB_QPS_RESET,
        rc::State::Init => bindings::ib_qp_state_IB_QPS_INIT,
        rc::State::Rtr => bindings::ib_qp_state_IB_QPS_RTR,
        rc::State::Rts => bindings::ib_qp_state_IB_QPS_RTS,
        rc::State::Sqd => bindings::ib_qp_state_IB_QPS_SQD,
        rc::State::Sqe => bindings::ib_qp_state_IB_QPS_SQE,
        rc::State::Err => bindings::ib_qp_state_IB_QPS_ERR,
    }
}

fn state_from_ib(state: bindings::ib_qp_state) -> Result<rc::State> {
    Ok(match state {
        bindings::ib_qp_state_IB_QPS_RESET => rc::State::Reset,
        bindings::ib_qp_state_IB_QPS_INIT => rc::State::Init,
        bindings::ib_qp_state_IB_QPS_RTR => rc::State::Rtr,
        bindings::ib_qp_state_IB_QPS_RTS => rc::State::Rts,
        bindings::ib_qp_state_IB_QPS_SQD => rc::State::Sqd,
        bindings::ib_qp_state_IB_QPS_SQE => rc::State::Sqe,
        bindings::ib_qp_state_IB_QPS_ERR => rc::State::Err,
        _ => return Err(EINVAL),
    })
}

/// `enum ib_mig_state`
pub(crate) fn mig_to_ib(mig: MigState) -> bindings::ib_mig_state {
    match mig {
        MigState::Migrated => bindings::ib_mig_state_IB_MIG_MIGRATED,
        MigState::Rearm => bindings::ib_mig_state_IB_MIG_REARM,
        MigState::Armed => bindings::ib_mig_state_IB_MIG_ARMED,
    }
}

fn mig_from_ib(mig: bindings::ib_mig_state) -> Result<MigState> {
    Ok(match mig {
        bindings::ib_mig_state_IB_MIG_MIGRATED => MigState::Migrated,
        bindings::ib_mig_state_IB_MIG_REARM => MigState::Rearm,
        bindings::ib_mig_state_IB_MIG_ARMED => MigState::Armed,
        _ => return Err(EINVAL),
    })
}

/// `enum ib_mtu` is the exponent less 7: 1 for 256 bytes, 5 for 4096.
fn mtu_from_ib(mtu: bindings::ib_mtu) -> Result<u16> {
    match mtu {
        1..=5 => Ok(128 << mtu),
        _ => Err(EINVAL),
    }
}

fn path(
    st: &State,
    qp: &Qp,
    ah: &bindings::rdma_ah_attr,
    port: u8,
    pkey_index: u16,
    timeout: u8,
) -> Path {
    // SAFETY: Of the union's members it is the InfiniBand one that is in use on our ports.
    let ib = unsafe { ah.__bindgen_anon_1.ib.as_ref() };
    let grh = (u32::from(ah.ah_flags) & bindings::ib_ah_flags_IB_AH_GRH != 0).then(|| Grh {
        tclass: ah.grh.traffic_class,
        flow_label: ah.grh.flow_label,
        hop_limit: ah.grh.hop_limit,
        sgid: st
            .fabric
            .port(st.hca_ref(qp.hca).node, port)
            .and_then(|p| p.gid(usize::from(ah.grh.sgid_index)))
            .unwrap_or([0; 16]),
        // SAFETY: A GID is sixteen bytes however it is looked at.
        dgid: unsafe { *ah.grh.dgid.raw.as_ref() },
    });
    Path {
        port,
        dlid: ib.dlid,
        path_bits: ib.src_path_bits,
        sl: ah.sl,
        grh,
        pkey_index,
        timeout,
    }
}

/// The attributes that `mask` names, for the transport.
fn rc_modify(st: &State, qp: &Qp, attr: &bindings::ib_qp_attr, mask: u32) -> Result<Modify> {
    use bindings::*;
    let has = |bit: ib_qp_attr_mask| mask & bit != 0;
    let rc = qp.rc(st).ok_or(EINVAL)?;
    let now = rc.query();
    let mut m = Modify::default();
    if has(ib_qp_attr_mask_IB_QP_STATE) {
        m.state = Some(state_from_ib(attr.qp_state)?);
    }
    let pkey_index = if has(ib_qp_attr_mask_IB_QP_PKEY_INDEX) {
        attr.pkey_index
    } else {
        qp.attr(st).pkey_index
    };
    if has(ib_qp_attr_mask_IB_QP_AV) {
        let timeout = now.path.map_or(0, |p| p.timeout);
        let port = match attr.ah_attr.port_num as u8 {
            0 => qp.attr(st).port,
            port => port,
        };
        m.path = Some(path(st, qp, &attr.ah_attr, port, pkey_index, timeout));
    }
    if has(ib_qp_attr_mask_IB_QP_ALT_PATH) {
        let (ah, port) = (&attr.alt_ah_attr, attr.alt_port_num as u8);
        let (pkey, timeout) = (attr.alt_pkey_index, attr.alt_timeout);
        m.alt_path = Some(path(st, qp, ah, port, pkey, timeout));
    }
    if has(ib_qp_attr_mask_IB_QP_PATH_MIG_STATE) {
        m.mig = Some(mig_from_ib(attr.path_mig_state)?);
    }
    if has(ib_qp_attr_mask_IB_QP_PATH_MTU) {
        m.mtu = Some(mtu_from_ib(attr.path_mtu)?);
    }
    let on = |bit: ib_qp_attr_mask, value: u8| has(bit).then_some(value);
    m.timeout = on(ib_qp_attr_mask_IB_QP_TIMEOUT, attr.timeout);
    m.retry_cnt = on(ib_qp_attr_mask_IB_QP_RETRY_CNT, attr.retry_cnt);
    m.rnr_retry = on(ib_qp_attr_mask_IB_QP_RNR_RETRY, attr.rnr_retry);
    m.min_rnr_timer = on(ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER, attr.min_rnr_timer);
    m.max_rd_atomic = on(ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic);
    m.max_dest_rd_atomic = on(
        ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC,
        attr.max_dest_rd_atomic,
    );
    m.dest_qpn = has(ib_qp_attr_mask_IB_QP_DEST_QPN).then_some(attr.dest_qp_num);
    m.sq_psn = has(ib_qp_attr_mask_IB_QP_SQ_PSN).then_some(attr.sq_psn);
    m.rq_psn = has(ib_qp_attr_mask_IB_QP_RQ_PSN).then_some(attr.rq_psn);
    m.sqd_notify =
        has(ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0);
    Ok(m)
}

pub(crate) fn ib_type(kind: Kind) -> bindings::ib_qp_type {
    match kind {
        Kind::Smi => bindings::ib_qp_type_IB_QPT_SMI,
        Kind::Gsi => bindings::ib_qp_type_IB_QPT_GSI,
        Kind::Ud => bindings::ib_qp_type_IB_QPT_UD,
        Kind::Rc => bindings::ib_qp_type_IB_QPT_RC,
    }
}

fn try_modify(
    hca: &Hca,
    st: &mut State,
    qp: &Arc<Qp>,
    attr: &bindings::ib_qp_attr,
    mask: u32,
) -> Result {
    use bindings::*;
    if mask & !(ib_qp_attr_mask_IB_QP_RATE_LIMIT - 1) != 0 {
        return Err(EOPNOTSUPP);
    }
    let has = |bit: ib_qp_attr_mask| mask & bit != 0;
    let cur = qp.state();
    if has(ib_qp_attr_mask_IB_QP_CUR_STATE) && attr.cur_qp_state != cur {
        return Err(EINVAL);
    }
    let next = if has(ib_qp_attr_mask_IB_QP_STATE) {
        attr.qp_state
    } else {
        cur
    };
    // SAFETY: A pure function of its arguments.
    if !unsafe { ib_modify_qp_is_ok(cur, next, ib_type(qp.kind), mask) } {
        return Err(EINVAL);
    }
    let port_ok = |port: u32| (1..=u32::from(hca.ports)).contains(&port);
    if has(ib_qp_attr_mask_IB_QP_PORT) && !port_ok(attr.port_num)
        || has(ib_qp_attr_mask_IB_QP_ALT_PATH) && !port_ok(attr.alt_port_num)
        || has(ib_qp_attr_mask_IB_QP_AV)
            && attr.ah_attr.port_num != 0
            && !port_ok(attr.ah_attr.port_num)
    {
        return Err(EINVAL);
    }
    if qp.kind == Kind::Rc {
        if st.hca(qp.hca).knobs.modify_fails() {
            return Err(EIO);
        }
        let m = rc_modify(st, qp, attr, mask)?;
        let reset = next == ib_qp_state_IB_QPS_RESET;
        if reset && has(ib_qp_attr_mask_IB_QP_STATE) {
            qp.reset_queues();
        }
        let mut ret = Err(EINVAL);
        st.with_rc(qp, |rc, host| {
            ret = rc.modify(&m, host).map_err(|_| EINVAL);
        });
        ret?;
    }
    let port = (qp.kind == Kind::Rc)
        .then(|| qp.rc(st).and_then(|rc| rc.paths().0).map(|p| p.port))
        .flatten();
    let a = qp.attr_mut(st);
    if has(ib_qp_attr_mask_IB_QP_PORT) {
        a.port = attr.port_num as u8;
    }
    if let Some(port) = port {
        a.port = port;
    }
    if has(ib_qp_attr_mask_IB_QP_ACCESS_FLAGS) {
        a.access = attr.qp_access_flags as u32;
    }
    if has(ib_qp_attr_mask_IB_QP_PKEY_INDEX) {
        a.pkey_index = attr.pkey_index;
    }
    if has(ib_qp_attr_mask_IB_QP_QKEY) {
        a.qkey = attr.qkey;
    }
    if has(ib_qp_attr_mask_IB_QP_SQ_PSN) {
        a.sq_psn = attr.sq_psn;
    }
    if qp.kind != Kind::Rc && has(ib_qp_attr_mask_IB_QP_STATE) {
        if next == ib_qp_state_IB_QPS_RESET {
            qp.reset_queues();
        }
        qp.set_state(next);
        if next == ib_qp_state_IB_QPS_ERR {
            qp.flush_sends(&mut st.out);
            qp.flush_receives(&mut st.out);
        }
    }
    Ok(())
}

/// `modify_qp`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn modify(
    ib: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_attr,
    mask: i32,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    // SAFETY: A live queue pair of a live device.
    let (qp, hca): (Arc<Qp>, ArcBorrow<'_, Hca>) =
        unsafe { (qp::from_ib(ib).into(), hca::from_ib((*ib).device)) };
    let (before, after) = if qp.kind == Kind::Rc {
        let knobs = hca.shared.lock().hca(hca.index).knobs;
        (knobs.modify_us, knobs.modified_us)
    } else {
        (0, 0)
    };
    take(before);
    let ret = {
        let mut st = hca.shared.lock();
        // SAFETY: Core hands us valid attributes.
        let ret = try_modify(&hca, &mut st, &qp, unsafe { &*attr }, mask as u32);
        st.tell();
        ret
    };
    match ret {
        Ok(()) => {
            // What was posted may be sent now, or has to be flushed.
            hca.shared.activate(qp.as_arc_borrow());
            take(after);
            0
        }
        Err(e) => e.to_errno(),
    }
}

/// Takes so long, in microseconds.
fn take(us: u32) {
    if us != 0 {
        kernel::time::delay::fsleep(kernel::time::Delta::from_micros(us.into()));
    }
}

/// The name of a state, as in debugfs.
pub(crate) fn state_name(state: rc::State) -> &'static str {
    match state {
        rc::State::Reset => "RESET",
        rc::State::Init => "INIT",
        rc::State::Rtr => "RTR",
        rc::State::Rts => "RTS",
        rc::State::Sqd => "SQD",
        rc::State::Sqe => "SQE",
        rc::State::Err => "ERR",
    }
}
