// SPDX-License-Identifier: GPL-2.0-only

//! Messages of the communication manager sent by us: LAP and APR.
//!
//! ib_cm owns the class, so the peer's answers come to ib_cm's agent (`recv.rs` takes them there). The
//! agent here only sends, and keeps nothing: whoever wants an answer sends again.
//!
//! Locks: `Sender::inner`, held while a MAD is made and posted.
//!
//! C header: [`include/rdma/ib_mad.h`](srctree/include/rdma/ib_mad.h)

use super::bindings as rdma;
use super::path::{AhAttr, Path};
use crate::wire::sa::MAD_LEN;
use core::ptr::NonNull;
use kernel::error::{from_err_ptr, to_result};
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Mutex};

/// What `ib_mad` calls.
pub(super) struct Handlers {
    /// When it is through with a MAD that was sent.
    pub(super) sent: rdma::ib_mad_send_handler,
    /// When an answer has come.
    pub(super) received: rdma::ib_mad_recv_handler,
}

/// A registration with `ib_mad`; dropping it ends all that was sent by it.
///
/// # Invariants
///
/// The pointer is a registered agent, and this is its one owner.
pub(super) struct Registered(NonNull<rdma::ib_mad_agent>);

// SAFETY: MAD agents may be used from any task.
unsafe impl Send for Registered {}

impl Registered {
    /// Registers an agent that gets answers by transaction id only.
    ///
    /// # Safety
    ///
    /// `dev` stays registered until the result was dropped; the handlers are fit for what is sent.
    pub(super) unsafe fn new(
        dev: *mut rdma::ib_device,
        port: u32,
        rmpp_version: u8,
        handlers: Handlers,
    ) -> Result<Self> {
        // SAFETY: By the function's contract, and no request to be filled.
        let raw = from_err_ptr(unsafe {
            rdma::ib_register_mad_agent(
                dev,
                port,
                rdma::ib_qp_type_IB_QPT_GSI,
                core::ptr::null_mut(),
                rmpp_version,
                handlers.sent,
                handlers.received,
                core::ptr::null_mut(),
                0,
            )
        })?;
        // INVARIANT: Just registered.
        Ok(Self(NonNull::new(raw).ok_or(EINVAL)?))
    }

    pub(super) fn as_ptr(&self) -> *mut rdma::ib_mad_agent {
        self.0.as_ptr()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: By the invariant. Waits until nobody uses the agent any more.
        unsafe { rdma::ib_unregister_mad_agent(self.0.as_ptr()) };
    }
}

/// What a posted MAD consists of; dropped when `ib_mad` is through with it.
pub(super) struct Sent {
    ah: *mut rdma::ib_ah,
    buf: *mut rdma::ib_mad_send_buf,
}

impl Sent {
    /// A MAD of 256 zero bytes to QP 1 at the end of a path. Process context.
    ///
    /// # Safety
    ///
    /// `agent` stays registered until the result was dropped, and is of the port that `ah` names.
    pub(super) unsafe fn new(
        agent: *mut rdma::ib_mad_agent,
        ah: *mut rdma::rdma_ah_attr,
        pkey_index: u16,
        header: usize,
    ) -> Result<Self> {
        // SAFETY: By the function's contract.
        unsafe {
            let mut sent = Self {
                ah: from_err_ptr(rdma::rdma_create_ah(
                    (*(*agent).qp).pd,
                    ah,
                    rdma::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE,
                ))?,
                buf: core::ptr::null_mut(),
            };
            sent.buf = from_err_ptr(rdma::ib_create_send_mad(
                agent,
                1,
                pkey_index,
                0,
                header as c_int,
                MAD_LEN.saturating_sub(header) as c_int,
                kernel::bindings::GFP_KERNEL,
                rdma::IB_MGMT_BASE_VERSION as u8,
            ))?;
            (*sent.buf).ah = sent.ah;
            Ok(sent)
        }
    }

