// SPDX-License-Identifier: GPL-2.0-only

//! A queue that grows up to a limit and then refuses.

use super::super::super::mem::{AllocError, KVVec, GFP_ATOMIC, GFP_KERNEL};

/// First in, first out.
///
/// # Invariants
///
/// `len` slots from `head` on, around the end of `slots`, are `Some`, all others are `None`.
#[derive(Debug)]
pub(super) struct Ring<T> {
    slots: KVVec<Option<T>>,
    head: usize,
    len: usize,
    limit: usize,
}

impl<T> Ring<T> {
    /// A queue with room for `initial` that may grow to `limit`. May sleep.
    pub(super) fn new(initial: usize, limit: usize) -> Result<Self, AllocError> {
        let mut slots = KVVec::with_capacity(initial, GFP_KERNEL)?;
        for _ in 0..initial {
            slots.push(None, GFP_KERNEL)?;
        }
        Ok(Ring {
            slots,
            head: 0,
            len: 0,
            limit,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The oldest.
    pub(super) fn front(&self) -> Option<&T> {
        self.slots.get(self.head)?.as_ref()
    }

    /// All, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let places = (0..self.len).map(|offset| self.index(offset));
        places.filter_map(|at| self.slots.get(at)?.as_ref())
    }

    /// Appends `item`, or gives it back where there is no room and no memory for more. Does not
    /// sleep.
    pub(super) fn push(&mut self, item: T) -> Result<(), T> {
        if self.len >= self.slots.len() && self.grow().is_err() {
            return Err(item);
        }
        let at = self.index(self.len);
        match self.slots.get_mut(at) {
            Some(slot) => {
                *slot = Some(item);
                self.len += 1;
                Ok(())
            }
            None => Err(item),
        }
    }

    /// Takes the oldest.
    pub(super) fn pop(&mut self) -> Option<T> {
        let item = self.slots.get_mut(self.head)?.take()?;
        self.head = self.index(1);
        self.len -= 1;
        Some(item)
    }

    fn index(&self, offset: usize) -> usize {
        let at = self.head + offset;
        if at >= self.slots.len() {
            at - self.slots.len()
        } else {
            at
        }
    }

    fn grow(&mut self) -> Result<(), AllocError> {
        let old = self.slots.len();
        let size = old.saturating_mul(2).max(16).min(self.limit);
        if size <= old {
            return Err(AllocError);
        }
        let mut slots = KVVec::with_capacity(size, GFP_ATOMIC)?;
        for offset in 0..old {
            let at = self.index(offset);
            slots.push(self.slots.get_mut(at).and_then(Option::take), GFP_ATOMIC)?;
        }
        for _ in old..size {
            slots.push(None, GFP_ATOMIC)?;
        }
        self.slots = slots;
        self.head = 0;
        Ok(())
    }
}
