// SPDX-License-Identifier: GPL-2.0-only

//! Work queues: what has been posted and not yet ended.
//!
//! A queue holds as many requests, of as many scatter/gather entries, as the queue pair was created
//! with. Consumers post in any context, under the queue's lock; the engine reads a request under the
//! same lock and ends it. Requests are named by running numbers that wrap at 2^32.

use super::bindings;
use super::mr;
use super::pd::{self, Av};
use kernel::prelude::*;

/// Most scatter/gather entries of a request.
pub(crate) const MAX_SGE: usize = 32;
/// Most requests in a queue.
pub(crate) const MAX_WR: u32 = 16384;

/// A scatter/gather entry.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// Scatter/gather list of one request, copied out of its queue.
pub(crate) struct SgList {
    entries: [Sge; MAX_SGE],
    n: usize,
}

impl SgList {
    pub(crate) fn new() -> Self {
        Self {
            entries: [Sge::default(); MAX_SGE],
            n: 0,
        }
    }

    pub(crate) fn entries(&self) -> &[Sge] {
        self.entries.get(..self.n).unwrap_or(&[])
    }
}

/// Datagram part of a send request.
#[derive(Clone, Copy, Default)]
pub(crate) struct UdDest {
    pub(crate) av: Av,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    pub(crate) pkey_index: u16,
}

/// What a send request carries beside its list.
#[derive(Clone, Copy)]
pub(crate) enum Extra {
    None,
    /// Immediate data, network byte order.
    Imm(u32),
    /// Key to invalidate, here or at the receiver.
    Invalidate(u32),
    /// Remote memory; `imm` for a WRITE with immediate.
    Rdma {
        va: u64,
        rkey: u32,
        imm: u32,
    },
    /// Fast registration of the region `index`.
    Register {
        index: u32,
        key: u32,
        access: u32,
    },
}

/// A send request.
#[derive(Clone, Copy)]
pub(crate) struct SendSlot {
    pub(crate) wr_id: u64,
    pub(crate) opcode: bindings::ib_wr_opcode,
    /// `enum ib_send_flags`
    pub(crate) flags: i32,
    pub(crate) len: u32,
    pub(crate) extra: Extra,
    n: u8,
}

/// A receive request.
#[derive(Clone, Copy)]
struct RecvSlot {
    wr_id: u64,
    n: u8,
}

/// Ring of requests with their lists.
struct Ring<S> {
    slots: KVVec<S>,
    sges: KVVec<Sge>,
    /// How many may be posted at once; the ring is rounded up to a power of two.
    limit: u32,
    max_sge: usize,
    /// Oldest request that has not ended.
    head: u32,
    /// Number of the next one to be posted.
    tail: u32,
}

impl<S: Copy> Ring<S> {
    fn new(empty: S, limit: u32, max_sge: u32) -> Result<Self> {
        let (depth, max_sge) = (rounded(limit), max_sge as usize);
        let total = depth.checked_mul(max_sge).ok_or(EINVAL)?;
        Ok(Self {
            limit,
            slots: KVVec::from_elem(empty, depth, GFP_KERNEL)?,
            sges: KVVec::from_elem(Sge::default(), total, GFP_KERNEL)?,
            max_sge,
            head: 0,
            tail: 0,
        })
    }

    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    fn full(&self) -> bool {
        self.len() >= self.limit
    }

    /// The ring's size is a power of two and divides 2^32: numbers may wrap.
    fn slot(&self, index: u32) -> usize {
        index as usize & (self.slots.len() - 1)
    }

    fn at(&self, index: u32) -> Option<usize> {
        (index.wrapping_sub(self.head) < self.len()).then(|| self.slot(index))
    }

    /// # Safety
    ///
    /// `list` holds `n` entries.
    unsafe fn put(&mut self, slot: S, list: *const bindings::ib_sge, n: usize) {
        let at = self.slot(self.tail);
        self.slots[at] = slot;
        let first = at * self.max_sge;
        for (i, out) in self.sges[first..first + n].iter_mut().enumerate() {
            // SAFETY: By the caller's promise.
            let s = unsafe { list.add(i).read_unaligned() };
            *out = Sge {
                addr: s.addr,
                len: s.length,
                lkey: s.lkey,
            };
        }
        self.tail = self.tail.wrapping_add(1);
    }

    fn list(&self, at: usize, n: usize, out: &mut SgList) {
        let first = at * self.max_sge;
        out.n = n;
        for (to, from) in out.entries.iter_mut().zip(&self.sges[first..first + n]) {
            *to = *from;
        }
    }
}

