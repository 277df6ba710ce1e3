// SPDX-License-Identifier: GPL-2.0-only

//! Alternates that are not on the HCA of the connection.
//!
//! ib_cm looks the GID of an alternate up on all HCAs of the host and takes the first that has it; nobody
//! checks that it is the one that the connection is on. The QP would then get a port number and P_Key
//! index of another HCA. On the active side our own alternate is checked before the REQ is sent. On the
//! passive side the REQ's GIDs are gone when the attributes of the QP are made, so `cm_recv_handler`,
//! where all MADs of the CM arrive, is wrapped, and REQs whose alternate is elsewhere are noted.
//!
//! Locks: `Foreign::list` is a leaf.

use super::bindings as rdma;
use super::device::Devices;
use super::gid::GidRef;
use super::hook::{InFlight, Ops};
use super::service::Service;
use crate::wire::cm::req::Req;
use crate::wire::Gid;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic};
use kernel::sync::{new_mutex, Mutex};

/// REQs noted and not yet asked for. Those that nobody accepts are pushed out by later ones.
const NOTED: usize = 64;

/// Address of `cm_recv_handler`, which is static; set before it is hooked.
pub(crate) static RECV_HANDLER: Atomic<usize> = Atomic::new(0);
/// Wrapper of `static void cm_recv_handler(struct ib_mad_agent *, struct ib_mad_send_buf *,
/// struct ib_mad_recv_wc *)`.
pub(crate) static RECV: Ops = Ops::wrapper(recv as *const ());

type RecvHandler = unsafe extern "C" fn(
    *mut rdma::ib_mad_agent,
    *mut rdma::ib_mad_send_buf,
    *mut rdma::ib_mad_recv_wc,
);

/// REQs whose alternate is not on the HCA that they came to: device and the peer's comm id.
#[pin_data]
pub(crate) struct Foreign {
    #[pin]
    list: Mutex<KVec<(usize, u32)>>,
}

impl Foreign {
    /// None yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(KVec::new()),
        })
    }

    fn note(&self, device: usize, comm_id: u32) {
        let mut list = self.list.lock();
        // A REQ that is sent again is the same.
        list.retain(|entry| *entry != (device, comm_id));
        if list.len() >= NOTED {
            let _ = list.remove(0);
        }
        let _ = list.push((device, comm_id), GFP_KERNEL);
    }

    /// Whether the alternate of a connection that has come to `device` is to be refused.
    pub(crate) fn take(&self, device: *mut rdma::ib_device, comm_id: u32) -> bool {
        let mut list = self.list.lock();
        let before = list.len();
        list.retain(|entry| *entry != (device as usize, comm_id));
        list.len() != before
    }
}

/// Whether a port of the device has this GID.
///
/// # Safety
///
/// `dev` stays registered during this call.
unsafe fn has_gid(dev: *mut rdma::ib_device, gid: &Gid) -> bool {
    // SAFETY: By the function's contract; the device has these ports.
    unsafe { (1..=(*dev).phys_port_cnt).any(|port| GidRef::find(dev, port, gid).is_ok()) }
}

/// Whether ib_cm can be relied on to find this GID on `dev`: that it is there, and nowhere else.
///
/// # Safety
///
/// `dev` stays registered during this call.
pub(crate) unsafe fn is_on(devices: &Devices, dev: *mut rdma::ib_device, gid: &Gid) -> bool {
    let mut elsewhere = false;
    devices.for_each(|device| {
        if device.raw() != dev && !elsewhere {
            // SAFETY: Inside the device's gate.
            elsewhere = unsafe { has_gid(device.raw(), gid) };
        }
    });
    // SAFETY: By the function's contract.
    !elsewhere && unsafe { has_gid(dev, gid) }
}

/// # Safety
///
/// Runs in the place of `cm_recv_handler`, with its arguments. Process context.
unsafe extern "C" fn recv(
    agent: *mut rdma::ib_mad_agent,
    send: *mut rdma::ib_mad_send_buf,
    wc: *mut rdma::ib_mad_recv_wc,
) {
    let inflight = InFlight::enter();
    // SAFETY: The agent's device is registered as long as its MADs are handled, and `recv_buf` holds a
    // MAD of 256 bytes. The hook was registered at the address of a function of this type.
    unsafe {
        if let Some(service) = Service::get(&inflight) {
            let mad = (*wc).recv_buf.__bindgen_anon_1.mad.cast::<u8>();
            let mad = core::slice::from_raw_parts(mad, crate::wire::sa::MAD_LEN);
            if let Some(req) = Req::parse(mad) {
                let device = (*agent).device;
                if let Some(alternate) = req.alternate {
                    if !is_on(&service.devices, device, &alternate.remote_gid) {
                        service.foreign.note(device as usize, req.comm_id);
                    }
                }
            }
        }
        let original: RecvHandler = core::mem::transmute(RECV_HANDLER.load(Acquire));
        original(agent, send, wc);
    }
    drop(inflight);
}
