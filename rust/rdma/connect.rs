// SPDX-License-Identifier: GPL-2.0

//! Setting up a connection: what is done at each step of it, on either side.
//!
//! Locks: see `conn.rs`; nothing here is called with one held, and none is held across a call of a ULP.

use super::bindings as rdma;
use super::cm::SavedReq;
use super::conn::{Connection, Side};
use super::device::{device_name, driver_name, has_apm};
use super::events::Hint;
use super::name::Name;
use super::params::{self, Params};
use super::path::{self, Path};
use super::qp::QpRef;
use super::service::Service;
use super::stats;
use crate::apm::policy::{self, Facts, Verdict};
use crate::apm::reason::Reason;
use crate::apm::state::{Action, Event, State};
use crate::apm::stats::Stat;
use crate::wire::cm;
use kernel::ffi::c_int;
use kernel::sync::Arc;

/// What is left to do after the ULP has seen an event.
pub(crate) struct After {
    device: *mut rdma::ib_device,
    /// QP to look at, 0 for none.
    qpn: u32,
}

/// Decides about a connection with the parameters as they are now.
///
/// # Safety
///
/// `id` is a live cm_id.
unsafe fn verdict(
    id: *mut rdma::ib_cm_id,
    infiniband: bool,
    service_id: u64,
    ulp: Option<&Name>,
) -> Verdict {
    let params = Params::read();
    // SAFETY: A cm_id's device is registered as long as the cm_id lives.
    let (device, driver, apm) = unsafe {
        let dev = (*id).device;
        (device_name(dev), driver_name(dev), has_apm(dev))
    };
    policy::verdict(&Facts {
        enable: params.enable,
        devices: params.devices(),
        drivers: params.drivers(),
        device: device.as_str(),
        driver: driver.as_str(),
        infiniband,
        apm,
        service_id,
        ulp: ulp.map(Name::as_str),
        user: ulp.is_some_and(|u| u.as_str() == "user"),
    })
}

impl Service {
    /// Logs why connections of a device have no alternate, the first time.
    fn log_once(&self, dev: *mut rdma::ib_device, reason: Reason) {
        if let Some(device) = self.devices.enter(dev) {
            // SAFETY: Inside the device's gate.
            let name = unsafe { device_name(device.raw()) };
            device.log_once(&name, reason);
        }
    }

