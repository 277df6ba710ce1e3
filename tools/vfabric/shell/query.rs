// SPDX-License-Identifier: GPL-2.0-only

//! `query_qp`: from what the transport and the HCA keep to `struct ib_qp_attr`.

use super::bindings;
use super::hca::{self, Hca};
use super::modify::{ib_type, mig_to_ib};
use super::qp::{self, Qp};
use crate::model::rc::Path;
use kernel::sync::ArcBorrow;

fn mtu_to_ib(mtu: u16) -> bindings::ib_mtu {
    (1..=5).find(|m| 128u16 << m == mtu).unwrap_or(0)
}

fn ah_attr(path: &Path) -> bindings::rdma_ah_attr {
    let mut ah = bindings::rdma_ah_attr {
        sl: path.sl,
        port_num: path.port.into(),
        type_: bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB,
        ..Default::default()
    };
    let ib = bindings::ib_ah_attr {
        dlid: path.dlid,
        src_path_bits: path.path_bits,
    };
    // SAFETY: `type_` says that this member is the one in use.
    unsafe { *ah.__bindgen_anon_1.ib.as_mut() = ib };
    if let Some(grh) = path.grh {
        ah.ah_flags = bindings::ib_ah_flags_IB_AH_GRH as u8;
        ah.grh.traffic_class = grh.tclass;
        ah.grh.flow_label = grh.flow_label;
        ah.grh.hop_limit = grh.hop_limit;
        // SAFETY: A GID is sixteen bytes however it is looked at.
        unsafe { *ah.grh.dgid.raw.as_mut() = grh.dgid };
    }
    ah
}

fn cap(qp: &Qp) -> bindings::ib_qp_cap {
    bindings::ib_qp_cap {
        max_send_wr: qp.cap.send_wr,
        max_recv_wr: qp.cap.recv_wr,
        max_send_sge: qp.cap.send_sge,
        max_recv_sge: qp.cap.recv_sge,
        ..Default::default()
    }
}

/// `query_qp`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn query(
    ib: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_attr,
    _mask: i32,
    init: *mut bindings::ib_qp_init_attr,
) -> i32 {
    // SAFETY: A live queue pair of a live device, and room for the answer.
    let (qp, hca, attr, init): (_, ArcBorrow<'_, Hca>, _, _) = unsafe {
        (
            qp::from_ib(ib),
            hca::from_ib((*ib).device),
            &mut *attr,
            &mut *init,
        )
    };
    let st = hca.shared.lock();
    let a = qp.attr(&st);
    *attr = bindings::ib_qp_attr {
        qp_state: qp.state(),
        cur_qp_state: qp.state(),
        qkey: a.qkey,
        sq_psn: a.sq_psn,
        qp_access_flags: a.access as i32,
        pkey_index: a.pkey_index,
        port_num: a.port.into(),
        cap: cap(&qp),
        ..Default::default()
    };
    if let Some(rc) = qp.rc(&st) {
        let r = rc.query();
        attr.path_mtu = mtu_to_ib(r.mtu);
        attr.path_mig_state = mig_to_ib(r.mig);
        attr.rq_psn = r.rq_psn;
        attr.sq_psn = r.sq_psn;
        attr.dest_qp_num = r.dest_qpn;
        attr.sq_draining = u8::from(r.sq_draining);
        attr.max_rd_atomic = r.max_rd_atomic;
        attr.max_dest_rd_atomic = r.max_dest_rd_atomic;
        attr.min_rnr_timer = r.min_rnr_timer;
        attr.retry_cnt = r.retry_cnt;
        attr.rnr_retry = r.rnr_retry;
        if let Some(p) = r.path {
            attr.ah_attr = ah_attr(&p);
            attr.port_num = p.port.into();
            attr.pkey_index = p.pkey_index;
            attr.timeout = p.timeout;
        }
        if let Some(p) = r.alt_path {
            attr.alt_ah_attr = ah_attr(&p);
            attr.alt_port_num = p.port.into();
            attr.alt_pkey_index = p.pkey_index;
            attr.alt_timeout = p.timeout;
        }
    }
    *init = bindings::ib_qp_init_attr {
        cap: cap(&qp),
        sq_sig_type: if qp.signal_all {
            bindings::ib_sig_type_IB_SIGNAL_ALL_WR
        } else {
            bindings::ib_sig_type_IB_SIGNAL_REQ_WR
        },
        qp_type: ib_type(qp.kind),
        port_num: attr.port_num,
        ..Default::default()
    };
    // SAFETY: As above.
    unsafe {
        init.event_handler = (*ib).event_handler;
        init.qp_context = (*ib).qp_context;
        init.send_cq = (*ib).send_cq;
        init.recv_cq = (*ib).recv_cq;
    }
    0
}
