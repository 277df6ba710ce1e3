// SPDX-License-Identifier: GPL-2.0-only

//! The kernel's fallible containers, as far as `model/` uses them, on top of the standard library.
//!
//! Names and signatures are those of `kernel::alloc`, so that `model/` does not know which of the
//! two it runs on.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// Allocation flags; they mean nothing on the host.
#[derive(Clone, Copy, Debug)]
pub struct Flags;

/// May sleep.
pub const GFP_KERNEL: Flags = Flags;
/// Must not sleep.
pub const GFP_ATOMIC: Flags = Flags;

/// Memory has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocError;

thread_local! {
    static FAILS_IN: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Makes one [`KVec::from_elem`] or [`KVec::zeroed`] of this thread fail, after `n` that succeed.
pub fn fail_once_after(n: usize) {
    FAILS_IN.set(Some(n));
}

/// Whether this is the allocation that has to fail.
fn fails() -> bool {
    let left = FAILS_IN.get();
    FAILS_IN.set(left.and_then(|n| n.checked_sub(1)));
    left == Some(0)
}

/// `kernel::alloc::KVec`.
#[derive(Debug, PartialEq, Eq)]
pub struct KVec<T>(Vec<T>);

/// `kernel::alloc::KVVec`.
pub type KVVec<T> = KVec<T>;

impl<T> KVec<T> {
    /// An empty vector.
    pub const fn new() -> Self {
        KVec(Vec::new())
    }

    /// An empty vector with room for `n`.
    pub fn with_capacity(n: usize, _flags: Flags) -> Result<Self, AllocError> {
        Ok(KVec(Vec::with_capacity(n)))
    }

    /// `n` copies of `v`.
    pub fn from_elem(v: T, n: usize, _flags: Flags) -> Result<Self, AllocError>
    where
        T: Clone,
    {
        if fails() {
            return Err(AllocError);
        }
        Ok(KVec(vec![v; n]))
    }

    /// `n` zeros. On the kernel's side this is far quicker than [`KVec::from_elem`].
    pub fn zeroed(n: usize, _flags: Flags) -> Result<Self, AllocError>
    where
        T: Clone + Default,
    {
        if fails() {
            return Err(AllocError);
        }
        Ok(KVec(vec![T::default(); n]))
    }

    /// Appends `v`.
    pub fn push(&mut self, v: T, _flags: Flags) -> Result<(), AllocError> {
        self.0.push(v);
        Ok(())
    }

    /// Takes the last element.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Makes room for `n` more.
    pub fn reserve(&mut self, n: usize, _flags: Flags) -> Result<(), AllocError> {
        self.0.reserve(n);
        Ok(())
    }

    /// Appends a copy of `s`.
    pub fn extend_from_slice(&mut self, s: &[T], _flags: Flags) -> Result<(), AllocError>
    where
        T: Clone,
    {
        self.0.extend_from_slice(s);
        Ok(())
    }

    /// Shortens to `n` elements.
    pub fn truncate(&mut self, n: usize) {
        self.0.truncate(n);
    }

    /// Drops all elements.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<T> Default for KVec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for KVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for KVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

/// `kernel::alloc::KBox`.
#[derive(Debug, PartialEq, Eq)]
pub struct KBox<T>(Box<T>);

impl<T> KBox<T> {
    /// `v` on the heap.
    pub fn new(v: T, _flags: Flags) -> Result<Self, AllocError> {
        Ok(KBox(Box::new(v)))
    }
}

impl<T> Deref for KBox<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for KBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
