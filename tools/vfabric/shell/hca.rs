// SPDX-License-Identifier: GPL-2.0

//! An HCA as core sees it: the `ib_device`, its attributes and its ports.

use super::bindings;
use super::cq::{self, VCq, MAX_CQE};
use super::engine::Shared;
use super::mad;
use super::modify;
use super::mr::{self, MAX_PAGES};
use super::pd::{self, VAh, VPd};
use super::qp::{self, VQp};
use super::state::MAX_QP;
use super::wq::{MAX_SGE, MAX_WR};
use crate::model::fabric::port::PKEYS;
use crate::model::fabric::{NodeId, Port};
use core::mem::size_of;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::{Arc, ArcBorrow};

/// Longest message, 1 GiB.
const MAX_MSG: u32 = 1 << 30;
/// READs outstanding, in either direction.
const MAX_RD: u32 = 16;

/// An HCA.
pub(crate) struct Hca {
    pub(crate) shared: Arc<Shared>,
    /// Index among the HCAs.
    pub(crate) index: usize,
    pub(crate) node: NodeId,
    pub(crate) ports: u8,
    /// Registered with core, and not about to go.
    pub(crate) live: Atomic<bool>,
    ib: *mut bindings::ib_device,
}

// SAFETY: `ib` is only used while the device is registered, for calls that may come from anywhere.
unsafe impl Send for Hca {}
// SAFETY: As above.
unsafe impl Sync for Hca {}

/// Core's device with ours behind it.
#[repr(C)]
struct VDev {
    ib: bindings::ib_device,
    /// From `Arc::into_raw`.
    inner: *const Hca,
}

/// The HCA behind core's device.
///
/// # Safety
///
/// `ib` is a device of ours that has not been freed, for `'a`.
pub(crate) unsafe fn from_ib<'a>(ib: *mut bindings::ib_device) -> ArcBorrow<'a, Hca> {
    // SAFETY: `inner` is set before the device can be seen and owned until it is freed.
    unsafe { ArcBorrow::from_raw((*ib.cast::<VDev>()).inner) }
}

impl Hca {
    /// Core's device.
    pub(crate) fn ib(&self) -> *mut bindings::ib_device {
        self.ib
    }

    /// Calls `f` with a port, the engine's lock held; -EINVAL where there is none.
    fn with_port(&self, port: u32, f: impl FnOnce(&Port)) -> i32 {
        let st = self.shared.lock();
        let number = u8::try_from(port).unwrap_or(0);
        match st.fabric.port(self.node, number) {
            Some(p) => {
                f(p);
                0
            }
            None => EINVAL.to_errno(),
        }
    }
}

/// A device that core has allocated and not registered yet.
pub(crate) struct Device {
    hca: Arc<Hca>,
}

impl Device {
    /// Allocates the device of the HCA `index`, called `name`.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        index: usize,
        node: NodeId,
        module: &'static ThisModule,
    ) -> Result<Self> {
        let (ports, guid, desc) = {
            let st = shared.lock();
            let n = st.fabric.node(node).ok_or(EINVAL)?;
            (n.port_count(), n.guid, n.desc)
        };
        let ops = ops(module)?;
        // SAFETY: The device of the whole machine's network namespace; `VDev` begins with core's
        // device.
        let ib = unsafe {
            bindings::_ib_alloc_device(size_of::<VDev>(), &raw mut kernel::bindings::init_net)
        };
        if ib.is_null() {
            return Err(ENOMEM);
        }
        let hca = Arc::new(
            Hca {
                shared: shared.clone(),
                index,
                node,
                ports,
                live: Atomic::new(false),
                ib,
            },
            GFP_KERNEL,
        )
        .inspect_err(|_| {
            // SAFETY: Allocated above, seen by nobody.
            unsafe { bindings::ib_dealloc_device(ib) };
        })?;
        // SAFETY: Ours alone until it is registered.
        unsafe {
            (*ib.cast::<VDev>()).inner = hca.clone().into_raw();
            (*ib).node_type = bindings::RDMA_NODE_IB_CA as u8;
            (*ib).phys_port_cnt = ports.into();
            (*ib).num_comp_vectors = bindings::vf_cpus() as i32;
            (*ib).local_dma_lkey = 0;
            (*ib).node_guid = guid.to_be();
            for (to, from) in (*ib).node_desc.iter_mut().zip(desc) {
                *to = from as kernel::ffi::c_char;
            }
            bindings::ib_set_device_ops(ib, &*ops);
        }
        Ok(Self { hca })
    }

    /// The HCA.
    pub(crate) fn hca(&self) -> &Arc<Hca> {
        &self.hca
    }

    /// Registers the device with core; clients use it before this returns.
    pub(crate) fn register(&self, name: &CStr) -> Result {
        // SAFETY: A complete device. No DMA device: addresses are kernel pointers.
        let ret = unsafe {
            bindings::ib_register_device(self.hca.ib, name.as_char_ptr(), core::ptr::null_mut())
        };
        kernel::error::to_result(ret)
    }

    /// Unregisters: clients let go of all they have.
    pub(crate) fn unregister(&self) {
        // SAFETY: Registered, and unregistered once (`device` sees to that).
        unsafe { bindings::ib_unregister_device(self.hca.ib) };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: Not registered (any more), so that nobody finds `inner` there; the reference is
        // the one that `new` gave.
        unsafe {
            drop(Arc::from_raw((*self.hca.ib.cast::<VDev>()).inner));
            bindings::ib_dealloc_device(self.hca.ib);
        }
    }
}

