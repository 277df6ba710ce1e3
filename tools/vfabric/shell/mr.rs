// SPDX-License-Identifier: GPL-2.0

//! Memory regions: the consumer's side (`ib_mr`, page lists) and the table of an HCA's keys.
//!
//! The device has no DMA device, so addresses are kernel pointers and the data path is a copy.
//!
//! Locks: the table belongs to the engine; a region's staged page list has a lock of its own, since
//! `ib_map_mr_sg` may be called in any context.

use super::bindings;
use super::hca::{self, Hca};
use super::pd;
use crate::model::host::{Access, MemError};
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::{new_spinlock_irq, Arc, SpinLockIrq};

/// Longest page list of a fast registration.
pub(crate) const MAX_PAGES: u32 = 512;

/// Keys are `index << 8 | key byte`; the consumer may change the key byte with each registration.
const KEY_BITS: u32 = 8;
const MAX_INDEX: u32 = 0xff_ffff;

/// A mapped range.
struct Pages {
    iova: u64,
    len: u64,
    page_size: u64,
    list: KVVec<u64>,
}

impl Pages {
    fn new(max: usize) -> Result<Self> {
        Ok(Self {
            iova: 0,
            len: 0,
            page_size: 4096,
            list: KVVec::with_capacity(max, GFP_KERNEL)?,
        })
    }
}

/// What `ib_map_mr_sg` has prepared and no registration has taken yet.
#[pin_data]
pub(crate) struct Stage {
    #[pin]
    pages: SpinLockIrq<Pages>,
}

/// Core's memory region with ours behind it.
#[repr(C)]
struct VMr {
    ib: bindings::ib_mr,
    hca: Arc<Hca>,
    index: u32,
    stage: Option<Arc<Stage>>,
}

enum Kind {
    /// All of memory, addressed by kernel pointers.
    Dma,
    /// What a fast registration covers.
    Fast(Pages, Arc<Stage>),
}

/// A region as the HCA knows it.
struct Region {
    key: u32,
    pd: u32,
    access: u32,
    valid: bool,
    kind: Kind,
}

/// The memory regions of one HCA.
pub(crate) struct Regions {
    tree: RBTree<u32, Region>,
    next: u32,
}

/// Direction of a copy, with the buffer outside of the region.
pub(crate) enum Copy<'a> {
    /// From the region.
    Out(&'a mut [u8]),
    /// Into the region.
    In(&'a [u8]),
}

impl Copy<'_> {
    fn len(&self) -> usize {
        match self {
            Copy::Out(b) => b.len(),
            Copy::In(b) => b.len(),
        }
    }

    /// Copies `n` bytes at offset `at` of the buffer from or to `addr`.
    ///
    /// # Safety
    ///
    /// `addr` is memory that the consumer has given to the HCA, `n` bytes of it.
    unsafe fn run(&mut self, at: usize, n: usize, addr: u64) -> Result<(), MemError> {
        let end = at.checked_add(n).ok_or(MemError::Length)?;
        match self {
            Copy::Out(b) => {
                let b = b.get_mut(at..end).ok_or(MemError::Length)?;
                // SAFETY: By the caller's promise; `b` is ours alone and `n` long.
                unsafe { bindings::vf_copy(b.as_mut_ptr().cast(), addr as *const _, n) };
            }
            Copy::In(b) => {
                let b = b.get(at..end).ok_or(MemError::Length)?;
                // SAFETY: By the caller's promise; `b` is `n` long.
                unsafe { bindings::vf_copy(addr as *mut _, b.as_ptr().cast(), n) };
            }
        }
        Ok(())
    }
}

impl Region {
    fn check(&self, key: u32, pd: u32, need: u32) -> Result<(), MemError> {
        if self.valid && self.key == key && self.pd == pd && self.access & need == need {
            Ok(())
        } else {
            Err(MemError::Protection)
        }
    }

    /// Whether `[addr, addr + len)` lies inside.
    fn bounds(&self, addr: u64, len: u64) -> Result<(), MemError> {
        let end = addr.checked_add(len).ok_or(MemError::Protection)?;
        match &self.kind {
            Kind::Dma => Ok(()),
            Kind::Fast(p, _) => {
                let last = p.iova.checked_add(p.len).ok_or(MemError::Protection)?;
                if addr >= p.iova && end <= last {
                    Ok(())
                } else {
                    Err(MemError::Protection)
                }
            }
        }
    }

