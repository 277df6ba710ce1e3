// SPDX-License-Identifier: GPL-2.0-only

//! An HCA as core sees it: the `ib_device` and what core calls of it.

use super::attr;
use super::bindings;
use super::cq::{self, VCq};
use super::engine::Shared;
use super::life;
use super::mad;
use super::modify;
use super::mr;
use super::pd::{self, VAh, VPd};
use super::post;
use super::qp::VQp;
use super::query;
use super::srq::{self, VSrq};
use crate::model::fabric::{NodeId, Port};
use core::mem::size_of;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::{Arc, ArcBorrow};

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
    pub(crate) fn with_port(&self, port: u32, f: impl FnOnce(&Port)) -> i32 {
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
    ops.query_device = Some(attr::query_device);
    ops.modify_device = Some(attr::modify_device);
    ops.query_port = Some(attr::query_port);
    ops.modify_port = Some(attr::modify_port);
    ops.get_port_immutable = Some(attr::port_immutable);
    ops.query_gid = Some(attr::query_gid);
    ops.query_pkey = Some(attr::query_pkey);
    ops.get_dev_fw_str = Some(attr::fw_version);
    ops.process_mad = Some(mad::process);
    ops.disassociate_ucontext = Some(attr::disassociate);
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
    ops.create_qp = Some(life::create);
    ops.modify_qp = Some(modify::modify);
    ops.query_qp = Some(query::query);
    ops.destroy_qp = Some(life::destroy);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.create_srq = Some(srq::create);
    ops.modify_srq = Some(srq::modify);
    ops.query_srq = Some(srq::query);
    ops.destroy_srq = Some(srq::destroy);
    ops.post_srq_recv = Some(srq::post_recv);
    ops.attach_mcast = Some(attr::attach_mcast);
    ops.detach_mcast = Some(attr::detach_mcast);
    ops.size_ib_pd = size_of::<VPd>();
    ops.size_ib_ah = size_of::<VAh>();
    ops.size_ib_cq = size_of::<VCq>();
    ops.size_ib_qp = size_of::<VQp>();
    ops.size_ib_srq = size_of::<VSrq>();
    Ok(ops)
}
