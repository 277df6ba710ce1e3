// SPDX-License-Identifier: GPL-2.0-only

//! Messages of the communication manager as they arrive, before ib_cm sees them.
//!
//! `cm_recv_handler` is where all of them come through, with the work completion of the MAD at hand.
//!
//! Locks: none of its own; see `conn.rs` and `requests.rs`.

use super::bindings as rdma;
use super::follow;
use super::hook::{InFlight, Ops};
use super::service::Service;
use super::stats;
use crate::apm::stats::Stat;
use crate::wire::cm::lap::{Kind, Lap};
use crate::wire::cm::req::{Rep, Req, TRANSPORT_RC};
use crate::wire::cm::{self, Attribute};
use crate::wire::sa::MAD_LEN;
use kernel::sync::atomic::{Acquire, Atomic};

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

/// What becomes of a message.
#[derive(PartialEq, Eq)]
enum Fate {
    /// ib_cm gets it.
    Pass,
    /// It was for us, or is not fit for ib_cm.
    Taken,
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
    // SAFETY: The agent's device is registered as long as its MADs are handled. The hook was registered
    // at the address of a function of this type; who takes a MAD frees it.
    unsafe {
        let fate = Service::get(&inflight).map_or(Fate::Pass, |s| s.receive((*agent).device, wc));
        if fate == Fate::Pass {
            let original: RecvHandler = core::mem::transmute(RECV_HANDLER.load(Acquire));
            original(agent, send, wc);
        } else {
            rdma::ib_free_recv_mad(wc);
        }
    }
    drop(inflight);
}

impl Service {
    /// # Safety
    ///
    /// `dev` stays registered during this call, and `wc` is a MAD of the CM that came to it.
    unsafe fn receive(&self, dev: *mut rdma::ib_device, wc: *mut rdma::ib_mad_recv_wc) -> Fate {
        // SAFETY: `recv_buf` holds a MAD of 256 bytes.
        let mad = unsafe {
            let mad = (*wc).recv_buf.__bindgen_anon_1.mad.cast::<u8>();
            core::slice::from_raw_parts(mad, MAD_LEN)
        };
        match cm::attribute(mad) {
            Some(Attribute::Req) => {
                if let Some(req) = Req::parse(mad).filter(|req| req.transport == TRANSPORT_RC) {
                    // SAFETY: By the function's contract.
                    unsafe { self.requests.note(&self.devices, dev, &req) };
                }
                Fate::Pass
            }
            Some(Attribute::Rep) => {
                if let Some(rep) = Rep::parse(mad) {
                    self.note_rep(&rep);
                }
                Fate::Pass
            }
            Some(Attribute::Lap) => match Lap::parse(mad) {
                // SAFETY: By the function's contract.
                Some(lap) => unsafe { self.receive_lap(&lap, wc) },
                None => Fate::Pass,
            },
            _ => Fate::Pass,
        }
    }

    /// Learns the peer's node.
    fn note_rep(&self, rep: &Rep) {
        let Some(conn) = self.table.find_comm(rep.ids.remote) else {
            return;
        };
        let mut inner = conn.lock();
        // The first one is believed: later ones are repetitions, or none of ib_cm's business either.
        if inner.peer_node == 0 {
            inner.peer_node = rep.ca_guid;
        }
    }

    /// # Safety
    ///
    /// `wc` is the MAD that `lap` was read from.
    unsafe fn receive_lap(&self, lap: &Lap, wc: *mut rdma::ib_mad_recv_wc) -> Fate {
        let conn = self.table.find_comm(lap.ids.remote);
        match lap.kind {
            Kind::Own(_) => {
                let inner = conn.as_ref().map(|conn| conn.lock());
                let Some(inner) = inner.filter(|inner| follow::is_own(inner, lap)) else {
                    stats::count(Stat::LapForged);
                    return Fate::Taken;
                };
                // SAFETY: The work completion is a copy that belongs to this MAD.
                unsafe {
                    let wc = &mut *(*wc).wc;
                    wc.slid = inner.path.dlid.into();
                    wc.sl = inner.path.sl;
                    wc.wc_flags &= !(rdma::ib_wc_flags_IB_WC_GRH as i32);
                }
                Fate::Pass
            }
            _ => Fate::Pass,
        }
    }
}