/// What core is to call; it copies this.
fn ops(module: &'static ThisModule) -> Result<KBox<bindings::ib_device_ops>> {
    let mut ops = KBox::new(bindings::ib_device_ops::default(), GFP_KERNEL)?;
    ops.owner = module.as_ptr();
    ops.driver_id = bindings::rdma_driver_id_RDMA_DRIVER_UNKNOWN;
    ops.uverbs_abi_ver = 1;
    ops.query_device = Some(query_device);
    ops.modify_device = Some(modify_device);
    ops.query_port = Some(query_port);
    ops.modify_port = Some(modify_port);
    ops.get_port_immutable = Some(port_immutable);
    ops.query_gid = Some(query_gid);
    ops.query_pkey = Some(query_pkey);
    ops.get_dev_fw_str = Some(fw_version);
    ops.process_mad = Some(mad::process);
    ops.disassociate_ucontext = Some(disassociate);
    ops.alloc_pd = Some(pd::alloc);
    ops.dealloc_pd = Some(pd::dealloc);
    ops.create_ah = Some(pd::create_ah);
    ops.query_ah = Some(pd::query_ah);
    ops.destroy_ah = Some(pd::destroy_ah);
    ops.create_cq = Some(cq::create);
    ops.destroy_cq = Some(cq::destroy);
    ops.poll_cq = Some(cq::poll);
    ops.req_notify_cq = Some(cq::req_notify);
    ops.get_dma_mr = Some(mr::get_dma);
    ops.reg_user_mr = Some(mr::reg_user);
    ops.alloc_mr = Some(mr::alloc);
    ops.dereg_mr = Some(mr::dereg);
    ops.map_mr_sg = Some(mr::map_sg);
    ops.create_qp = Some(qp::create);
    ops.modify_qp = Some(modify::modify);
    ops.query_qp = Some(modify::query);
    ops.destroy_qp = Some(qp::destroy);
    ops.post_send = Some(qp::post_send);
    ops.post_recv = Some(qp::post_recv);
    ops.attach_mcast = Some(attach_mcast);
    ops.detach_mcast = Some(detach_mcast);
    ops.size_ib_pd = size_of::<VPd>();
    ops.size_ib_ah = size_of::<VAh>();
    ops.size_ib_cq = size_of::<VCq>();
    ops.size_ib_qp = size_of::<VQp>();
    Ok(ops)
}

unsafe extern "C" fn query_device(
    ib: *mut bindings::ib_device,
    attr: *mut bindings::ib_device_attr,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    use bindings::*;
    // SAFETY: A live device, and room for the answer.
    let (guid, a) = unsafe { ((*ib).node_guid, &mut *attr) };
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
    a.local_ca_ack_delay = 8;
    a.max_fast_reg_page_list_len = MAX_PAGES;
    0
}

unsafe extern "C" fn modify_device(
    ib: *mut bindings::ib_device,
    mask: i32,
    modify: *mut bindings::ib_device_modify,
) -> i32 {
    let desc = bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_NODE_DESC;
    if mask as u32 & !desc != 0 {
        return EOPNOTSUPP.to_errno();
    }
    // SAFETY: A live device and a valid request.
    let (hca, to) = unsafe { (from_ib(ib), (*modify).node_desc) };
    let bytes = to.map(|c| c as u8);
    hca.shared.lock().fabric.set_node_desc(hca.node, &bytes);
    // SAFETY: As above; core shows what stands here.
    unsafe { (*ib).node_desc = to };
    0
}

