// SPDX-License-Identifier: GPL-2.0-only

//! Attributes of a device and its ports, and multicast membership.

use super::bindings;
use super::cq::MAX_CQE;
use super::hca::{self, Hca};
use super::qp::{self, Qp};
use super::region::MAX_PAGES;
use super::tables::MAX_QP;
use super::wq::{MAX_SGE, MAX_WR};
use crate::model::fabric::port::{GUIDS, PKEYS};
use kernel::prelude::*;
use kernel::sync::ArcBorrow;

/// Longest message, 1 GiB.
const MAX_MSG: u32 = 1 << 30;
/// READs outstanding, in either direction.
const MAX_RD: u32 = 16;

/// `query_device`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn query_device(
    ib: *mut bindings::ib_device,
    attr: *mut bindings::ib_device_attr,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    use bindings::*;
    // SAFETY: A live device, and room for the answer.
    let (guid, hca, a) = unsafe { ((*ib).node_guid, hca::from_ib(ib), &mut *attr) };
    *a = ib_device_attr::default();
    a.sys_image_guid = guid;
    a.max_mr_size = u64::MAX;
    a.page_size_cap = 0xffff_f000;
    a.hw_ver = 1;
    a.max_qp = MAX_QP;
    a.max_qp_wr = MAX_WR;
    a.device_cap_flags = (ib_device_cap_flags_IB_DEVICE_AUTO_PATH_MIG
        | ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS
        | ib_device_cap_flags_IB_DEVICE_SYS_IMAGE_GUID
        | ib_device_cap_flags_IB_DEVICE_PORT_ACTIVE_EVENT
        | ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN
        | ib_device_cap_flags_IB_DEVICE_CHANGE_PHY_PORT) as u64;
    a.kernel_cap_flags = u64::from(ib_kernel_cap_flags_IBK_LOCAL_DMA_LKEY);
    a.max_send_sge = MAX_SGE as u32;
    a.max_recv_sge = MAX_SGE as u32;
    a.max_sge_rd = MAX_SGE as u32;
    a.max_cq = 65536;
    a.max_cqe = MAX_CQE;
    a.max_srq = MAX_QP;
    a.max_srq_wr = MAX_WR;
    a.max_srq_sge = MAX_SGE as u32;
    a.max_mr = 1 << 20;
    a.max_pd = 65536;
    a.max_qp_rd_atom = MAX_RD;
    a.max_qp_init_rd_atom = MAX_RD;
    a.max_res_rd_atom = MAX_RD * MAX_QP;
    a.max_mcast_grp = 1024;
    a.max_mcast_qp_attach = 1024;
    a.max_total_mcast_qp_attach = 65536;
    a.max_ah = 1 << 20;
    a.max_pkeys = PKEYS as u16;
    a.local_ca_ack_delay = hca.shared.lock().hca(hca.index).knobs.ca_ack_delay;
    a.max_fast_reg_page_list_len = MAX_PAGES;
    0
}

/// `modify_device`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn modify_device(
    ib: *mut bindings::ib_device,
    mask: i32,
    modify: *mut bindings::ib_device_modify,
) -> i32 {
    let desc = bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_NODE_DESC;
    if mask as u32 & !desc != 0 {
        return EOPNOTSUPP.to_errno();
    }
    // SAFETY: A live device and a valid request.
    let (hca, to) = unsafe { (hca::from_ib(ib), (*modify).node_desc) };
    let bytes = to;
    hca.shared.lock().fabric.set_node_desc(hca.node, &bytes);
    // SAFETY: As above; core shows what stands here.
    unsafe { (*ib).node_desc = to };
    0
}

/// Codes of LinkWidthActive and LinkSpeedActive are those of `enum ib_port_width` and
/// `enum ib_port_speed`.
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn query_port(
    ib: *mut bindings::ib_device,
    port: u32,
    attr: *mut bindings::ib_port_attr,
) -> i32 {
    // SAFETY: A live device, and room for the answer, which core has set to zero.
    let (hca, a) = unsafe { (hca::from_ib(ib), &mut *attr) };
    hca.with_port(port, |p| {
        a.subnet_prefix = p.gid_prefix;
        a.state = p.state as u32;
        a.phys_state = p.phys as u8;
        a.max_mtu = bindings::ib_mtu_IB_MTU_4096;
        a.active_mtu = p.neighbor_mtu.into();
        a.gid_tbl_len = GUIDS as i32;
        a.pkey_tbl_len = PKEYS as u16;
        a.port_cap_flags = p.cap_mask;
        a.max_msg_sz = MAX_MSG;
        a.bad_pkey_cntr = p.pkey_violations.into();
        a.qkey_viol_cntr = p.qkey_violations.into();
        a.lid = p.lid.into();
        a.lmc = p.lmc;
        a.sm_lid = p.sm_lid.into();
        a.sm_sl = p.sm_sl;
        a.max_vl_num = 1;
        a.subnet_timeout = p.subnet_timeout;
        a.active_width = p.width_active;
        a.active_speed = p.speed_active.into();
    })
}

