// SPDX-License-Identifier: GPL-2.0-only

//! Path records of the kernel, from and to those of the search; and the check that ib_cm will take an
//! alternate.

use super::bindings as rdma;
use super::gid::{self, GidRef};
use crate::apm::path::FullPath;
use crate::apm::reason::Reason;
use crate::apm::search::{Alternate, Primary};
use core::fmt;
use core::ops::Deref;
use kernel::error::to_result;
use kernel::prelude::*;

/// A path of a connection, with what the connection has only once. Shown as `port:SLID->DLID`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// The way; fields that could not be learned are 0.
    pub(crate) way: FullPath,
    /// Partition key, membership bit included.
    pub(crate) pkey: u16,
    /// Path MTU (`enum ib_mtu`).
    pub(crate) mtu: u8,
}

impl Deref for Path {
    type Target = FullPath;

    fn deref(&self) -> &FullPath {
        &self.way
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}->{}", self.port, self.slid, self.dlid)
    }
}

impl From<&Alternate> for Path {
    fn from(alternate: &Alternate) -> Self {
        Self {
            way: FullPath::from(alternate),
            pkey: alternate.path.pkey,
            mtu: alternate.path.mtu,
        }
    }
}

impl Path {
    /// A path out of a record of type IB.
    pub(crate) fn from_record(port: u32, rec: &rdma::sa_path_rec) -> Self {
        let (slid, dlid) = lids(rec);
        Self {
            way: FullPath {
                port,
                // SAFETY: A plain array of bytes in each.
                dgid: unsafe { gid::read(&rec.dgid) },
                // SAFETY: As above.
                sgid: unsafe { gid::read(&rec.sgid) },
                dlid,
                slid,
                sl: rec.sl,
                rate: rec.rate,
                flow_label: u32::from_be(rec.flow_label),
                traffic_class: rec.traffic_class,
                hop_limit: rec.hop_limit,
                packet_life_time: rec.packet_life_time,
            },
            pkey: u16::from_be(rec.pkey),
            mtu: rec.mtu,
        }
    }

    /// The path as the kernel's functions want it.
    pub(crate) fn to_record(self) -> rdma::sa_path_rec {
        let mut rec = rdma::sa_path_rec {
            sgid: gid::write(&self.sgid),
            dgid: gid::write(&self.dgid),
            flow_label: self.flow_label.to_be(),
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            reversible: 1,
            numb_path: 1,
            pkey: self.pkey.to_be(),
            sl: self.sl,
            mtu: self.mtu,
            rate: self.rate,
            packet_life_time: self.packet_life_time,
            rec_type: rdma::sa_path_rec_type_SA_PATH_REC_TYPE_IB,
            ..Default::default()
        };
        // SAFETY: Of the type IB.
        let ib = unsafe { rec.__bindgen_anon_1.ib.as_mut() };
        ib.slid = self.slid.to_be();
        ib.dlid = self.dlid.to_be();
        rec
    }
}

/// Attributes of an address handle for a path; with a GRH they hold a reference to its GID entry.
///
/// # Invariants
///
/// Made by `ib_init_ah_attr_from_path`, and not given away.
pub(crate) struct AhAttr(rdma::rdma_ah_attr);

impl AhAttr {
    /// The attributes for a path from a port of `dev`.
    ///
    /// # Safety
    ///
    /// `dev` stays registered as long as the result lives.
    pub(crate) unsafe fn new(dev: *mut rdma::ib_device, path: &Path) -> Result<Self> {
        let mut rec = path.to_record();
        let mut attr = rdma::rdma_ah_attr::default();
        // SAFETY: By the function's contract; a failed call leaves nothing to let go of.
        to_result(unsafe {
            rdma::ib_init_ah_attr_from_path(dev, path.port, &mut rec, &mut attr, core::ptr::null())
        })?;
        // INVARIANT: Just made.
        Ok(Self(attr))
    }

    /// The attributes, for as long as this lives.
    pub(crate) fn as_ptr(&self) -> *const rdma::rdma_ah_attr {
        &self.0
    }

    /// The same, for functions that may write to them.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut rdma::rdma_ah_attr {
        &mut self.0
    }
}

impl Drop for AhAttr {
    fn drop(&mut self) {
        // SAFETY: By the invariant.
        unsafe { rdma::rdma_destroy_ah_attr(&mut self.0) };
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
        None => unsafe { GidRef::port_of(dev, &sgid) }?,
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

/// The primary and, where the CM has one, the alternate path that attributes for RTR name. What these do
/// not say is taken from `known`, the same paths as they were offered, or else left out.
///
/// # Safety
///
/// `dev` stays registered during this call; `attr` was filled in for RTR by `ib_cm_init_qp_attr`,
/// for the link layer InfiniBand.
pub(crate) unsafe fn from_attr(
    dev: *mut rdma::ib_device,
    attr: &rdma::ib_qp_attr,
    mask: u32,
    known: (&Path, Option<&Path>),
) -> (Path, Option<Path>) {
    let mtu = attr.path_mtu as u8;
    // SAFETY: By the function's contract.
    let path = |ah, port, known: Option<&Path>| unsafe { from_ah(dev, ah, port, mtu, known) };
    let alternate = (mask & rdma::ib_qp_attr_mask_IB_QP_ALT_PATH != 0)
        .then(|| path(&attr.alt_ah_attr, attr.alt_port_num, known.1));
    let primary = path(&attr.ah_attr, attr.ah_attr.port_num, Some(known.0));
    (primary, alternate)
}

/// The path that an address handle's attributes describe.
///
/// # Safety
///
/// `dev` stays registered during this call; the attributes are of the type IB.
unsafe fn from_ah(
    dev: *mut rdma::ib_device,
    ah: &rdma::rdma_ah_attr,
    port: u32,
    mtu: u8,
    known: Option<&Path>,
) -> Path {
    let known = known.copied().unwrap_or_default();
    let mut path = known;
    path.mtu = mtu;
    let way = &mut path.way;
    way.port = port;
    way.sl = ah.sl;
    way.rate = ah.static_rate;
    // SAFETY: By the function's contract.
    unsafe {
        way.slid = slid(dev, port, ah).unwrap_or(0);
        way.dlid = ah_dlid(ah);
        if u32::from(ah.ah_flags) & rdma::ib_ah_flags_IB_AH_GRH != 0 {
            way.dgid = gid::read(&ah.grh.dgid);
            way.flow_label = ah.grh.flow_label;
            way.hop_limit = ah.grh.hop_limit;
            way.traffic_class = ah.grh.traffic_class;
        }
        if !way.same_way(&known) {
            let mut own = rdma::ib_gid::default();
            if rdma::rdma_query_gid(dev, port, 0, &mut own) == 0 {
                way.sgid = gid::read(&own);
            }
        }
    }
    path
}
