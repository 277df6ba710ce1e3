// SPDX-License-Identifier: GPL-2.0-only

//! Memory regions as core sees them: `ib_mr`, and the page lists that `ib_map_mr_sg` makes.

use super::bindings;
use super::hca::{self, Hca};
use super::pd;
use super::region::{key, Stage, MAX_PAGES};
use kernel::prelude::*;
use kernel::sync::Arc;

/// Core's memory region with ours behind it.
#[repr(C)]
struct VMr {
    ib: bindings::ib_mr,
    hca: Arc<Hca>,
    index: u32,
    stage: Option<Arc<Stage>>,
}

/// Makes core's object for a region that the table knows already.
fn publish(hca: Arc<Hca>, index: u32, stage: Option<Arc<Stage>>) -> Result<*mut bindings::ib_mr> {
    let mut v = KBox::new(
        VMr {
            ib: bindings::ib_mr::default(),
            hca,
            index,
            stage,
        },
        GFP_KERNEL,
    )?;
    v.ib.lkey = key(index);
    v.ib.rkey = key(index);
    Ok(KBox::into_raw(v).cast())
}

fn create(pd: *mut bindings::ib_pd, access: u32, max: Option<u32>) -> Result<*mut bindings::ib_mr> {
    // SAFETY: Core hands us a live protection domain of a live device of ours.
    let (hca, id): (Arc<Hca>, u32) = unsafe { (hca::from_ib((*pd).device).into(), pd::id(pd)) };
    let stage = max.map(Stage::new).transpose()?;
    let index = {
        let mut st = hca.shared.lock();
        let mrs = &mut st.hca(hca.index).mrs;
        match (max, &stage) {
            (Some(max), Some(stage)) => mrs.add_fast(id, max, stage.clone())?,
            _ => mrs.add_dma(id, access)?,
        }
    };
    publish(hca.clone(), index, stage)
        .inspect_err(|_| hca.shared.lock().hca(hca.index).mrs.remove(index))
}

fn to_ptr(r: Result<*mut bindings::ib_mr>) -> *mut bindings::ib_mr {
    match r {
        Ok(p) => p,
        Err(e) => e.to_errno() as isize as *mut bindings::ib_mr,
    }
}

/// `get_dma_mr`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn get_dma(
    pd: *mut bindings::ib_pd,
    access: i32,
) -> *mut bindings::ib_mr {
    to_ptr(create(pd, access as u32, None))
}

/// `alloc_mr`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn alloc(
    pd: *mut bindings::ib_pd,
    kind: bindings::ib_mr_type,
    max: u32,
) -> *mut bindings::ib_mr {
    if kind != bindings::ib_mr_type_IB_MR_TYPE_MEM_REG {
        return to_ptr(Err(EOPNOTSUPP));
    }
    if max == 0 || max > MAX_PAGES {
        return to_ptr(Err(EINVAL));
    }
    to_ptr(create(pd, 0, Some(max)))
}

/// `reg_user_mr`: core wants it there, but there are no user space verbs.
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn reg_user(
    _pd: *mut bindings::ib_pd,
    _start: u64,
    _length: u64,
    _virt: u64,
    _access: i32,
    _dmah: *mut bindings::ib_dmah,
    _udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_mr {
    to_ptr(Err(EOPNOTSUPP))
}

/// `dereg_mr`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn dereg(
    mr: *mut bindings::ib_mr,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    // SAFETY: Made by `publish`, given back once.
    let v = unsafe { KBox::from_raw(mr.cast::<VMr>()) };
    // With the engine's lock no copy is under way, and none comes after.
    v.hca.shared.lock().hca(v.hca.index).mrs.remove(v.index);
    0
}

/// Takes a page from `ib_sg_to_pages`.
///
/// # Safety
///
/// For `ib_sg_to_pages` alone, called by [`map_sg`].
unsafe extern "C" fn set_page(mr: *mut bindings::ib_mr, addr: u64) -> i32 {
    // SAFETY: Called by `ib_sg_to_pages` with the region that `map_sg` gave it.
    let v = unsafe { &*mr.cast::<VMr>() };
    match &v.stage {
        Some(stage) if stage.push(addr) => 0,
        _ => ENOMEM.to_errno(),
    }
}

/// `map_mr_sg`; any context.
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn map_sg(
    mr: *mut bindings::ib_mr,
    sg: *mut kernel::bindings::scatterlist,
    n: i32,
    offset: *mut u32,
) -> i32 {
    let v = mr.cast::<VMr>();
    // SAFETY: A live region of ours; its consumer does not map it twice at once.
    let Some(stage) = (unsafe { (*v).stage.as_ref() }) else {
        return EINVAL.to_errno();
    };
    stage.clear();
    // SAFETY: Arguments as we got them.
    let mapped = unsafe { bindings::ib_sg_to_pages(mr, sg, n, offset, Some(set_page)) };
    // SAFETY: As above; `ib_sg_to_pages` has filled these in.
    unsafe { stage.cover((*mr).iova, (*mr).length, (*mr).page_size) };
    mapped
}

/// Index, by which a work request names a region.
///
/// # Safety
///
/// `mr` is a live region of ours.
pub(crate) unsafe fn index(mr: *mut bindings::ib_mr) -> u32 {
    // SAFETY: By the caller's promise.
    unsafe { (*mr.cast::<VMr>()).index }
}