    /// The MAD's bytes.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `ib_create_send_mad` has made room for a MAD of 256 bytes, ours until it is posted.
        unsafe { core::slice::from_raw_parts_mut((*self.buf).mad.cast::<u8>(), MAD_LEN) }
    }

    pub(super) fn buf(&self) -> *mut rdma::ib_mad_send_buf {
        self.buf
    }

    /// What [`into_buf`](Self::into_buf) gave away.
    ///
    /// # Safety
    ///
    /// `buf` is such a one, and `ib_mad` is through with it.
    unsafe fn from_buf(buf: *mut rdma::ib_mad_send_buf) -> Self {
        // SAFETY: By the function's contract.
        let ah = unsafe { (*buf).ah };
        Self { ah, buf }
    }

    fn into_buf(self) -> *mut rdma::ib_mad_send_buf {
        core::mem::ManuallyDrop::new(self).buf
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        // SAFETY: Both were made by `new`, and `ib_mad` has no more use for them: the MAD was not posted
        // or its handler was called.
        unsafe {
            if !self.buf.is_null() {
                rdma::ib_free_send_mad(self.buf);
            }
            rdma::rdma_destroy_ah_user(
                self.ah,
                rdma::rdma_destroy_ah_flags_RDMA_DESTROY_AH_SLEEPABLE,
                core::ptr::null_mut(),
            );
        }
    }
}

const HANDLERS: Handlers = Handlers {
    sent: Some(on_sent),
    received: None,
};

/// Length of a MAD's common header.
const HEADER_LEN: usize = 24;

/// Sends from one port.
#[pin_data]
pub(crate) struct Sender {
    device: *mut rdma::ib_device,
    tid: Atomic<u32>,
    #[pin]
    inner: Mutex<Option<Registered>>,
}

// SAFETY: The device pointer is used only inside the device's gate, from any task.
unsafe impl Send for Sender {}
// SAFETY: As above.
unsafe impl Sync for Sender {}

impl Sender {
    /// Registers an agent.
    ///
    /// # Safety
    ///
    /// `dev` stays registered until [`Sender::cancel`] has returned or this was dropped.
    pub(crate) unsafe fn new(
        dev: *mut rdma::ib_device,
        port: u32,
    ) -> Result<impl PinInit<Self, Error>> {
        // SAFETY: By the function's contract; all that is sent by this agent is made by `send`.
        let registered = unsafe { Registered::new(dev, port, 0, HANDLERS) }?;
        Ok(try_pin_init!(Self {
            device: dev,
            tid: Atomic::new(1),
            inner <- new_mutex!(Some(registered)),
        }))
    }

    /// Sends a message along a path that leaves by this port, with the P_Key of the path. `write` lays it
    /// out, given a transaction id that this port has not used before. Returns that id.
    ///
    /// Process context, inside the device's gate. EINVAL: `write` could not do it.
    pub(crate) fn send(
        &self,
        path: &Path,
        tid: Option<u64>,
        write: impl FnOnce(u64, &mut [u8]) -> Option<()>,
    ) -> Result<u64> {
        let guard = self.inner.lock();
        let agent = guard.as_ref().ok_or(ESHUTDOWN)?.as_ptr();
        let mut pkey_index = 0;
        // SAFETY: Inside the device's gate; the agent is registered as long as `inner` is held, and
        // `on_sent` frees what was posted.
        unsafe {
            to_result(rdma::ib_find_cached_pkey(
                self.device,
                path.port,
                path.pkey,
                &mut pkey_index,
            ))?;
            let mut ah = AhAttr::new(self.device, path)?;
            let mut sent = Sent::new(agent, ah.as_mut_ptr(), pkey_index, HEADER_LEN)?;
            let tid = tid.unwrap_or_else(|| {
                u64::from((*agent).hi_tid) << 32 | u64::from(self.tid.fetch_add(1, Relaxed))
            });
            write(tid, sent.bytes()).ok_or(EINVAL)?;
            to_result(rdma::ib_post_send_mad(sent.buf(), core::ptr::null_mut()))?;
            // Belongs to `on_sent` now.
            let _ = sent.into_buf();
            Ok(tid)
        }
    }

    /// Unregisters the agent; later messages fail. Process context.
    pub(crate) fn cancel(&self) {
        let registered = self.inner.lock().take();
        drop(registered);
    }
}

/// The last that is heard of a MAD.
///
/// # Safety
///
/// Called by `ib_mad`, in process context, for a MAD posted by `Sender::send`.
unsafe extern "C" fn on_sent(_agent: *mut rdma::ib_mad_agent, wc: *mut rdma::ib_mad_send_wc) {
    // SAFETY: By the function's contract.
    drop(unsafe { Sent::from_buf((*wc).send_buf) });
}