    fn copy(&self, addr: u64, mut data: Copy<'_>) -> Result<(), MemError> {
        let len = data.len();
        self.bounds(addr, len as u64)?;
        let pages = match &self.kind {
            // SAFETY: The consumer named this memory in a work request, or gave the key of all
            // memory to its peer; it owns the memory until the request completes.
            Kind::Dma => return unsafe { data.run(0, len, addr) },
            Kind::Fast(p, _) => p,
        };
        // The first page begins where iova does, rounded down.
        let mut at = addr - pages.iova + (pages.iova & (pages.page_size - 1));
        let mut done = 0;
        while done < len {
            let page = pages
                .list
                .get((at / pages.page_size) as usize)
                .ok_or(MemError::Protection)?;
            let within = at & (pages.page_size - 1);
            let n = ((pages.page_size - within) as usize).min(len - done);
            // SAFETY: A page of a list that the consumer mapped, and within the page; the
            // registration is valid, so the consumer has not taken the memory back.
            unsafe { data.run(done, n, page + within)? };
            done += n;
            at += n as u64;
        }
        Ok(())
    }
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self {
            tree: RBTree::new(),
            next: 1,
        }
    }

    fn insert(&mut self, kind: Kind, pd: u32, access: u32, valid: bool) -> Result<u32> {
        let mut tries = 0;
        while self.tree.get(&self.next).is_some() {
            self.next = if self.next >= MAX_INDEX {
                1
            } else {
                self.next + 1
            };
            tries += 1;
            if tries > MAX_INDEX {
                return Err(ENOMEM);
            }
        }
        let index = self.next;
        self.next = if index >= MAX_INDEX { 1 } else { index + 1 };
        let region = Region {
            key: index << KEY_BITS,
            pd,
            access,
            valid,
            kind,
        };
        self.tree
            .insert(RBTreeNode::new(index, region, GFP_KERNEL)?);
        Ok(index)
    }

    /// Carries out a fast registration: the staged pages become reachable under `key`.
    pub(crate) fn register(&mut self, index: u32, key: u32, pd: u32, access: u32) -> bool {
        let Some(r) = self.tree.get_mut(&index) else {
            return false;
        };
        if key >> KEY_BITS != index || r.valid || r.pd != pd {
            return false;
        }
        let Kind::Fast(pages, stage) = &mut r.kind else {
            return false;
        };
        let mut staged = stage.pages.lock();
        if !staged.page_size.is_power_of_two() {
            return false;
        }
        core::mem::swap(pages, &mut *staged);
        drop(staged);
        r.key = key;
        r.access = access;
        r.valid = true;
        true
    }

    /// Ends a registration, by its owner's request.
    pub(crate) fn invalidate_local(&mut self, key: u32, pd: u32) -> bool {
        match self.tree.get_mut(&(key >> KEY_BITS)) {
            Some(r) if r.key == key && r.pd == pd && matches!(r.kind, Kind::Fast(..)) => {
                r.valid = false;
                true
            }
            _ => false,
        }
    }

    /// Ends a registration, by a SEND with invalidate.
    pub(crate) fn invalidate_remote(&mut self, key: u32, pd: u32) -> Result<(), MemError> {
        match self.tree.get_mut(&(key >> KEY_BITS)) {
            Some(r) if matches!(r.kind, Kind::Fast(..)) => {
                r.check(key, pd, 0)?;
                r.valid = false;
                Ok(())
            }
            _ => Err(MemError::Protection),
        }
    }

    /// Whether a peer may do `access` at `[va, va + len)`; `qp_access` are the QP's own flags.
    pub(crate) fn check_remote(
        &self,
        key: u32,
        pd: u32,
        qp_access: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), MemError> {
        if len == 0 {
            // IBA 9.7.4.1.1: nothing is accessed, nothing is checked.
            return Ok(());
        }
        let need = match access {
            Access::Read => bindings::ib_access_flags_IB_ACCESS_REMOTE_READ,
            Access::Write => bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE,
        };
        if qp_access & need == 0 {
            return Err(MemError::Protection);
        }
        let r = self
            .tree
            .get(&(key >> KEY_BITS))
            .ok_or(MemError::Protection)?;
        r.check(key, pd, need)?;
        r.bounds(va, len)
    }

    /// Copies for a peer.
    pub(crate) fn copy_remote(
        &self,
        key: u32,
        pd: u32,
        va: u64,
        data: Copy<'_>,
    ) -> Result<(), MemError> {
        if data.len() == 0 {
            return Ok(());
        }
        let need = match &data {
            Copy::Out(_) => bindings::ib_access_flags_IB_ACCESS_REMOTE_READ,
            Copy::In(_) => bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE,
        };
        let r = self
            .tree
            .get(&(key >> KEY_BITS))
            .ok_or(MemError::Protection)?;
        r.check(key, pd, need)?;
        r.copy(va, data)
    }

    /// Copies for the consumer's own work request.
    pub(crate) fn copy_local(
        &self,
        lkey: u32,
        pd: u32,
        addr: u64,
        mut data: Copy<'_>,
    ) -> Result<(), MemError> {
        let len = data.len();
        if len == 0 {
            return Ok(());
        }
        if lkey == 0 {
            // SAFETY: `local_dma_lkey` is 0 and says that `addr` is memory of the consumer, which
            // it leaves alone until the work request has completed.
            return unsafe { data.run(0, len, addr) };
        }
        let need = match &data {
            Copy::Out(_) => 0,
            Copy::In(_) => bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE,
        };
        let r = self
            .tree
            .get(&(lkey >> KEY_BITS))
            .ok_or(MemError::Protection)?;
        r.check(lkey, pd, need)?;
        r.copy(addr, data)
    }
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
    v.ib.lkey = index << KEY_BITS;
    v.ib.rkey = index << KEY_BITS;
    Ok(KBox::into_raw(v).cast())
}

