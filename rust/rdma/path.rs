// SPDX-License-Identifier: GPL-2.0-only

//! Path records of the kernel, from and to those of the search; and the check that ib_cm will take an
//! alternate.

use super::bindings as rdma;
use super::gid::{self, GidRef};
use crate::apm::reason::Reason;
use crate::apm::search::{Alternate, Primary};
use core::fmt;
use kernel::error::to_result;

/// What is shown of a path: local port and LIDs.
#[derive(Clone, Copy, Default)]
pub(crate) struct Path {
    /// Local port, from 1.
    pub(crate) port: u32,
    /// LID of the local port; 0 where it isn't known.
    pub(crate) slid: u16,
    /// LID of the remote port.
    pub(crate) dlid: u16,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}->{}", self.port, self.slid, self.dlid)
    }
}

/// The LIDs of a path record of type IB, source and destination.
fn lids(rec: &rdma::sa_path_rec) -> (u16, u16) {
    // SAFETY: The record is of the type IB, by the check of the callers.
    let ib = unsafe { rec.__bindgen_anon_1.ib.as_ref() };
    (u16::from_be(ib.slid), u16::from_be(ib.dlid))
}

/// The DLID of an address handle's attributes.
///
/// # Safety
///
/// They are of the type IB.
pub(crate) unsafe fn ah_dlid(ah: &rdma::rdma_ah_attr) -> u16 {
    // SAFETY: By the function's contract.
    unsafe { ah.__bindgen_anon_1.ib.as_ref() }.dlid
}

/// Source path bits of an address handle's attributes: what is added to the base LID of the port.
///
/// # Safety
///
/// They are of the type IB.
pub(crate) unsafe fn ah_path_bits(ah: &rdma::rdma_ah_attr) -> u8 {
    // SAFETY: By the function's contract.
    unsafe { ah.__bindgen_anon_1.ib.as_ref() }.src_path_bits
}

/// The LID that packets by these attributes leave with; `None` where the device has no such port.
///
/// # Safety
///
/// `dev` stays registered during this call; the attributes are of the type IB.
unsafe fn slid(dev: *mut rdma::ib_device, port: u32, ah: &rdma::rdma_ah_attr) -> Option<u16> {
    let mut attr = rdma::ib_port_attr::default();
    // SAFETY: By the function's contract; a port that the device has not makes the query fail.
    unsafe {
        to_result(rdma::ib_query_port(dev, port, &mut attr)).ok()?;
        Some(attr.lid as u16 | u16::from(ah_path_bits(ah)))
    }
}

/// The path in use as the search wants it; `None` where the link layer is not InfiniBand or the
/// local port is not one of this device.
///
/// # Safety
///
/// `dev` stays registered during this call; `param` is what `ib_send_cm_req` is called with.
pub(crate) unsafe fn primary(
    dev: *mut rdma::ib_device,
    param: &rdma::ib_cm_req_param,
) -> Option<Primary> {
    // SAFETY: The caller of `ib_send_cm_req` keeps the records and the GID during the call.
    let (rec, attr) = unsafe { (param.primary_path.as_ref()?, param.ppath_sgid_attr.as_ref()) };
    if rec.rec_type != rdma::sa_path_rec_type_SA_PATH_REC_TYPE_IB {
        return None;
    }
    // SAFETY: A plain array of bytes in each.
    let (sgid, dgid) = unsafe { (gid::read(&rec.sgid), gid::read(&rec.dgid)) };
    let port = match attr {
        Some(attr) => attr.port_num,
        // SAFETY: `dev` is registered.
        None => (1..=unsafe { (*dev).phys_port_cnt })
            // SAFETY: As above.
            .find(|port| unsafe { GidRef::find(dev, *port, &sgid) }.is_ok())?,
    };
    let (slid, dlid) = lids(rec);
    Some(Primary {
        port,
        sgid,
        dgid,
        slid,
        dlid,
        pkey: u16::from_be(rec.pkey),
        sl: rec.sl,
        mtu: rec.mtu,
    })
}

impl From<&Primary> for Path {
    fn from(p: &Primary) -> Self {
        Self {
            port: p.port,
            slid: p.slid,
            dlid: p.dlid,
        }
    }
}

impl From<&Alternate> for Path {
    fn from(a: &Alternate) -> Self {
        Self {
            port: a.port,
            slid: a.path.slid,
            dlid: a.path.dlid,
        }
    }
}

