// SPDX-License-Identifier: GPL-2.0-only

//! The active side of setting up a connection: an alternate for the REQ.
//!
//! Locks: see `conn.rs`; nothing here is called with one held, and none is held across a call of a ULP.

use super::bindings as rdma;
use super::cm::SavedReq;
use super::conn::{Connection, Side};
use super::device::{device_name, driver_name, has_apm};
use super::name::Name;
use super::params::{self, Params};
use super::path::{self, Path};
use super::qp::QpRef;
use super::rearm::{self, Patience};
use super::requests;
use super::service::Service;
use super::stats;
use crate::apm::policy::{self, Facts, Verdict};
use crate::apm::reason::Reason;
use crate::apm::state::Event;
use crate::apm::stats::Stat;
use crate::apm::timers::{self, Timers};

/// Decides about a connection with the parameters as they are now.
///
/// # Safety
///
/// `dev` stays registered during this call.
pub(super) unsafe fn verdict(
    dev: *mut rdma::ib_device,
    infiniband: bool,
    service_id: u64,
    ulp: Option<&Name>,
) -> Verdict {
    let Ok(params) = Params::read() else {
        return Verdict::LeaveAlone(Reason::CmState);
    };
    // SAFETY: By the function's contract.
    let (device, driver, apm) = unsafe { (device_name(dev), driver_name(dev), has_apm(dev)) };
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

/// Paths for a REQ.
#[derive(Default)]
pub(crate) struct Records {
    /// The alternate.
    pub(crate) alternate: rdma::sa_path_rec,
    /// The path in use: the one that the ULP has given, or one with other LIDs of the same ports.
    pub(crate) primary: rdma::sa_path_rec,
    /// How often the HCAs are to repeat a packet, where not as the ULP says.
    pub(crate) retry_count: Option<u8>,
}

/// What the REQ is to say about time, with the alternate that it names; `None`: what it says now.
///
/// # Safety
///
/// `dev` stays registered during this call.
unsafe fn timers(dev: *mut rdma::ib_device, given: Timers, records: &Records) -> Option<Timers> {
    if !params::timers() {
        return None;
    }
    timers::choose(&timers::Facts {
        given: Timers {
            packet_life_time: given
                .packet_life_time
                .max(records.alternate.packet_life_time),
            ..given
        },
        // One that is set by `rdma_set_ack_timeout` goes to the QP after ib_cm, and so is kept.
        ulp_timeout: false,
        // SAFETY: By the function's contract.
        ack_delay: unsafe { rearm::ack_delay(dev) },
        keep_alive_ms: params::keep_alive_ms().into(),
    })
}

impl Service {
    /// Logs why connections of a device have no alternate, the first time.
    pub(super) fn log_once(&self, dev: *mut rdma::ib_device, reason: Reason) {
        if let Some(device) = self.devices.enter(dev) {
            // SAFETY: Inside the device's gate.
            let name = unsafe { device_name(device.raw()) };
            device.log_once(&name, reason);
        }
    }

    /// A REQ is about to be sent. Makes the connection known and, where it is to have one, fills in an
    /// alternate, and the path to be used with it; `None` to send the REQ as it is.
    ///
    /// # Safety
    ///
    /// `id` and `param` are what `ib_send_cm_req` is called with, during that call.
    pub(crate) unsafe fn offer(
        &self,
        id: *mut rdma::ib_cm_id,
        param: &rdma::ib_cm_req_param,
        records: &mut Records,
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
            if let Some(primary) = &primary {
                // SAFETY: Checked to be there and of the type IB by `path::primary`.
                inner.path = Path::from_record(primary.port, unsafe { &*param.primary_path });
            }
        }
        // Sent once before, and refused.
        self.forget(id);
        self.table.insert(&conn).ok()?;
        self.table.insert_qp(&conn, param.qp_num).ok()?;
        // SAFETY: A cm_id's device is registered as long as the cm_id lives.
        let verdict = unsafe { verdict((*id).device, primary.is_some(), service_id, ulp.as_ref()) };
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
        // SAFETY: Checked to be there by `path::primary`.
        let life = unsafe { (*param.primary_path).packet_life_time };
        let mut patience = Patience {
            remote_response: param.remote_cm_response_timeout,
            local_response: param.local_cm_response_timeout,
            cm_retries: param.max_cm_retries,
            timers: Timers {
                packet_life_time: life,
                retry_count: param.retry_count,
            },
        };
        // SAFETY: `id` is live.
        if unsafe { self.handlers.cover(id) } {
            // SAFETY: `dev` is registered.
            let machine = unsafe { rearm::machine(dev, Side::Active, &patience) };
            let mut inner = conn.lock();
            inner.rearm = machine.ok();
            inner.response_timeout = param.remote_cm_response_timeout;
        }
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
            let given = unsafe { &*param.primary_path };
            records.alternate = path::alternate_record(given, &alternate);
            records.primary = path::primary_record(given, &alternate);
            // SAFETY: `dev` is registered.
            unsafe {
                if !requests::is_on(&self.devices, dev, &alternate.path.sgid) {
                    return Err(Reason::AlternateOnOtherHca);
                }
                path::validate(dev, alternate.port, &mut records.alternate)?;
            }
            if alternate.primary_lids != (primary.slid, primary.dlid) {
                if !param.primary_path_inbound.is_null() || !param.primary_path_outbound.is_null() {
                    // Through routers, with other LIDs in two more records.
                    return Err(Reason::AlternateNotDisjoint);
                }
                // SAFETY: As above.
                unsafe { path::validate(dev, primary.port, &mut records.primary) }?;
                stats::count(Stat::PrimaryReplaced);
            }
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
                // SAFETY: `dev` is registered.
                if let Some(chosen) = unsafe { timers(dev, patience.timers, records) } {
                    records.primary.packet_life_time = chosen.packet_life_time;
                    records.alternate.packet_life_time = chosen.packet_life_time;
                    records.retry_count = Some(chosen.retry_count);
                    stats::count(Stat::TimersSet);
                    if inner.rearm.is_some() {
                        patience.timers = chosen;
                        // SAFETY: `dev` is registered.
                        inner.rearm = unsafe { rearm::machine(dev, Side::Active, &patience) }.ok();
                    }
                }
                inner.path = Path::from_record(primary.port, &records.primary);
                inner.alternate = Some(Path::from_record(alternate.port, &records.alternate));
                inner.disjoint = Some(alternate.disjoint);
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

    /// A REQ could not be sent, or is sent anew.
    pub(crate) fn forget(&self, id: *mut rdma::ib_cm_id) {
        if let Some(conn) = self.table.remove(id) {
            conn.kill();
        }
    }
}