/// The ring size must divide 2^32, or running numbers would jump when they wrap.
fn rounded(limit: u32) -> usize {
    limit.max(1).next_power_of_two() as usize
}

/// A send queue.
pub(crate) struct SendQueue {
    ring: Ring<SendSlot>,
    /// As many datagram addresses as slots, for queue pairs that have them.
    dests: KVVec<UdDest>,
}

impl SendQueue {
    pub(crate) fn new(wr: u32, max_sge: u32, datagram: bool) -> Result<Self> {
        let empty = SendSlot {
            wr_id: 0,
            opcode: bindings::ib_wr_opcode_IB_WR_SEND,
            flags: 0,
            len: 0,
            extra: Extra::None,
            n: 0,
        };
        let n = if datagram { rounded(wr) } else { 0 };
        Ok(Self {
            ring: Ring::new(empty, wr, max_sge)?,
            dests: KVVec::from_elem(UdDest::default(), n, GFP_KERNEL)?,
        })
    }

    /// Takes a request from a consumer.
    ///
    /// # Safety
    ///
    /// `request` is a valid work request of its opcode's type.
    pub(crate) unsafe fn post(&mut self, request: *const bindings::ib_send_wr) -> Result {
        if self.ring.full() {
            return Err(ENOMEM);
        }
        // SAFETY: By the caller's promise.
        let wr = &unsafe { request.read_unaligned() };
        let n = usize::try_from(wr.num_sge).map_err(|_| EINVAL)?;
        let flags = wr.send_flags;
        if n > self.ring.max_sge || flags & bindings::ib_send_flags_IB_SEND_INLINE != 0 {
            return Err(EINVAL);
        }
        let mut len: u32 = 0;
        for i in 0..n {
            // SAFETY: The request has `num_sge` entries.
            let l = unsafe { wr.sg_list.add(i).read_unaligned() }.length;
            len = len.checked_add(l).ok_or(EINVAL)?;
        }
        let at = self.ring.slot(self.ring.tail);
        let extra = match self.dests.get_mut(at) {
            // SAFETY: By the caller's promise; only a datagram queue has destinations.
            Some(dest) => unsafe { datagram(request, wr, dest)? },
            // SAFETY: By the caller's promise.
            None => unsafe { connected(request, wr)? },
        };
        let slot = SendSlot {
            // SAFETY: An integer or a pointer: eight bytes.
            wr_id: wr.__bindgen_anon_1.bindgen_union_field,
            opcode: wr.opcode,
            flags,
            len,
            extra,
            n: n as u8,
        };
        // SAFETY: As above.
        unsafe { self.ring.put(slot, wr.sg_list, n) };
        Ok(())
    }

    /// The request `index`, if it is posted and has not ended.
    pub(crate) fn get(&self, index: u32) -> Option<&SendSlot> {
        self.ring.at(index).and_then(|at| self.ring.slots.get(at))
    }

    /// Copies the list of request `index`.
    pub(crate) fn list(&self, index: u32, out: &mut SgList) -> Option<()> {
        let at = self.ring.at(index)?;
        let n = self.ring.slots.get(at)?.n;
        self.ring.list(at, n.into(), out);
        Some(())
    }

    /// The oldest request of a datagram queue, where it goes and its list.
    pub(crate) fn front(&self, list: &mut SgList) -> Option<(SendSlot, UdDest)> {
        let at = self.ring.at(self.ring.head)?;
        let slot = *self.ring.slots.get(at)?;
        self.ring.list(at, slot.n.into(), list);
        Some((slot, *self.dests.get(at)?))
    }

    /// Ends the oldest request.
    pub(crate) fn pop(&mut self) -> Option<SendSlot> {
        let at = self.ring.at(self.ring.head)?;
        self.ring.head = self.ring.head.wrapping_add(1);
        self.ring.slots.get(at).copied()
    }

    /// Requests that have not ended.
    pub(crate) fn len(&self) -> u32 {
        self.ring.len()
    }

    /// Forgets all, for RESET.
    pub(crate) fn reset(&mut self) {
        self.ring.head = 0;
        self.ring.tail = 0;
    }
}

