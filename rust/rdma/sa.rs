// SPDX-License-Identifier: GPL-2.0-only

//! Questions to subnet administration, with answers of several segments (RMPP).
//!
//! `ib_sa` of the kernel sends SubnAdmGet of a few attributes only; NodeRecords and tables need an
//! agent of our own. It is send-only: subnet administration's answers find it by transaction id.
//!
//! Locks: `Agent::inner`, held while a MAD is made and posted, never while an answer is awaited.
//!
//! C header: [`include/rdma/ib_mad.h`](srctree/include/rdma/ib_mad.h)

use super::bindings as rdma;
use super::mad::{Handlers, Registered, Sent};
use super::params;
use super::stats;
use super::sync::Latch;
use crate::apm::stats::Stat;
use crate::wire::sa::{data_len, Failure, Header, Query, Records, HEADER_LEN, SEGMENT_LEN};
use core::mem::offset_of;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Mutex};

/// How long one try waits for the answer, in milliseconds.
const TRY_MS: u32 = 250;
/// Tries at the least; more where a REQ may be held for longer than they take.
const TRIES: u32 = 4;
/// More segments than any port list or path list has; what exceeds it is not believed.
const MAX_SEGMENTS: usize = 512;

const HANDLERS: Handlers = Handlers {
    sent: Some(on_sent),
    received: Some(on_received),
};

/// The answer to a question.
pub(crate) struct Answer {
    header: Header,
    data: KVVec<u8>,
}

impl Answer {
    /// Its records.
    pub(crate) fn records(&self) -> Records<'_> {
        Records::new(&self.header, &self.data)
    }
}

/// An agent on one port.
#[pin_data]
pub(crate) struct Agent {
    device: *mut rdma::ib_device,
    port: u32,
    tid: Atomic<u32>,
    #[pin]
    inner: Mutex<Option<Registered>>,
}

// SAFETY: The device pointer is used only inside the device's gate, from any task.
unsafe impl Send for Agent {}
// SAFETY: As above.
unsafe impl Sync for Agent {}

/// A question on its way: `ib_mad_send_buf::context[0]` points here.
#[pin_data]
struct Pending {
    query: Query,
    #[pin]
    done: Latch,
    #[pin]
    result: Mutex<core::result::Result<Answer, Failure>>,
}

impl Agent {
    /// Registers an agent.
    ///
    /// # Safety
    ///
    /// `dev` stays registered until [`Agent::cancel`] has returned or this was dropped.
    pub(crate) unsafe fn new(
        dev: *mut rdma::ib_device,
        port: u32,
    ) -> Result<impl PinInit<Self, Error>> {
        // SAFETY: By the function's contract; all that is sent by this agent is made by `post`.
        let registered = unsafe { Registered::new(dev, port, 1, HANDLERS) }?;
        Ok(try_pin_init!(Self {
            device: dev,
            port,
            tid: Atomic::new(1),
            inner <- new_mutex!(Some(registered)),
        }))
    }

    /// Asks, and waits for the answer: a second, or `req_hold_ms` where that is longer. Process context,
    /// inside the device's gate.
    pub(crate) fn ask(&self, query: &Query) -> core::result::Result<Answer, Failure> {
        stats::count(Stat::SaQueries);
        let pending = Pending::new(*query).map_err(|_| Failure::Cancelled)?;
        let sent = self.post(query, &pending).map_err(|e| {
            if e == EAGAIN {
                // No subnet manager known: as if it did not answer.
                Failure::Timeout
            } else {
                Failure::Cancelled
            }
        })?;
        // Ends for sure: `ib_mad` calls `on_sent` for every MAD that it took, at the latest when the
        // agent is unregistered.
        pending.done.wait();
        drop(sent);
        let result = core::mem::replace(&mut *pending.result.lock(), Err(Failure::Timeout));
        if matches!(result, Err(Failure::Timeout)) {
            stats::count(Stat::SaTimeouts);
        }
        result
    }

    /// Ends all questions and unregisters the agent; later questions fail. Process context.
    pub(crate) fn cancel(&self) {
        let registered = self.inner.lock().take();
        // Not under the lock: waits for the answers, and those who ask need it.
        drop(registered);
    }

