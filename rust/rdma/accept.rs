// SPDX-License-Identifier: GPL-2.0-only

//! The passive side of setting up a connection, and on both sides the attributes for the QP.
//!
//! The REQ of a peer cannot be seen here (rdma_cm has changed the handler by the time of the REP), so
//! a connection is first met when attributes for RTR are made, which comes before the REP. What the REQ
//! said was noted as it came in, see `requests.rs`.
//!
//! Locks: see `conn.rs`; nothing here is called with one held, and none is held across a call of a ULP.

use super::bindings as rdma;
use super::conn::{Connection, Side};
use super::connect::verdict;
use super::events::Hint;
use super::name::Name;
use super::path;
use super::qp::QpRef;
use super::rearm;
use super::service::Service;
use super::stats;
use crate::apm::policy::{self, Verdict};
use crate::apm::reason::Reason;
use crate::apm::state::{Event, State};
use crate::apm::stats::Stat;
use crate::wire::cm;
use kernel::ffi::c_int;
use kernel::sync::Arc;

impl Service {
    /// Attributes for a QP were filled in: learns the paths, and keeps an alternate that is not to be
    /// used from the QP.
    ///
    /// # Safety
    ///
    /// `id` is the live cm_id that `attr` and `mask` were made from, for the state `to`.
    pub(crate) unsafe fn qp_attr(
        &self,
        id: *mut rdma::ib_cm_id,
        to: rdma::ib_qp_state,
        attr: &rdma::ib_qp_attr,
        mask: &mut c_int,
    ) {
        let rtr = to == rdma::ib_qp_state_IB_QPS_RTR;
        if !rtr && to != rdma::ib_qp_state_IB_QPS_RTS {
            return;
        }
        let bit = if rtr {
            rdma::ib_qp_attr_mask_IB_QP_ALT_PATH
        } else {
            rdma::ib_qp_attr_mask_IB_QP_PATH_MIG_STATE
        } as c_int;
        let conn = match self.table.find(id) {
            Some(conn) => conn,
            // SAFETY: By the function's contract.
            None if rtr => match unsafe { self.passive(id, attr, *mask & bit != 0) } {
                Some(conn) => conn,
                None => return,
            },
            None => return,
        };
        let mut inner = conn.lock();
        if rtr {
            inner.peer_qpn = attr.dest_qp_num;
            if attr.ah_attr.type_ == rdma::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB {
                // SAFETY: `id` is live, and with it its device; the attributes are for InfiniBand.
                let (path, alternate) = unsafe {
                    let known = (&inner.path, inner.alternate.as_ref());
                    path::from_attr((*id).device, attr, *mask as u32, known)
                };
                // Also on the active side: a REQ that was sent again without the alternate has the path
                // that the ULP gave.
                inner.path = path;
                if alternate.is_some() && inner.state().keeps_alternate() {
                    inner.alternate = alternate;
                }
            }
        }
        if *mask & bit == 0 || inner.hands_off {
            return;
        }
        if !inner.state().keeps_alternate() {
            // For a later call (after a LAP) that has nothing but these bits, nothing is left.
            *mask &= !((rdma::ib_qp_attr_mask_IB_QP_ALT_PATH
                | rdma::ib_qp_attr_mask_IB_QP_PATH_MIG_STATE) as c_int);
            if rtr && conn.side == Side::Passive {
                stats::count(Stat::AlternateStripped);
            }
            return;
        }
        if !rtr {
            inner.apply(Event::Loaded);
        }
    }