/// # Safety
///
/// `request` is a datagram request, and `wr` a copy of its head.
unsafe fn datagram(
    request: *const bindings::ib_send_wr,
    wr: &bindings::ib_send_wr,
    dest: &mut UdDest,
) -> Result<Extra> {
    let extra = match wr.opcode {
        bindings::ib_wr_opcode_IB_WR_SEND => Extra::None,
        bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => {
            // SAFETY: This opcode carries immediate data.
            let imm = unsafe { *wr.ex.imm_data.as_ref() };
            Extra::Imm(imm)
        }
        _ => return Err(EINVAL),
    };
    // SAFETY: A datagram request is the first member of an `ib_ud_wr`, with a live address handle.
    unsafe {
        let ud = request.cast::<bindings::ib_ud_wr>().read_unaligned();
        *dest = UdDest {
            av: pd::av_of(ud.ah),
            qpn: ud.remote_qpn,
            qkey: ud.remote_qkey,
            pkey_index: ud.pkey_index,
        };
    }
    Ok(extra)
}

/// # Safety
///
/// `request` is a valid work request of its opcode's type, and `wr` a copy of its head.
unsafe fn connected(
    request: *const bindings::ib_send_wr,
    wr: &bindings::ib_send_wr,
) -> Result<Extra> {
    // SAFETY: The opcode says which member of `ex` is in use, and of which structure `wr` is the
    // first member.
    unsafe {
        Ok(match wr.opcode {
            bindings::ib_wr_opcode_IB_WR_SEND => Extra::None,
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => Extra::Imm(*wr.ex.imm_data.as_ref()),
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV | bindings::ib_wr_opcode_IB_WR_LOCAL_INV => {
                Extra::Invalidate(*wr.ex.invalidate_rkey.as_ref())
            }
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE
            | bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM
            | bindings::ib_wr_opcode_IB_WR_RDMA_READ => {
                let r = request.cast::<bindings::ib_rdma_wr>().read_unaligned();
                Extra::Rdma {
                    va: r.remote_addr,
                    rkey: r.rkey,
                    imm: *wr.ex.imm_data.as_ref(),
                }
            }
            bindings::ib_wr_opcode_IB_WR_REG_MR => {
                let r = request.cast::<bindings::ib_reg_wr>().read_unaligned();
                Extra::Register {
                    index: mr::index(r.mr),
                    key: r.key,
                    access: r.access as u32,
                }
            }
            _ => return Err(EINVAL),
        })
    }
}

/// A receive queue.
pub(crate) struct RecvQueue {
    ring: Ring<RecvSlot>,
}

impl RecvQueue {
    pub(crate) fn new(wr: u32, max_sge: u32) -> Result<Self> {
        let empty = RecvSlot { wr_id: 0, n: 0 };
        Ok(Self {
            ring: Ring::new(empty, wr, max_sge)?,
        })
    }

    /// Takes a request from a consumer.
    ///
    /// # Safety
    ///
    /// `request` is a valid work request.
    pub(crate) unsafe fn post(&mut self, request: *const bindings::ib_recv_wr) -> Result {
        if self.ring.full() {
            return Err(ENOMEM);
        }
        // SAFETY: By the caller's promise.
        let wr = unsafe { request.read_unaligned() };
        let n = usize::try_from(wr.num_sge).map_err(|_| EINVAL)?;
        if n > self.ring.max_sge {
            return Err(EINVAL);
        }
        let slot = RecvSlot {
            wr_id: wr.__bindgen_anon_1.bindgen_union_field,
            n: n as u8,
        };
        // SAFETY: The request has `num_sge` entries.
        unsafe { self.ring.put(slot, wr.sg_list, n) };
        Ok(())
    }

    /// Whether a receive is there.
    pub(crate) fn ready(&self) -> bool {
        self.ring.len() != 0
    }

    /// Copies the list of the oldest receive.
    pub(crate) fn list(&self, out: &mut SgList) -> Option<()> {
        let at = self.ring.at(self.ring.head)?;
        let n = self.ring.slots.get(at)?.n;
        self.ring.list(at, n.into(), out);
        Some(())
    }

    /// Ends the oldest receive; gives its `wr_id`.
    pub(crate) fn pop(&mut self) -> Option<u64> {
        let at = self.ring.at(self.ring.head)?;
        self.ring.head = self.ring.head.wrapping_add(1);
        self.ring.slots.get(at).map(|s| s.wr_id)
    }

    /// Receives that have not ended.
    pub(crate) fn len(&self) -> u32 {
        self.ring.len()
    }

    /// Forgets all, for RESET.
    pub(crate) fn reset(&mut self) {
        self.ring.head = 0;
        self.ring.tail = 0;
    }
}
