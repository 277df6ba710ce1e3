// SPDX-License-Identifier: GPL-2.0-only

//! REQs of peers, noted as they come in.
//!
//! When the attributes of a passive QP are made the REQ itself is gone (rdma_cm has answered it in its
//! own good time), but what it said is wanted: both paths in full, the peer's NodeGUID, and how patient
//! the peer's CM is. So it is noted in `recv.rs` and asked for by the peer's communication id.
//!
//! ib_cm looks the GID of an alternate up on all HCAs of the host and takes the first that has it; nobody
//! checks that it is the one that the connection is on. The QP would then get a port number and P_Key
//! index of another HCA. On the active side our own alternate is checked before the REQ is sent; on the
//! passive side a REQ whose alternate is elsewhere is noted as such.
//!
//! Locks: `Requests::noted` is a leaf.

use super::bindings as rdma;
use super::device::Devices;
use super::gid::GidRef;
use super::path::Path;
use super::rearm::Patience;
use crate::apm::path::FullPath;
use crate::apm::timers::Timers;
use crate::wire::cm::path::CmPath;
use crate::wire::cm::req::Req;
use crate::wire::Gid;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNodeReservation};
use kernel::sync::{new_mutex, Mutex};

/// REQs noted and not yet asked for. Those that nobody accepts are pushed out by later ones.
const CAPACITY: usize = 4096;

/// A REQ, as the receiver sees it.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// NodeGUID of the peer's HCA.
    pub(crate) node_guid: u64,
    /// The path in use.
    pub(crate) primary: Path,
    /// The alternate path.
    pub(crate) alternate: Option<Path>,
    /// What it says about time.
    pub(crate) patience: Patience,
    /// The alternate is not on the HCA that the REQ came to.
    pub(crate) foreign: bool,
}

type Key = (usize, u32);

struct Noted {
    by_peer: RBTree<Key, (u64, Request)>,
    by_age: RBTree<u64, Key>,
    next: u64,
    count: usize,
}

/// REQs by device and the peer's communication id.
#[pin_data]
pub(crate) struct Requests {
    #[pin]
    noted: Mutex<Noted>,
}

impl Requests {
    /// None yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            noted <- new_mutex!(Noted {
                by_peer: RBTree::new(),
                by_age: RBTree::new(),
                next: 0,
                count: 0,
            }),
        })
    }

    /// Notes a REQ, in the place of an earlier one of the same id: one that is sent again is the same.
    /// Process context.
    ///
    /// # Safety
    ///
    /// `dev` stays registered during this call.
    pub(crate) unsafe fn note(&self, devices: &Devices, dev: *mut rdma::ib_device, req: &Req) {
        let key = (dev as usize, req.comm_id);
        // SAFETY: By the function's contract.
        let request = unsafe {
            Request {
                node_guid: req.ca_guid,
                primary: path(dev, &req.primary, req),
                alternate: req.alternate.as_ref().map(|a| path(dev, a, req)),
                patience: Patience {
                    remote_response: req.local_cm_response_timeout,
                    local_response: req.remote_cm_response_timeout,
                    cm_retries: req.max_cm_retries,
                    timers: Timers {
                        packet_life_time: req.primary.ack_timeout.saturating_sub(1),
                        retry_count: req.retry_count,
                    },
                },
                foreign: req
                    .alternate
                    .is_some_and(|a| !is_on(devices, dev, &a.remote_gid)),
            }
        };
        // Memory before the lock. Without it the REQ is as good as not seen.
        let (Ok(by_peer), Ok(by_age)) = (
            RBTreeNodeReservation::new(GFP_KERNEL),
            RBTreeNodeReservation::new(GFP_KERNEL),
        ) else {
            return;
        };
        let mut noted = self.noted.lock();
        noted.take(&key);
        if noted.count >= CAPACITY {
            let oldest = noted
                .by_age
                .cursor_lower_bound(&0)
                .map(|cursor| *cursor.current().1);
            if let Some(oldest) = oldest {
                noted.take(&oldest);
            }
        }
        let age = noted.next;
        noted.next = age.wrapping_add(1);
        noted.count = noted.count.saturating_add(1);
        let _ = noted.by_peer.insert(by_peer.into_node(key, (age, request)));
        let _ = noted.by_age.insert(by_age.into_node(age, key));
    }

    /// The REQ that a connection on `dev` began with, forgetting it.
    pub(crate) fn take(&self, dev: *mut rdma::ib_device, comm_id: u32) -> Option<Request> {
        self.noted.lock().take(&(dev as usize, comm_id))
    }
}

impl Noted {
    fn take(&mut self, key: &Key) -> Option<Request> {
        let (age, request) = self.by_peer.remove(key)?;
        self.by_age.remove(&age);
        self.count = self.count.saturating_sub(1);
        Some(request)
    }
}

/// A path of a REQ from the side of its receiver.
///
/// # Safety
///
/// `dev` stays registered during this call.
unsafe fn path(dev: *mut rdma::ib_device, path: &CmPath, req: &Req) -> Path {
    let mut way = FullPath::from_peer(path);
    // SAFETY: By the function's contract.
    way.port = unsafe { GidRef::port_of(dev, &way.sgid) }.unwrap_or(0);
    Path {
        way,
        pkey: req.pkey,
        mtu: req.mtu,
    }
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
            elsewhere = unsafe { GidRef::port_of(device.raw(), gid) }.is_some();
        }
    });
    // SAFETY: By the function's contract.
    !elsewhere && unsafe { GidRef::port_of(dev, gid) }.is_some()
}
