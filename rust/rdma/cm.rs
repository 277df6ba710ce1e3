// SPDX-License-Identifier: GPL-2.0-only

//! What is done with a cm_id beside what its ULP does: a REQ sent again, a CM that follows a migration.
//!
//! Nothing pins a cm_id for us. All of this is called with the connection's mutex held and `dead`
//! tested: the wrapper on `cm_destroy_id` takes that mutex before the cm_id goes.
//!
//! C header: [`include/rdma/ib_cm.h`](srctree/include/rdma/ib_cm.h)

use super::bindings as rdma;
use super::gid::GidRef;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::prelude::*;

const PRIVATE_DATA_LEN: usize = rdma::ib_cm_data_size_IB_CM_REQ_PRIVATE_DATA_SIZE as usize;

/// A REQ, copied with all that its parameters point to, to be sent again without the alternate.
pub(crate) struct SavedReq {
    param: rdma::ib_cm_req_param,
    primary: rdma::sa_path_rec,
    inbound: Option<rdma::sa_path_rec>,
    outbound: Option<rdma::sa_path_rec>,
    private_data: [u8; PRIVATE_DATA_LEN],
    gid: Option<GidRef>,
}

// SAFETY: The pointers in `param` are not used: `resend` replaces each by one into this structure.
unsafe impl Send for SavedReq {}

/// Copies a path record; `None` for a null pointer.
///
/// # Safety
///
/// `rec` is null or valid.
unsafe fn copy(rec: *const rdma::sa_path_rec) -> Option<rdma::sa_path_rec> {
    // SAFETY: By the function's contract; plain data.
    (!rec.is_null()).then(|| unsafe { core::ptr::read(rec) })
}

impl SavedReq {
    /// Copies the parameters of a REQ.
    ///
    /// # Safety
    ///
    /// `param` is what `ib_send_cm_req` is called with, during that call.
    pub(crate) unsafe fn new(param: &rdma::ib_cm_req_param) -> Result<KBox<Self>> {
        let len = usize::from(param.private_data_len);
        let mut private_data = [0u8; PRIVATE_DATA_LEN];
        // SAFETY: The caller of `ib_send_cm_req` keeps what the parameters point to during the call.
        unsafe {
            if !param.private_data.is_null() {
                let to = private_data.get_mut(..len).ok_or(EINVAL)?;
                to.copy_from_slice(core::slice::from_raw_parts(param.private_data.cast(), len));
            }
            Ok(KBox::new(
                Self {
                    param: core::ptr::read(param),
                    primary: copy(param.primary_path).ok_or(EINVAL)?,
                    inbound: copy(param.primary_path_inbound),
                    outbound: copy(param.primary_path_outbound),
                    private_data,
                    gid: GidRef::hold(param.ppath_sgid_attr),
                },
                GFP_KERNEL,
            )?)
        }
    }

    /// Sends the REQ again, without an alternate.
    ///
    /// # Safety
    ///
    /// `id` is the live cm_id that the REQ was sent on before.
    pub(crate) unsafe fn resend(&mut self, id: *mut rdma::ib_cm_id) -> Result {
        let none = core::ptr::null_mut();
        let param = &mut self.param;
        param.primary_path = &mut self.primary;
        param.primary_path_inbound = self.inbound.as_mut().map_or(none, |r| r);
        param.primary_path_outbound = self.outbound.as_mut().map_or(none, |r| r);
        param.alternate_path = none;
        param.ppath_sgid_attr = self.gid.as_ref().map_or(core::ptr::null(), GidRef::as_ptr);
        if !param.private_data.is_null() {
            param.private_data = self.private_data.as_ptr().cast();
        }
        // SAFETY: `id` is live; all that `param` points to is in `self`, and ib_cm copies it.
        to_result(unsafe { rdma::ib_send_cm_req(id, param) })
    }
}

/// Whether the CM regards a connection as established.
///
/// # Safety
///
/// `id` is a live cm_id.
pub(crate) unsafe fn is_established(id: *mut rdma::ib_cm_id) -> bool {
    // SAFETY: By the function's contract; a word that ib_cm may write meanwhile.
    unsafe { (&raw const (*id).state).read_volatile() == rdma::ib_cm_state_IB_CM_ESTABLISHED }
}

/// Tells the CM that the alternate path is now the one in use, so that its own messages (DREQ) take it.
///
/// `ib_cm_notify` copies the alternate's address vector over the primary's without regard to the
/// references to GID entries that both may hold: the alternate's would be put twice, the primary's
/// never. Both are set right here; without a GRH there are none.
///
/// # Safety
///
/// `id` is a live cm_id.
pub(crate) unsafe fn follow_migration(id: *mut rdma::ib_cm_id) -> Result {
    let mut attr = rdma::ib_qp_attr {
        qp_state: rdma::ib_qp_state_IB_QPS_RTR,
        ..Default::default()
    };
    let mut mask: c_int = 0;
    // SAFETY: `id` is live; this describes the CM's two address vectors and changes nothing.
    to_result(unsafe { rdma::ib_cm_init_qp_attr(id, &mut attr, &mut mask) })?;
    if mask as u32 & rdma::ib_qp_attr_mask_IB_QP_ALT_PATH == 0 {
        return Err(ENOENT);
    }
    // SAFETY: The CM's address vectors hold references to their GID entries as long as `id` lives.
    unsafe {
        let second = GidRef::hold(sgid_attr(&attr.alt_ah_attr));
        to_result(rdma::ib_cm_notify(
            id,
            rdma::ib_event_type_IB_EVENT_PATH_MIG,
        ))?;
        // Both address vectors name the alternate's entry now: the second owns the reference taken.
        if let Some(second) = second {
            let _ = second.into_raw();
        }
        // The one that the primary's vector held has lost its owner.
        drop(GidRef::from_raw(sgid_attr(&attr.ah_attr)));
    }
    Ok(())
}

fn sgid_attr(ah: &rdma::rdma_ah_attr) -> *const rdma::ib_gid_attr {
    if u32::from(ah.ah_flags) & rdma::ib_ah_flags_IB_AH_GRH != 0 {
        ah.grh.sgid_attr
    } else {
        core::ptr::null()
    }
}