    /// A REQ is about to be sent. Makes the connection known and, where it is to have one, fills in an
    /// alternate; `None` to send the REQ as it is.
    ///
    /// # Safety
    ///
    /// `id` and `param` are what `ib_send_cm_req` is called with, during that call.
    pub(crate) unsafe fn offer(
        &self,
        id: *mut rdma::ib_cm_id,
        param: &rdma::ib_cm_req_param,
        record: &mut rdma::sa_path_rec,
    ) -> Option<()> {
        if param.qp_type != rdma::ib_qp_type_IB_QPT_RC {
            return None;
        }
        stats::count(Stat::ReqSeen);
        // SAFETY: `id` is live, and with it its device.
        let dev = unsafe { (*id).device };
        // SAFETY: `dev` is registered.
        let ulp = unsafe { QpRef::find(dev, param.qp_num) }.map(|qp| qp.owner());
        let service_id = u64::from_be(param.service_id);
        let shown = ulp.unwrap_or(Name::from_str(policy::ulp_by_service(service_id)));
        // SAFETY: `id` is live.
        let conn = unsafe { Connection::new(id, Side::Active, shown) }.ok()?;
        // SAFETY: As above; the caller keeps what `param` points to.
        let primary = unsafe { path::primary(dev, param) };
        {
            let mut inner = conn.lock();
            inner.qpn = param.qp_num;
            inner.path = primary.as_ref().map(Path::from).unwrap_or_default();
        }
        self.table.insert(&conn).ok()?;
        self.table.insert_qp(&conn, param.qp_num).ok()?;
        // SAFETY: `id` is live.
        let verdict = unsafe { verdict(id, primary.is_some(), service_id, ulp.as_ref()) };
        let (Verdict::Serve, Some(primary)) = (verdict, primary) else {
            let reason = match verdict {
                Verdict::LeaveAlone(reason) | Verdict::Refuse(reason) => reason,
                Verdict::Serve => Reason::CmState,
            };
            let mut inner = conn.lock();
            inner.hands_off = matches!(verdict, Verdict::LeaveAlone(_));
            inner.apply(Event::Excluded(reason));
            drop(inner);
            self.log_once(dev, reason);
            return None;
        };
        if !param.alternate_path.is_null() {
            // The ULP has chosen one itself.
            conn.lock().apply(Event::Offer);
            return None;
        }
        conn.lock().apply(Event::Resolve);
        let found = self.cache.alternate(
            &self.devices,
            &self.queue,
            dev,
            &primary,
            params::req_hold_ms(),
        );
        let prepared = found.and_then(|alternate| {
            // SAFETY: Checked to be there by `path::primary`.
            *record = path::alternate_record(unsafe { &*param.primary_path }, &alternate);
            // SAFETY: `dev` is registered.
            unsafe { path::validate(dev, alternate.port, record) }?;
            // Without a way to see a REJ a refused alternate would cost the connection.
            // SAFETY: `id` is live, `param` what it is called with.
            let saved = unsafe {
                if !self.handlers.cover(id) {
                    return Err(Reason::CmState);
                }
                SavedReq::new(param).map_err(|_| Reason::CmState)?
            };
            Ok((alternate, saved))
        });
        let mut inner = conn.lock();
        match prepared {
            Ok((alternate, saved)) if !inner.dead => {
                inner.apply(Event::Offer);
                inner.alternate = Some(Path::from(&alternate));
                inner.saved = Some(saved);
                stats::count(Stat::AlternateOffered);
                Some(())
            }
            Ok((_, saved)) => {
                inner.apply(Event::NoAlternate(Reason::PolicyOff));
                drop(inner);
                drop(saved);
                None
            }
            Err(reason) => {
                inner.apply(Event::NoAlternate(reason));
                drop(inner);
                self.log_once(dev, reason);
                None
            }
        }
    }

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
            None if rtr => match unsafe { self.passive(id, attr) } {
                Some(conn) => conn,
                None => return,
            },
            None => return,
        };
        let mut inner = conn.lock();
        if rtr {
            if conn.side == Side::Active || inner.was_offered {
                inner.peer_qpn = attr.dest_qp_num;
            }
            // SAFETY: `id` is live, and with it its device.
            if attr.ah_attr.type_ == rdma::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB {
                // SAFETY: As above; the attributes are for InfiniBand.
                let (path, alternate) =
                    unsafe { path::from_attr((*id).device, attr, *mask as u32) };
                if inner.path.port == 0 || conn.side == Side::Passive {
                    inner.path = path;
                }
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
    /// `id` is a live cm_id, `attr` made for it for RTR.
    unsafe fn passive(
        &self,
        id: *mut rdma::ib_cm_id,
        attr: &rdma::ib_qp_attr,
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
        let verdict = unsafe { verdict(id, infiniband, service_id, None) };
        // The CM gives an alternate a LID, always; its port is 0 where it is none of ours.
        // SAFETY: Attributes of the type IB where this is looked at.
        let alternate = infiniband.then(|| unsafe { path::ah_dlid(&attr.alt_ah_attr) });
        let offered = alternate.is_some_and(|dlid| dlid != 0) && attr.alt_port_num != 0;
        let mut inner = conn.lock();
        inner.was_offered = offered;
        inner.peer_qpn = attr.dest_qp_num;
        let reason = match verdict {
            Verdict::LeaveAlone(reason) => {
                inner.hands_off = true;
                Some(reason)
            }
            Verdict::Refuse(reason) => Some(reason),
            Verdict::Serve if !offered => Some(Reason::NotOffered),
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
                State::Unprotected(Reason::AlternateNotDisjoint) => cm::FAILOVER_REJECTED,
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
                if declined != cm::FAILOVER_ACCEPTED && inner.state() == State::Offered {
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
                        && inner.apply(Event::Refused(reason as u8)) == Action::Resend
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

    /// A REQ could not be sent.
    pub(crate) fn forget(&self, id: *mut rdma::ib_cm_id) {
        if let Some(conn) = self.table.remove(id) {
            conn.kill();
        }
    }

    /// A cm_id is about to be destroyed.
    ///
    /// # Safety
    ///
    /// `id` is live.
    pub(crate) unsafe fn end(&self, id: *mut rdma::ib_cm_id) {
        if let Some(conn) = self.table.remove(id) {
            conn.lock().apply(Event::Close);
            conn.kill();
            return;
        }
        // SAFETY: By the function's contract.
        if unsafe { super::cm::is_established(id) } {
            stats::count(Stat::PredatesLoad);
        }
    }
}

/// Whether attributes for RTR name the same path twice.
///
/// # Safety
///
/// The attributes are for InfiniBand and name an alternate.
unsafe fn same_path(attr: &rdma::ib_qp_attr) -> bool {
    // SAFETY: By the function's contract.
    let (dlid, alternate) = unsafe {
        (
            path::ah_dlid(&attr.ah_attr),
            path::ah_dlid(&attr.alt_ah_attr),
        )
    };
    dlid == alternate && attr.ah_attr.port_num == attr.alt_port_num
}
