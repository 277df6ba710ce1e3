// SPDX-License-Identifier: GPL-2.0-only

//! What CM events mean for a connection, seen before the ULP sees them; and its end.
//!
//! Locks: see `conn.rs`; nothing here is called with one held, and none is held across a call of a ULP.

use super::bindings as rdma;
use super::events::Hint;
use super::follow;
use super::service::Service;
use super::stats;
use crate::apm::reason::Reason;
use crate::apm::state::{Action, Before, Event, State};
use crate::apm::stats::Stat;
use crate::wire::cm;
use crate::wire::cm::lap::Kind;

const LAP_DATA: usize = rdma::ib_cm_data_size_IB_CM_LAP_PRIVATE_DATA_SIZE as usize;

/// What is left to do after the ULP has seen an event.
pub(crate) struct After {
    device: *mut rdma::ib_device,
    /// QP to look at, 0 for none.
    qpn: u32,
}

impl Service {
    /// An event is about to be handed to the ULP; `None` where the ULP is not to see it.
    pub(crate) fn before_event(
        &self,
        id: *mut rdma::ib_cm_id,
        event: &rdma::ib_cm_event,
    ) -> Option<After> {
        let mut after = After {
            device: core::ptr::null_mut(),
            qpn: 0,
        };
        let Some(conn) = self.table.find(id) else {
            return Some(after);
        };
        after.device = conn.device();
        let mut inner = conn.lock();
        if inner.dead {
            return Some(after);
        }
        match event.event {
            rdma::ib_cm_event_type_IB_CM_REP_RECEIVED => {
                // SAFETY: The event's kind says which member is there.
                let rep = unsafe { event.param.rep_rcvd.as_ref() };
                inner.peer_qpn = rep.remote_qpn;
                let declined = rep.failover_accepted() as u8;
                if declined != cm::FAILOVER_ACCEPTED
                    && inner.state() == State::Offered(Before::Setup)
                {
                    stats::count(Stat::FailoverDeclined);
                    inner.apply(Event::NotAccepted(declined));
                }
                after.qpn = inner.qpn;
                let saved = inner.saved.take();
                drop(inner);
                drop(saved);
            }
            rdma::ib_cm_event_type_IB_CM_RTU_RECEIVED
            | rdma::ib_cm_event_type_IB_CM_USER_ESTABLISHED => after.qpn = inner.qpn,
            rdma::ib_cm_event_type_IB_CM_REJ_RECEIVED => {
                // SAFETY: The event's kind says which member is there.
                let reason = unsafe { event.param.rej_rcvd.as_ref().reason };
                let saved = inner.saved.take();
                // SAFETY: `id` is live during its handler.
                let idle = unsafe { (*id).state == rdma::ib_cm_state_IB_CM_IDLE };
                if let Some(mut saved) = saved {
                    if idle
                        && cm::rejects_alternate(reason)
                        && inner
                            .apply(Event::Refused(reason as u8))
                            .has(Action::Resend)
                    {
                        stats::count(Stat::AlternateRefused);
                        // SAFETY: `id` is live and not dead, and its mutex held.
                        if unsafe { saved.resend(id) }.is_ok() {
                            stats::count(Stat::ReqResent);
                            drop(inner);
                            drop(saved);
                            self.log_once(conn.device(), Reason::PeerRejected(reason as u8));
                            return None;
                        }
                    }
                    inner.apply(Event::Close);
                    drop(inner);
                    drop(saved);
                } else {
                    inner.apply(Event::Close);
                }
            }
            rdma::ib_cm_event_type_IB_CM_LAP_RECEIVED => {
                // SAFETY: A LAP event has 168 bytes of private data.
                let data = unsafe {
                    core::slice::from_raw_parts(event.private_data.cast::<u8>(), LAP_DATA)
                };
                if matches!(Kind::parse(data), Some(Kind::Own(_))) {
                    // SAFETY: `id` is live during its handler.
                    unsafe { follow::followed(id, &mut inner) };
                    return None;
                }
            }
            rdma::ib_cm_event_type_IB_CM_REQ_ERROR
            | rdma::ib_cm_event_type_IB_CM_REP_ERROR
            | rdma::ib_cm_event_type_IB_CM_DREQ_ERROR
            | rdma::ib_cm_event_type_IB_CM_DREQ_RECEIVED
            | rdma::ib_cm_event_type_IB_CM_DREP_RECEIVED
            | rdma::ib_cm_event_type_IB_CM_TIMEWAIT_EXIT => {
                inner.apply(Event::Close);
            }
            _ => {}
        }
        Some(after)
    }

    /// The ULP has seen an event.
    pub(crate) fn after_event(&self, after: After) {
        if after.qpn != 0 {
            self.hint(after.device, after.qpn, Hint::Look);
        }
    }

    /// A cm_id is about to be destroyed.
    pub(crate) fn end(&self, id: *mut rdma::ib_cm_id) {
        if let Some(conn) = self.table.remove(id) {
            conn.lock().apply(Event::Close);
            conn.kill();
        }
    }
}
