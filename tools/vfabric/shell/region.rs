// SPDX-License-Identifier: GPL-2.0-only

//! The memory regions of an HCA: what its keys open.
//!
//! The device has no DMA device, so addresses are kernel pointers and the data path is a copy.
//!
//! Locks: the table belongs to the engine; a region's staged page list has a lock of its own, since
//! `ib_map_mr_sg` may be called in any context.

use super::bindings;
use crate::model::host::{Access, MemError};
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::{new_spinlock_irq, Arc, SpinLockIrq};

/// Longest page list of a fast registration.
pub(crate) const MAX_PAGES: u32 = 512;

/// Keys are `index << 8 | key byte`; the consumer may change the key byte with each registration.
const KEY_BITS: u32 = 8;
const MAX_INDEX: u32 = 0xff_ffff;

/// The first key of a region.
pub(crate) fn key(index: u32) -> u32 {
    index << KEY_BITS
}

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

impl Stage {
    /// Room for `max` pages.
    pub(crate) fn new(max: u32) -> Result<Arc<Self>> {
        let pages = Pages::new(max as usize)?;
        Arc::pin_init(
            pin_init!(Self { pages <- new_spinlock_irq!(pages) }),
            GFP_KERNEL,
        )
    }

    /// Begins a new list.
    pub(crate) fn clear(&self) {
        self.pages.lock().list.clear();
    }

    /// Adds a page; whether there was room.
    pub(crate) fn push(&self, addr: u64) -> bool {
        self.pages.lock().list.push_within_capacity(addr).is_ok()
    }

    /// Says what the list covers.
    pub(crate) fn cover(&self, iova: u64, len: u64, page_size: u32) {
        let mut p = self.pages.lock();
        p.iova = iova;
        p.len = len;
        p.page_size = page_size.into();
    }
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

    /// A key to all of memory.
    pub(crate) fn add_dma(&mut self, pd: u32, access: u32) -> Result<u32> {
        self.insert(Kind::Dma, pd, access, true)
    }

    /// A region for fast registration of up to `max` pages; they come from `stage`.
    pub(crate) fn add_fast(&mut self, pd: u32, max: u32, stage: Arc<Stage>) -> Result<u32> {
        let pages = Pages::new(max as usize)?;
        self.insert(Kind::Fast(pages, stage), pd, 0, false)
    }

    /// Forgets a region; its key opens nothing any more.
    pub(crate) fn remove(&mut self, index: u32) {
        self.tree.remove(&index);
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
            key: key(index),
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