/// `modify_port`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn modify_port(
    ib: *mut bindings::ib_device,
    port: u32,
    mask: i32,
    modify: *mut bindings::ib_port_modify,
) -> i32 {
    // SAFETY: A live device and a valid request.
    let (hca, m) = unsafe { (hca::from_ib(ib), &*modify) };
    let number = u8::try_from(port).unwrap_or(0);
    let (set, clear) = (m.set_port_cap_mask, m.clr_port_cap_mask);
    let mut st = hca.shared.lock();
    st.fabric.modify_port(hca.node, number, set, clear);
    if mask as u32 & bindings::ib_port_modify_flags_IB_PORT_RESET_QKEY_CNTR != 0 {
        st.fabric.reset_bad_qkey(hca.node, number);
    }
    0
}

/// `get_port_immutable`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn port_immutable(
    _ib: *mut bindings::ib_device,
    _port: u32,
    immutable: *mut bindings::ib_port_immutable,
) -> i32 {
    // SAFETY: Room for the answer.
    unsafe {
        *immutable = bindings::ib_port_immutable {
            pkey_tbl_len: PKEYS as i32,
            gid_tbl_len: GUIDS as i32,
            core_cap_flags: bindings::vf_core_cap(),
            max_mad_size: bindings::IB_MGMT_MAD_SIZE,
        };
    }
    0
}

/// `query_gid`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn query_gid(
    ib: *mut bindings::ib_device,
    port: u32,
    index: i32,
    gid: *mut bindings::ib_gid,
) -> i32 {
    // SAFETY: A live device, and room for the answer.
    let (hca, out) = unsafe { (hca::from_ib(ib), &mut *gid) };
    let index = match usize::try_from(index) {
        Ok(index) if index < GUIDS => index,
        _ => return EINVAL.to_errno(),
    };
    // SAFETY: A GID is sixteen bytes however it is looked at.
    let raw = unsafe { out.raw.as_mut() };
    hca.with_port(port, |p| *raw = p.gid(index).unwrap_or([0; 16]))
}

/// `query_pkey`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn query_pkey(
    ib: *mut bindings::ib_device,
    port: u32,
    index: u16,
    pkey: *mut u16,
) -> i32 {
    // SAFETY: A live device, and room for the answer.
    let (hca, out) = unsafe { (hca::from_ib(ib), &mut *pkey) };
    if usize::from(index) >= PKEYS {
        return EINVAL.to_errno();
    }
    hca.with_port(port, |p| {
        *out = p.pkeys.get(usize::from(index)).copied().unwrap_or(0);
    })
}

/// `get_dev_fw_str`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn fw_version(
    _ib: *mut bindings::ib_device,
    out: *mut kernel::ffi::c_char,
) {
    for (i, b) in c"0.1.0".to_bytes_with_nul().iter().enumerate() {
        // SAFETY: Core gives room for IB_FW_VERSION_NAME_MAX (64) bytes.
        unsafe { *out.add(i) = *b as kernel::ffi::c_char };
    }
}

/// There are no user space verbs; core wants it there before it moves a device between namespaces.
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn disassociate(_context: *mut bindings::ib_ucontext) {}

/// What the multicast operations are about: HCA, queue pair and the group's GID.
///
/// # Safety
///
/// A live queue pair of a live device, and a valid GID.
unsafe fn group_of<'a>(
    ib: *mut bindings::ib_qp,
    gid: *mut bindings::ib_gid,
) -> (ArcBorrow<'a, Hca>, ArcBorrow<'a, Qp>, [u8; 16]) {
    // SAFETY: By the function's contract; a GID is sixteen bytes however it is looked at.
    unsafe {
        (
            hca::from_ib((*ib).device),
            qp::from_ib(ib),
            *(*gid).raw.as_ref(),
        )
    }
}

/// `attach_mcast`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn attach_mcast(
    ib: *mut bindings::ib_qp,
    gid: *mut bindings::ib_gid,
    _lid: u16,
) -> i32 {
    // SAFETY: What core gives.
    let (hca, qp, gid) = unsafe { group_of(ib, gid) };
    let mut st = hca.shared.lock();
    match st.hca(hca.index).attach(qp.into(), gid) {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}

/// `detach_mcast`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn detach_mcast(
    ib: *mut bindings::ib_qp,
    gid: *mut bindings::ib_gid,
    _lid: u16,
) -> i32 {
    // SAFETY: What core gives.
    let (hca, qp, gid) = unsafe { group_of(ib, gid) };
    let mut st = hca.shared.lock();
    match st.hca(hca.index).detach(&qp, gid) {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}