fn create(pd: *mut bindings::ib_pd, access: u32, max: Option<u32>) -> Result<*mut bindings::ib_mr> {
    // SAFETY: Core hands us a live protection domain of a live device of ours.
    let (hca, id): (Arc<Hca>, u32) = unsafe { (hca::from_ib((*pd).device).into(), pd::id(pd)) };
    let (kind, stage) = match max {
        None => (Kind::Dma, None),
        Some(max) => {
            let pages = Pages::new(max as usize)?;
            let stage = Arc::pin_init(
                pin_init!(Stage { pages <- new_spinlock_irq!(pages) }),
                GFP_KERNEL,
            )?;
            (
                Kind::Fast(Pages::new(max as usize)?, stage.clone()),
                Some(stage),
            )
        }
    };
    let valid = max.is_none();
    let index = hca
        .shared
        .lock()
        .hca(hca.index)
        .mrs
        .insert(kind, id, access, valid)?;
    publish(hca.clone(), index, stage).inspect_err(|_| {
        hca.shared.lock().hca(hca.index).mrs.tree.remove(&index);
    })
}

fn to_ptr(r: Result<*mut bindings::ib_mr>) -> *mut bindings::ib_mr {
    match r {
        Ok(p) => p,
        Err(e) => e.to_errno() as isize as *mut bindings::ib_mr,
    }
}

/// `get_dma_mr`
pub(super) unsafe extern "C" fn get_dma(
    pd: *mut bindings::ib_pd,
    access: i32,
) -> *mut bindings::ib_mr {
    to_ptr(create(pd, access as u32, None))
}

/// `alloc_mr`
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
pub(super) unsafe extern "C" fn dereg(
    mr: *mut bindings::ib_mr,
    _udata: *mut bindings::ib_udata,
) -> i32 {
    // SAFETY: Made by `publish`, given back once.
    let v = unsafe { KBox::from_raw(mr.cast::<VMr>()) };
    // With the engine's lock no copy is under way, and none comes after.
    let gone = v
        .hca
        .shared
        .lock()
        .hca(v.hca.index)
        .mrs
        .tree
        .remove(&v.index);
    drop(gone);
    0
}

unsafe extern "C" fn set_page(mr: *mut bindings::ib_mr, addr: u64) -> i32 {
    // SAFETY: Called by `ib_sg_to_pages` with the region that `map_sg` gave it.
    let v = unsafe { &*mr.cast::<VMr>() };
    match &v.stage {
        Some(stage) if stage.pages.lock().list.push_within_capacity(addr).is_ok() => 0,
        _ => ENOMEM.to_errno(),
    }
}

/// `map_mr_sg`; any context.
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
    stage.pages.lock().list.clear();
    // SAFETY: Arguments as we got them.
    let mapped = unsafe { bindings::ib_sg_to_pages(mr, sg, n, offset, Some(set_page)) };
    let mut p = stage.pages.lock();
    // SAFETY: As above; `ib_sg_to_pages` has filled these in.
    unsafe {
        p.iova = (*mr).iova;
        p.len = (*mr).length;
        p.page_size = u64::from((*mr).page_size);
    }
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