    /// The first that is seen of a connection from a peer: its QP is to go to RTR.
    ///
    /// # Safety
    ///
    /// `id` is a live cm_id, `attr` made for it for RTR, with an alternate where `offered`.
    unsafe fn passive(
        &self,
        id: *mut rdma::ib_cm_id,
        attr: &rdma::ib_qp_attr,
        offered: bool,
    ) -> Option<Arc<Connection>> {
        // SAFETY: `id` is live.
        let (state, service_id, dev) =
            unsafe { ((*id).state, u64::from_be((*id).service_id), (*id).device) };
        if state != rdma::ib_cm_state_IB_CM_REQ_RCVD
            && state != rdma::ib_cm_state_IB_CM_MRA_REQ_SENT
        {
            return None;
        }
        let ulp = Name::from_str(policy::ulp_by_service(service_id));
        // SAFETY: `id` is live.
        let conn = unsafe { Connection::new(id, Side::Passive, ulp) }.ok()?;
        let infiniband = attr.ah_attr.type_ == rdma::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB;
        // SAFETY: As above.
        let verdict = unsafe { verdict(dev, infiniband, service_id, None) };
        // SAFETY: As above.
        let comm_id = u32::from_be(unsafe { (*id).remote_id });
        let request = self.requests.take(dev, comm_id);
        let mut inner = conn.lock();
        if let Some(request) = &request {
            inner.peer_node = request.node_guid;
            inner.path = request.primary;
            inner.alternate = request.alternate;
            inner.response_timeout = request.patience.remote_response;
            if verdict == Verdict::Serve {
                // SAFETY: `id` is live, and with it its device.
                inner.rearm = unsafe { rearm::machine(dev, Side::Passive, &request.patience) }.ok();
            }
        }
        inner.was_offered = offered;
        inner.peer_qpn = attr.dest_qp_num;
        let reason = match verdict {
            Verdict::LeaveAlone(reason) => {
                inner.hands_off = true;
                Some(reason)
            }
            Verdict::Refuse(reason) => Some(reason),
            Verdict::Serve if !offered => Some(Reason::NotOffered),
            Verdict::Serve if request.is_some_and(|r| r.foreign) => {
                Some(Reason::AlternateOnOtherHca)
            }
            // SAFETY: Attributes of the type IB: `offered` says so.
            Verdict::Serve if unsafe { same_path(attr) } => Some(Reason::AlternateNotDisjoint),
            Verdict::Serve => None,
        };
        match reason {
            Some(reason) => inner.apply(Event::Excluded(reason)),
            None => {
                stats::count(Stat::AlternateAccepted);
                inner.apply(Event::Offer)
            }
        };
        drop(inner);
        self.table.insert(&conn).ok()?;
        if let Some(reason) = reason.filter(|r| *r != Reason::NotOffered) {
            self.log_once(dev, reason);
        }
        Some(conn)
    }

    /// A REP is about to be sent: learns the QP, and says whether the alternate is used.
    ///
    /// # Safety
    ///
    /// `id` is the live cm_id that `ib_send_cm_rep` is called with.
    pub(crate) unsafe fn accept(&self, id: *mut rdma::ib_cm_id, param: &mut rdma::ib_cm_rep_param) {
        stats::count(Stat::RepSeen);
        let Some(conn) = self.table.find(id) else {
            return;
        };
        // SAFETY: `id` is live, and with it its device.
        let ulp = unsafe { QpRef::find((*id).device, param.qp_num) }.map(|qp| qp.owner());
        // To see the RTU and the end. SAFETY: As above.
        let covered = unsafe { self.handlers.cover(id) };
        let mut inner = conn.lock();
        inner.qpn = param.qp_num;
        if let Some(ulp) = ulp {
            inner.ulp = ulp;
            if ulp.as_str() == "user" {
                inner.hands_off = true;
                inner.apply(Event::Excluded(Reason::UlpExcluded));
            }
        }
        if inner.was_offered && !inner.hands_off {
            param.failover_accepted = match inner.state() {
                State::Unprotected(Reason::AlternateNotDisjoint | Reason::AlternateOnOtherHca) => {
                    cm::FAILOVER_REJECTED
                }
                State::Unprotected(_) => cm::FAILOVER_UNSUPPORTED,
                _ => cm::FAILOVER_ACCEPTED,
            };
        }
        drop(inner);
        let _ = self.table.insert_qp(&conn, param.qp_num);
        if !covered {
            // No RTU will be seen; an event of the QP or a look at the connections does as well.
            self.hint(conn.device(), param.qp_num, Hint::Look);
        }
    }
}

/// Whether attributes for RTR name the same path twice. A peer whose port has one LID may go for another
/// of our LIDs only: then the paths differ by the source path bits.
///
/// # Safety
///
/// The attributes are for InfiniBand and name an alternate.
unsafe fn same_path(attr: &rdma::ib_qp_attr) -> bool {
    // SAFETY: By the function's contract.
    let lids = |ah| unsafe { (path::ah_dlid(ah), path::ah_path_bits(ah)) };
    lids(&attr.ah_attr) == lids(&attr.alt_ah_attr) && attr.ah_attr.port_num == attr.alt_port_num
}
