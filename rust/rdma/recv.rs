// SPDX-License-Identifier: GPL-2.0-only

//! Messages of the communication manager as they arrive, before ib_cm sees them.
//!
//! `cm_recv_handler` is where all of them come through, with the work completion of the MAD at hand.
//!
//! Locks: none of its own; see `conn.rs` and `requests.rs`.

use super::bindings as rdma;
use super::follow;
use super::gid;
use super::hook::{InFlight, Ops};
use super::inbox::Message;
use super::lap::{is_known, Arrived};
use super::service::Service;
use super::stats;
use crate::apm::lap::Source;
use crate::apm::stats::Stat;
use crate::wire::cm::lap::{Apr, Kind, Lap, Mra, Mraed};
use crate::wire::cm::req::{Rep, Req, TRANSPORT_RC};
use crate::wire::cm::{self, Attribute, Ids};
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
        let fate = Service::get(&inflight).map_or(Fate::Pass, |s| {
            s.receive((*agent).device, (*agent).port_num.into(), wc)
        });
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
    /// `dev` stays registered during this call, and `wc` is a MAD of the CM that came to its `port`.
    unsafe fn receive(
        &self,
        dev: *mut rdma::ib_device,
        port: u32,
        wc: *mut rdma::ib_mad_recv_wc,
    ) -> Fate {
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
            Some(Attribute::Apr) => match Apr::parse(mad) {
                Some(apr) => self.for_machine(apr.ids, Message::Apr(apr)),
                None => Fate::Pass,
            },
            Some(Attribute::Mra) => match Mra::parse(mad) {
                Some(mra) if mra.message == Mraed::Lap => {
                    self.for_machine(mra.ids, Message::Mra(mra))
                }
                _ => Fate::Pass,
            },
            Some(Attribute::Lap) => match Lap::parse(mad) {
                // SAFETY: By the function's contract.
                Some(lap) => unsafe { self.receive_lap(&lap, port, wc) },
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
            inner.peer_ack_delay = rep.target_ack_delay;
            return;
        }
        drop(inner);
        conn.note(|news| news.add(Message::Rep));
        self.wake(&conn);
    }

    /// Hands an answer to a LAP to the connection whose LAP it may answer. ib_cm has sent none.
    fn for_machine(&self, ids: Ids, message: Message) -> Fate {
        let Some(conn) = self.table.find_comm(ids.remote) else {
            return Fate::Pass;
        };
        if conn.lock().rearm.is_none() {
            return Fate::Pass;
        }
        conn.note(|news| news.add(message));
        self.wake(&conn);
        Fate::Taken
    }

    /// # Safety
    ///
    /// `wc` is the MAD that `lap` was read from.
    unsafe fn receive_lap(&self, lap: &Lap, port: u32, wc: *mut rdma::ib_mad_recv_wc) -> Fate {
        let conn = self.table.find_comm(lap.ids.remote);
        match lap.kind {
            Kind::Own(_) => {
                let inner = conn.as_ref().map(|conn| conn.lock());
                let Some(inner) = inner.filter(|inner| !inner.dead) else {
                    stats::count(Stat::LapForged);
                    return Fate::Taken;
                };
                if !follow::is_own(&inner, lap) {
                    // One that was sent again, and came after the first had done its work, is ours, too.
                    if lap.kind != Kind::Own(inner.own_nonce) {
                        stats::count(Stat::LapForged);
                    }
                    return Fate::Taken;
                }
                // SAFETY: The work completion is a copy that belongs to this MAD.
                unsafe {
                    let wc = &mut *(*wc).wc;
                    wc.slid = inner.path.dlid.into();
                    wc.sl = inner.path.sl;
                    wc.wc_flags &= !(rdma::ib_wc_flags_IB_WC_GRH as i32);
                }
                Fate::Pass
            }
            _ => {
                let Some(conn) = conn else {
                    // ib_cm knows it, where it is older than the module, or nobody does.
                    return Fate::Pass;
                };
                let inner = conn.lock();
                if inner.hands_off {
                    return Fate::Pass;
                }
                // SAFETY: As above.
                let (mut source, path_bits) = unsafe { source(wc) };
                let device = self.devices.enter(conn.device());
                let address = device.and_then(|device| device.address(port));
                if let Some((_, lid)) = address {
                    source.local_lid = lid | u16::from(path_bits);
                }
                let arrived = Arrived {
                    lap: *lap,
                    source,
                    port,
                    path_bits,
                    from_peer: is_known(&inner, source.lid),
                };
                drop(inner);
                stats::count(Stat::LapsReceived);
                conn.note(|news| news.add(Message::Lap(arrived)));
                self.wake(&conn);
                Fate::Taken
            }
        }
    }
}

/// Where a MAD came from, and the LMC bits of where it came to; `local_lid` is left to the caller.
///
/// # Safety
///
/// `wc` is a received MAD as `ib_mad` hands it over.
unsafe fn source(wc: *mut rdma::ib_mad_recv_wc) -> (Source, u8) {
    // SAFETY: By the function's contract; with IB_WC_GRH there is a GRH.
    unsafe {
        let completion = &*(*wc).wc;
        let has_grh = completion.wc_flags & rdma::ib_wc_flags_IB_WC_GRH as i32 != 0;
        let grh = (*wc).recv_buf.grh;
        let source = Source {
            lid: completion.slid as u16,
            local_lid: 0,
            gid: (has_grh && !grh.is_null()).then(|| gid::read(&(*grh).sgid)),
        };
        (source, completion.dlid_path_bits)
    }
}