/// The path that `alternate` is to be used with.
pub(crate) fn used_with(primary: &Primary, alternate: &Alternate) -> Path {
    let (slid, dlid) = alternate.primary_lids;
    Path {
        port: primary.port,
        slid,
        dlid,
    }
}

/// An alternate as a record for `ib_send_cm_req`: the primary's record with another path in it.
pub(crate) fn alternate_record(
    primary: &rdma::sa_path_rec,
    alternate: &Alternate,
) -> rdma::sa_path_rec {
    let path = &alternate.path;
    // SAFETY: Plain data.
    let mut rec = unsafe { core::ptr::read(primary) };
    rec.sgid = gid::write(&path.sgid);
    rec.dgid = gid::write(&path.dgid);
    // SAFETY: The record is of the type IB, as the primary is.
    unsafe {
        let ib = rec.__bindgen_anon_1.ib.as_mut();
        ib.slid = path.slid.to_be();
        ib.dlid = path.dlid.to_be();
    }
    rec.flow_label = path.flow_label.to_be();
    rec.hop_limit = path.hop_limit;
    rec.traffic_class = path.traffic_class;
    rec.rate = path.rate;
    rec.packet_life_time = path.packet_life_time;
    rec
}

/// The primary's record with the LIDs that `alternate` is to be used with.
pub(crate) fn primary_record(
    primary: &rdma::sa_path_rec,
    alternate: &Alternate,
) -> rdma::sa_path_rec {
    let (slid, dlid) = alternate.primary_lids;
    // SAFETY: Plain data.
    let mut rec = unsafe { core::ptr::read(primary) };
    // SAFETY: The record is of the type IB: the search began with it.
    let ib = unsafe { rec.__bindgen_anon_1.ib.as_mut() };
    ib.slid = slid.to_be();
    ib.dlid = dlid.to_be();
    rec
}

/// Checks that `ib_send_cm_req` will take this alternate. It must: a failure there leaves the cm_id
/// unusable for a second try (it leaks its timewait structure), and ib_cm itself does not check that
/// the alternate leaves by a port of the same HCA.
///
/// # Safety
///
/// `dev` stays registered during this call.
pub(crate) unsafe fn validate(
    dev: *mut rdma::ib_device,
    port: u32,
    rec: &mut rdma::sa_path_rec,
) -> core::result::Result<(), Reason> {
    // SAFETY: A plain array of bytes.
    let sgid = unsafe { gid::read(&rec.sgid) };
    let mut index = 0;
    let mut attr = rdma::rdma_ah_attr::default();
    // SAFETY: `dev` is registered; attributes that were filled in are let go of again.
    unsafe {
        let _gid = GidRef::find(dev, port, &sgid).map_err(|_| Reason::PortDown)?;
        to_result(rdma::ib_find_cached_pkey(
            dev,
            port,
            u16::from_be(rec.pkey),
            &mut index,
        ))
        .map_err(|_| Reason::PkeyMissing)?;
        let made = rdma::ib_init_ah_attr_from_path(dev, port, rec, &mut attr, core::ptr::null());
        let leaves_with = slid(dev, port, &attr);
        rdma::rdma_destroy_ah_attr(&mut attr);
        to_result(made).map_err(|_| Reason::NoAlternateInSa)?;
        // ib_core takes the source path bits by the LMC as it was when it last heard of the port.
        if leaves_with.ok_or(Reason::PortDown)? != lids(rec).0 {
            return Err(Reason::NoAlternateInSa);
        }
        Ok(())
    }
}

/// The primary and, where the CM has one, the alternate path that attributes for RTR name.
///
/// # Safety
///
/// `dev` stays registered during this call; `attr` was filled in for RTR by `ib_cm_init_qp_attr`,
/// for the link layer InfiniBand.
pub(crate) unsafe fn from_attr(
    dev: *mut rdma::ib_device,
    attr: &rdma::ib_qp_attr,
    mask: u32,
) -> (Path, Option<Path>) {
    let path = |ah: &rdma::rdma_ah_attr, port: u32| Path {
        port,
        // SAFETY: `dev` is registered; attributes of the type IB.
        slid: unsafe { slid(dev, port, ah) }.unwrap_or(0),
        // SAFETY: As above.
        dlid: unsafe { ah_dlid(ah) },
    };
    let alternate = (mask & rdma::ib_qp_attr_mask_IB_QP_ALT_PATH != 0)
        .then(|| path(&attr.alt_ah_attr, attr.alt_port_num));
    (path(&attr.ah_attr, attr.ah_attr.port_num), alternate)
}
