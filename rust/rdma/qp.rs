// SPDX-License-Identifier: GPL-2.0-only

//! Queue pairs, looked up by number at each use.
//!
//! A QP belongs to its ULP and may go at any moment; a reference taken here blocks its destruction,
//! so it is held briefly and in process context only. Numbers are used again: a number is no identity.
//!
//! C header: [`include/rdma/restrack.h`](srctree/include/rdma/restrack.h)

use super::bindings as rdma;
use super::name::Name;
use super::path::{AhAttr, Path};
use crate::apm::state::PathMigState;
use core::mem::offset_of;
use core::ptr::NonNull;
use kernel::error::{from_err_ptr, to_result};
use kernel::ffi::c_int;
use kernel::prelude::*;

/// A QP that is not destroyed as long as this lives.
///
/// # Invariants
///
/// The pointer is valid and this holds one restrack reference.
pub(crate) struct QpRef(NonNull<rdma::ib_qp>);

impl QpRef {
    /// Looks a QP up by its number. Process context.
    ///
    /// # Safety
    ///
    /// `dev` stays registered as long as the result lives.
    pub(crate) unsafe fn find(dev: *mut rdma::ib_device, qpn: u32) -> Option<Self> {
        // SAFETY: By the function's contract.
        let entry = from_err_ptr(unsafe {
            rdma::rdma_restrack_get_byid(dev, rdma::rdma_restrack_type_RDMA_RESTRACK_QP, qpn)
        })
        .ok()?;
        // SAFETY: Entries of the type QP lie in a `struct ib_qp`.
        let qp = unsafe {
            entry
                .byte_sub(offset_of!(rdma::ib_qp, res))
                .cast::<rdma::ib_qp>()
        };
        // INVARIANT: The lookup took a reference.
        NonNull::new(qp).map(Self)
    }

    /// The QP, as long as this lives.
    pub(crate) fn raw(&self) -> *mut rdma::ib_qp {
        self.0.as_ptr()
    }

    /// Whether it belongs to a process.
    pub(crate) fn is_user(&self) -> bool {
        // SAFETY: By the invariant; set before the QP can be found.
        unsafe { (*self.raw()).res.user }
    }

    /// The module that allocated the QP's protection domain: the ULP, also where rdma_cm made the QP.
    pub(crate) fn owner(&self) -> Name {
        if self.is_user() {
            return Name::from_str("user");
        }
        // SAFETY: By the invariant the QP and so its PD and the PD's owner are there; the name is a
        // string of that module's.
        unsafe {
            let pd = (*self.raw()).pd;
            if pd.is_null() {
                return Name::from_str("kernel");
            }
            Name::copy((*pd).res.kern_name)
        }
    }

    /// The number of the QP that a kernel's RC QP in RTS is connected to. Sleeps.
    pub(crate) fn connected_to(&self) -> Option<u32> {
        // SAFETY: By the invariant; neither changes in the life of a QP.
        let kind = unsafe { (*self.raw()).qp_type };
        if kind != rdma::ib_qp_type_IB_QPT_RC || self.is_user() {
            return None;
        }
        self.query().map(|attr| attr.dest_qp_num)
    }

    /// Asks the HCA for `path_mig_state`; `None` where the QP is not in RTS or, with `peer_qpn` not
    /// 0, not connected to that QP. Sleeps: a firmware command on real HCAs.
    pub(crate) fn path_mig_state(&self, peer_qpn: u32) -> Option<PathMigState> {
        let attr = self
            .query()
            .filter(|attr| peer_qpn == 0 || attr.dest_qp_num == peer_qpn)?;
        match attr.path_mig_state {
            rdma::ib_mig_state_IB_MIG_ARMED => Some(PathMigState::Armed),
            rdma::ib_mig_state_IB_MIG_REARM => Some(PathMigState::Rearm),
            rdma::ib_mig_state_IB_MIG_MIGRATED => Some(PathMigState::Migrated),
            _ => None,
        }
    }

    /// Commands the migration of an ARMED QP to its alternate path. Sleeps.
    ///
    /// EINVAL or what the driver says: the QP is not ARMED any more, or in another state than RTS.
    pub(crate) fn migrate(&self) -> Result {
        let mut attr = rdma::ib_qp_attr {
            path_mig_state: rdma::ib_mig_state_IB_MIG_MIGRATED,
            ..Default::default()
        };
        let mask = rdma::ib_qp_attr_mask_IB_QP_PATH_MIG_STATE;
        // SAFETY: By the invariant; the attributes are ours.
        to_result(unsafe { rdma::ib_modify_qp(self.raw(), &mut attr, mask as c_int) })
    }

    /// Loads a path as the alternate and asks for REARM. Sleeps.
    ///
    /// `timeout`: of the path's ACKs, 4.096 us x 2^n. What the driver says where it will not.
    ///
    /// # Safety
    ///
    /// The QP is one of `dev`, which stays registered during this call.
    pub(crate) unsafe fn load_alternate(
        &self,
        dev: *mut rdma::ib_device,
        path: &Path,
        timeout: u8,
    ) -> Result {
        let mut pkey_index = 0;
        // SAFETY: By the function's contract and the invariant; what the attributes refer to is kept by
        // `ah` during the call, and `ib_modify_qp` takes references of its own.
        unsafe {
            to_result(rdma::ib_find_cached_pkey(
                dev,
                path.port,
                path.pkey,
                &mut pkey_index,
            ))?;
            let ah = AhAttr::new(dev, path)?;
            let mut attr = rdma::ib_qp_attr {
                path_mig_state: rdma::ib_mig_state_IB_MIG_REARM,
                alt_ah_attr: core::ptr::read(ah.as_ptr()),
                alt_port_num: path.port,
                alt_pkey_index: pkey_index,
                alt_timeout: timeout,
                ..Default::default()
            };
            let mask =
                rdma::ib_qp_attr_mask_IB_QP_ALT_PATH | rdma::ib_qp_attr_mask_IB_QP_PATH_MIG_STATE;
            to_result(rdma::ib_modify_qp(self.raw(), &mut attr, mask as c_int))
        }
    }

    /// The attributes of a QP in RTS; `None` in any other state.
    fn query(&self) -> Option<rdma::ib_qp_attr> {
        let mut attr = rdma::ib_qp_attr::default();
        let mut init = rdma::ib_qp_init_attr::default();
        let mask = rdma::ib_qp_attr_mask_IB_QP_STATE
            | rdma::ib_qp_attr_mask_IB_QP_PATH_MIG_STATE
            | rdma::ib_qp_attr_mask_IB_QP_DEST_QPN;
        // SAFETY: By the invariant; both attributes are ours.
        to_result(unsafe { rdma::ib_query_qp(self.raw(), &mut attr, mask as c_int, &mut init) })
            .ok()?;
        (attr.qp_state == rdma::ib_qp_state_IB_QPS_RTS).then_some(attr)
    }
}

impl Drop for QpRef {
    fn drop(&mut self) {
        // SAFETY: By the invariant.
        unsafe { rdma::rdma_restrack_put(&raw mut (*self.raw()).res) };
    }
}