    fn post(&self, query: &Query, pending: &Pin<KBox<Pending>>) -> Result<Sent> {
        let guard = self.inner.lock();
        let agent = guard.as_ref().ok_or(ESHUTDOWN)?.as_ptr();
        let mut attr = rdma::ib_port_attr::default();
        // SAFETY: Inside the device's gate.
        to_result(unsafe { rdma::ib_query_port(self.device, self.port, &mut attr) })?;
        if attr.sm_lid == 0 || attr.state != rdma::ib_port_state_IB_PORT_ACTIVE {
            return Err(EAGAIN);
        }
        // As long as somebody may wait, it is worth asking again.
        let tries = (params::req_hold_ms() / TRY_MS).max(TRIES);
        let mut ah_attr = rdma::rdma_ah_attr {
            type_: rdma::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB,
            sl: attr.sm_sl,
            port_num: self.port,
            ..Default::default()
        };
        // SAFETY: Of the type IB.
        unsafe { ah_attr.__bindgen_anon_1.ib.as_mut() }.dlid = attr.sm_lid as u16;
        let mut pkey_index = 0;
        // SAFETY: Inside the device's gate. Where the default P_Key is not to be found, index 0.
        unsafe {
            if rdma::ib_find_cached_pkey(self.device, self.port, 0xffff, &mut pkey_index) != 0 {
                pkey_index = 0;
            }
        }
        // SAFETY: The agent is registered as long as `inner` is held. The MAD has 256 bytes.
        unsafe {
            let mut sent = Sent::new(agent, &mut ah_attr, pkey_index, HEADER_LEN)?;
            let buf = sent.buf();
            let tid = u64::from((*agent).hi_tid) << 32 | u64::from(self.tid.fetch_add(1, Relaxed));
            query.write(tid, sent.bytes()).ok_or(EINVAL)?;
            (*buf).timeout_ms = TRY_MS as c_int;
            (*buf).retries = tries.saturating_sub(1) as c_int;
            (*buf).context[0] = (&raw const **pending).cast_mut().cast();
            to_result(rdma::ib_post_send_mad(buf, core::ptr::null_mut()))?;
            Ok(sent)
        }
    }
}

impl Pending {
    fn new(query: Query) -> Result<Pin<KBox<Self>>> {
        KBox::pin_init(
            pin_init!(Self {
                query,
                done <- Latch::new(),
                result <- new_mutex!(Err(Failure::Timeout)),
            }),
            GFP_KERNEL,
        )
    }
}

/// The last that is heard of a MAD.
///
/// # Safety
///
/// Called by `ib_mad` for a MAD posted by `Agent::post`.
unsafe extern "C" fn on_sent(_agent: *mut rdma::ib_mad_agent, wc: *mut rdma::ib_mad_send_wc) {
    // SAFETY: `Agent::ask` keeps `Pending` until the latch is open, which it was not before.
    unsafe {
        let pending = &*(*(*wc).send_buf).context[0].cast::<Pending>();
        match (*wc).status {
            // Sent, and answered: `on_received` was called before.
            rdma::ib_wc_status_IB_WC_SUCCESS | rdma::ib_wc_status_IB_WC_RESP_TIMEOUT_ERR => {}
            _ => *pending.result.lock() = Err(Failure::Cancelled),
        }
        pending.done.open();
    }
}

/// An answer, complete with all its segments.
///
/// # Safety
///
/// Called by `ib_mad`; `send_buf`, where not null, is a MAD posted by `Agent::post` for which
/// `on_sent` was not called yet.
unsafe extern "C" fn on_received(
    _agent: *mut rdma::ib_mad_agent,
    send_buf: *mut rdma::ib_mad_send_buf,
    wc: *mut rdma::ib_mad_recv_wc,
) {
    // SAFETY: As in `on_sent`; `wc` is ours to free.
    unsafe {
        if !send_buf.is_null() {
            let pending = &*(*send_buf).context[0].cast::<Pending>();
            let answer = read_answer(wc, &pending.query);
            *pending.result.lock() = answer;
        }
        rdma::ib_free_recv_mad(wc);
    }
}

/// Copies the records out of the segments.
///
/// # Safety
///
/// `wc` is a received MAD as `ib_mad` hands it over.
unsafe fn read_answer(
    wc: *mut rdma::ib_mad_recv_wc,
    query: &Query,
) -> core::result::Result<Answer, Failure> {
    let mut data = KVVec::new();
    let mut segments = 0usize;
    // SAFETY: `recv_buf` and the members of `rmpp_list` each hold a MAD of 256 bytes (an agent of
    // base version 1 gets no others), and the list doesn't change while we have it.
    unsafe {
        let first = (*wc).recv_buf.__bindgen_anon_1.mad.cast::<u8>();
        let header = Header::parse(core::slice::from_raw_parts(first, HEADER_LEN), query)?;
        let head = &raw mut (*wc).rmpp_list;
        let mut entry = (*head).next;
        while entry.cast_const() != head.cast_const() {
            segments += 1;
            if segments > MAX_SEGMENTS {
                return Err(Failure::Malformed);
            }
            let buf = entry
                .byte_sub(offset_of!(rdma::ib_mad_recv_buf, list))
                .cast::<rdma::ib_mad_recv_buf>();
            let mad = (*buf).__bindgen_anon_1.mad.cast::<u8>();
            let part = core::slice::from_raw_parts(mad.add(HEADER_LEN), SEGMENT_LEN);
            data.extend_from_slice(part, GFP_KERNEL)
                .map_err(|_| Failure::Cancelled)?;
            entry = (*entry).next;
        }
        let total = usize::try_from((*wc).mad_len).unwrap_or(0);
        data.truncate(data_len(total, data.len()));
        Ok(Answer { header, data })
    }
}