/// Codes of LinkWidthActive and LinkSpeedActive are those of `enum ib_port_width` and
/// `enum ib_port_speed`.
unsafe extern "C" fn query_port(
    ib: *mut bindings::ib_device,
    port: u32,
    attr: *mut bindings::ib_port_attr,
) -> i32 {
    // SAFETY: A live device, and room for the answer, which core has set to zero.
    let (hca, a) = unsafe { (from_ib(ib), &mut *attr) };
    hca.with_port(port, |p| {
        a.state = p.state as u32;
        a.phys_state = p.phys as u8;
        a.max_mtu = bindings::ib_mtu_IB_MTU_4096;
        a.active_mtu = p.neighbor_mtu.into();
        a.gid_tbl_len = 1;
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

unsafe extern "C" fn modify_port(
    ib: *mut bindings::ib_device,
    port: u32,
    mask: i32,
    modify: *mut bindings::ib_port_modify,
) -> i32 {
    // SAFETY: A live device and a valid request.
    let (hca, m) = unsafe { (from_ib(ib), &*modify) };
    let number = u8::try_from(port).unwrap_or(0);
    let (set, clear) = (m.set_port_cap_mask, m.clr_port_cap_mask);
    let mut st = hca.shared.lock();
    st.fabric.modify_port(hca.node, number, set, clear);
    if mask as u32 & bindings::ib_port_modify_flags_IB_PORT_RESET_QKEY_CNTR != 0 {
        st.fabric.reset_bad_qkey(hca.node, number);
    }
    0
}

unsafe extern "C" fn port_immutable(
    _ib: *mut bindings::ib_device,
    _port: u32,
    immutable: *mut bindings::ib_port_immutable,
) -> i32 {
    // SAFETY: Room for the answer.
    unsafe {
        *immutable = bindings::ib_port_immutable {
            pkey_tbl_len: PKEYS as i32,
            gid_tbl_len: 1,
            core_cap_flags: bindings::vf_core_cap(),
            max_mad_size: bindings::IB_MGMT_MAD_SIZE,
        };
    }
    0
}

unsafe extern "C" fn query_gid(
    ib: *mut bindings::ib_device,
    port: u32,
    index: i32,
    gid: *mut bindings::ib_gid,
) -> i32 {
    // SAFETY: A live device, and room for the answer.
    let (hca, out) = unsafe { (from_ib(ib), &mut *gid) };
    if index != 0 {
        return EINVAL.to_errno();
    }
    // SAFETY: A GID is sixteen bytes however it is looked at.
    let raw = unsafe { out.raw.as_mut() };
    hca.with_port(port, |p| *raw = p.gid(0).unwrap_or([0; 16]))
}

unsafe extern "C" fn query_pkey(
    ib: *mut bindings::ib_device,
    port: u32,
    index: u16,
    pkey: *mut u16,
) -> i32 {
    // SAFETY: A live device, and room for the answer.
    let (hca, out) = unsafe { (from_ib(ib), &mut *pkey) };
    if usize::from(index) >= PKEYS {
        return EINVAL.to_errno();
    }
    hca.with_port(port, |p| {
        *out = p.pkeys.get(usize::from(index)).copied().unwrap_or(0);
    })
}

unsafe extern "C" fn fw_version(_ib: *mut bindings::ib_device, out: *mut kernel::ffi::c_char) {
    for (i, b) in c"0.1.0".to_bytes_with_nul().iter().enumerate() {
        // SAFETY: Core gives room for IB_FW_VERSION_NAME_MAX (64) bytes.
        unsafe { *out.add(i) = *b as kernel::ffi::c_char };
    }
}

/// There are no user space verbs; core wants it there before it moves a device between namespaces.
unsafe extern "C" fn disassociate(_context: *mut bindings::ib_ucontext) {}

unsafe extern "C" fn attach_mcast(
    ib: *mut bindings::ib_qp,
    gid: *mut bindings::ib_gid,
    _lid: u16,
) -> i32 {
    // SAFETY: A live queue pair of a live device; a GID is sixteen bytes however it is looked at.
    let (hca, qp, gid) = unsafe { (from_ib((*ib).device), qp::from_ib(ib), *(*gid).raw.as_ref()) };
    let mut st = hca.shared.lock();
    match st.hca(hca.index).attach(qp.into(), gid) {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}

unsafe extern "C" fn detach_mcast(
    ib: *mut bindings::ib_qp,
    gid: *mut bindings::ib_gid,
    _lid: u16,
) -> i32 {
    // SAFETY: As in `attach_mcast`.
    let (hca, qp, gid) = unsafe { (from_ib((*ib).device), qp::from_ib(ib), *(*gid).raw.as_ref()) };
    let mut st = hca.shared.lock();
    match st.hca(hca.index).detach(&qp, gid) {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}
