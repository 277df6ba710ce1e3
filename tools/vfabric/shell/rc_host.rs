// SPDX-License-Identifier: GPL-2.0-only

//! The HCA around an RC queue pair: what the transport asks for ([`Host`]).

use super::bindings;
use super::cq::Cqe;
use super::event::Event;
use super::log;
use super::qp::Qp;
use super::region::{Copy, Regions};
use super::state::{self, State};
use super::wq::{Extra, SendSlot, SgList};
use crate::model::fabric::{NodeId, Port, PortState};
use crate::model::host::{
    Access, Host, MemError, MigrationCause, QpEvent, RecvDone, SendOp, SendWqe, Status,
};
use crate::model::packet::Packet;
use kernel::prelude::*;
use kernel::sync::Arc;

/// An HCA, for the duration of one call into the transport of `qp`.
pub(crate) struct RcHost<'a> {
    st: &'a mut State,
    qp: &'a Arc<Qp>,
    /// Whose list the engine's `lists.send` is.
    send_index: Option<u32>,
    /// Whether `lists.recv` is the list of the receive at the head.
    recv_loaded: bool,
}

impl<'a> RcHost<'a> {
    pub(crate) fn new(st: &'a mut State, qp: &'a Arc<Qp>) -> Self {
        Self {
            st,
            qp,
            send_index: None,
            recv_loaded: false,
        }
    }

    /// Makes `lists.send` the list of request `index`.
    fn load_send(&mut self, index: u32) -> Result<(), MemError> {
        if self.send_index != Some(index) {
            self.send_index = None;
            let loaded = self.qp.sq.lock().list(index, &mut self.st.lists.send);
            loaded.ok_or(MemError::Length)?;
            self.send_index = Some(index);
        }
        Ok(())
    }

    /// Ends the receive at the head; gives its `wr_id`.
    fn end_receive(&mut self) -> Option<u64> {
        if self.qp.srq.is_none() {
            return self.qp.rq.lock().pop();
        }
        let taken = self.qp.attr_mut(self.st).taken.as_mut()?;
        let full = core::mem::replace(&mut taken.full, false);
        full.then_some(taken.wr_id)
    }

    fn node(&self) -> NodeId {
        self.st.hca_ref(self.qp.hca).node
    }

    fn fabric_port(&self, port: u8) -> Option<&Port> {
        self.st.fabric.port(self.node(), port)
    }

    fn mrs(&self) -> &Regions {
        &self.st.hca_ref(self.qp.hca).mrs
    }

    fn qp_access(&self) -> u32 {
        self.qp.access(self.st)
    }
}

/// Calls `f` for each piece of the `len` bytes from `offset` on: L_Key, address, and the range of
/// the data that lies there.
pub(crate) fn pieces(
    list: &SgList,
    offset: u32,
    len: usize,
    mut f: impl FnMut(u32, u64, core::ops::Range<usize>) -> Result<(), MemError>,
) -> Result<(), MemError> {
    let mut skip = offset as usize;
    let mut done = 0;
    for s in list.entries() {
        if done == len {
            break;
        }
        let have = s.len as usize;
        if skip >= have {
            skip -= have;
            continue;
        }
        let n = (have - skip).min(len - done);
        let addr = s
            .addr
            .checked_add(skip as u64)
            .ok_or(MemError::Protection)?;
        f(s.lkey, addr, done..done + n)?;
        done += n;
        skip = 0;
    }
    if done == len {
        Ok(())
    } else {
        Err(MemError::Length)
    }
}

/// Copies `data` into the memory of a list, from `offset` on.
pub(crate) fn scatter(
    mrs: &Regions,
    pd: u32,
    list: &SgList,
    offset: u32,
    data: &[u8],
) -> Result<(), MemError> {
    pieces(list, offset, data.len(), |lkey, addr, range| {
        let part = data.get(range).ok_or(MemError::Length)?;
        mrs.copy_local(lkey, pd, addr, Copy::In(part))
    })
}

/// Copies from the memory of a list, from `offset` on, into all of `out`.
pub(crate) fn gather(
    mrs: &Regions,
    pd: u32,
    list: &SgList,
    offset: u32,
    out: &mut [u8],
) -> Result<(), MemError> {
    pieces(list, offset, out.len(), |lkey, addr, range| {
        let part = out.get_mut(range).ok_or(MemError::Length)?;
        mrs.copy_local(lkey, pd, addr, Copy::Out(part))
    })
}

/// Status as `enum ib_wc_status` has it.
pub(crate) fn wc_status(status: Status) -> bindings::ib_wc_status {
    match status {
        Status::Success => bindings::ib_wc_status_IB_WC_SUCCESS,
        Status::LocLen => bindings::ib_wc_status_IB_WC_LOC_LEN_ERR,
        Status::LocQpOp => bindings::ib_wc_status_IB_WC_LOC_QP_OP_ERR,
        Status::LocProt => bindings::ib_wc_status_IB_WC_LOC_PROT_ERR,
        Status::Flush => bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR,
        Status::MwBind => bindings::ib_wc_status_IB_WC_MW_BIND_ERR,
        Status::RemInvReq => bindings::ib_wc_status_IB_WC_REM_INV_REQ_ERR,
        Status::RemAccess => bindings::ib_wc_status_IB_WC_REM_ACCESS_ERR,
        Status::RemOp => bindings::ib_wc_status_IB_WC_REM_OP_ERR,
        Status::RetryExceeded => bindings::ib_wc_status_IB_WC_RETRY_EXC_ERR,
        Status::RnrRetryExceeded => bindings::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
    }
}

fn op(slot: &SendSlot) -> SendOp {
    match (slot.opcode, slot.extra) {
        (bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM, Extra::Imm(imm)) => SendOp::SendImm(imm),
        (bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV, Extra::Invalidate(key)) => {
            SendOp::SendInvalidate(key)
        }
        (bindings::ib_wr_opcode_IB_WR_RDMA_WRITE, Extra::Rdma { va, rkey, .. }) => {
            SendOp::Write { va, rkey }
        }
        (bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM, Extra::Rdma { va, rkey, imm }) => {
            SendOp::WriteImm { va, rkey, imm }
        }
        (bindings::ib_wr_opcode_IB_WR_RDMA_READ, Extra::Rdma { va, rkey, .. }) => {
            SendOp::Read { va, rkey }
        }
        (bindings::ib_wr_opcode_IB_WR_LOCAL_INV | bindings::ib_wr_opcode_IB_WR_REG_MR, _) => {
            SendOp::Local
        }
        _ => SendOp::Send,
    }
}

fn wc_opcode(opcode: bindings::ib_wr_opcode) -> bindings::ib_wc_opcode {
    match opcode {
        bindings::ib_wr_opcode_IB_WR_RDMA_WRITE
        | bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => {
            bindings::ib_wc_opcode_IB_WC_RDMA_WRITE
        }
        bindings::ib_wr_opcode_IB_WR_RDMA_READ => bindings::ib_wc_opcode_IB_WC_RDMA_READ,
        bindings::ib_wr_opcode_IB_WR_LOCAL_INV => bindings::ib_wc_opcode_IB_WC_LOCAL_INV,
        bindings::ib_wr_opcode_IB_WR_REG_MR => bindings::ib_wc_opcode_IB_WC_REG_MR,
        _ => bindings::ib_wc_opcode_IB_WC_SEND,
    }
}

impl Host for RcHost<'_> {
    fn now(&self) -> u64 {
        state::now()
    }

    fn send_wqe(&self, index: u32) -> Option<SendWqe> {
        let sq = self.qp.sq.lock();
        let slot = sq.get(index)?;
        Some(SendWqe {
            op: op(slot),
            len: slot.len,
            solicited: slot.flags & bindings::ib_send_flags_IB_SEND_SOLICITED != 0,
            fence: slot.flags & bindings::ib_send_flags_IB_SEND_FENCE != 0,
        })
    }

    fn gather(&mut self, index: u32, offset: u32, out: &mut [u8]) -> Result<(), MemError> {
        self.load_send(index)?;
        gather(self.mrs(), self.qp.pd, &self.st.lists.send, offset, out)
    }

    fn scatter(&mut self, index: u32, offset: u32, data: &[u8]) -> Result<(), MemError> {
        self.load_send(index)?;
        scatter(self.mrs(), self.qp.pd, &self.st.lists.send, offset, data)
    }

    fn local_op(&mut self, index: u32) -> Result<(), Status> {
        let extra = {
            let sq = self.qp.sq.lock();
            sq.get(index).map(|s| s.extra)
        };
        let pd = self.qp.pd;
        let mrs = &mut self.st.hca(self.qp.hca).mrs;
        let done = match extra {
            Some(Extra::Register { index, key, access }) => mrs.register(index, key, pd, access),
            Some(Extra::Invalidate(key)) => mrs.invalidate_local(key, pd),
            _ => return Err(Status::LocQpOp),
        };
        if done {
            Ok(())
        } else {
            Err(Status::MwBind)
        }
    }

    fn send_done(&mut self, _index: u32, status: Status, len: u32) {
        let Some(slot) = self.qp.sq.lock().pop() else {
            return;
        };
        if status == Status::RetryExceeded {
            log::exhausted(self.st, self.qp);
        }
        let signalled = slot.flags & bindings::ib_send_flags_IB_SEND_SIGNALED != 0;
        if self.qp.signal_all || signalled || status != Status::Success {
            let mut cqe = Cqe::new(self.qp.handle, slot.wr_id);
            cqe.status = wc_status(status);
            cqe.opcode = wc_opcode(slot.opcode);
            cqe.byte_len = len;
            cqe.port = self.qp.port(self.st);
            self.qp.send_cq.push(cqe, false, &mut self.st.out);
        }
    }

    fn recv_ready(&mut self) -> bool {
        let Some(srq) = &self.qp.srq else {
            return self.qp.rq.lock().ready();
        };
        let Some(taken) = self.qp.attr_mut(self.st).taken.as_mut() else {
            return false;
        };
        if taken.full {
            return true;
        }
        let (there, low) = srq.take(taken);
        if low {
            self.st.out.event(Event::SrqLimit(srq.clone()));
        }
        there
    }

    fn recv_scatter(&mut self, offset: u32, data: &[u8]) -> Result<(), MemError> {
        if self.qp.srq.is_some() {
            let taken = self.qp.attr(self.st).taken.as_ref();
            let list = &taken.filter(|t| t.full).ok_or(MemError::Length)?.list;
            return scatter(self.mrs(), self.qp.pd, list, offset, data);
        }
        if !self.recv_loaded {
            let loaded = self.qp.rq.lock().list(&mut self.st.lists.recv);
            loaded.ok_or(MemError::Length)?;
            self.recv_loaded = true;
        }
        scatter(self.mrs(), self.qp.pd, &self.st.lists.recv, offset, data)
    }

    fn recv_done(&mut self, done: RecvDone) {
        self.recv_loaded = false;
        let Some(wr_id) = self.end_receive() else {
            return;
        };
        let mut cqe = Cqe::new(self.qp.handle, wr_id);
        cqe.status = wc_status(done.status);
        cqe.opcode = if done.write_imm {
            bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM
        } else {
            bindings::ib_wc_opcode_IB_WC_RECV
        };
        cqe.byte_len = done.len;
        cqe.slid = u32::from(done.slid);
        cqe.port = self.qp.port(self.st);
        if let Some(imm) = done.imm {
            cqe.ex = imm;
            cqe.flags |= bindings::ib_wc_flags_IB_WC_WITH_IMM;
        }
        if let Some(key) = done.invalidated {
            cqe.ex = key;
            cqe.flags |= bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE;
        }
        self.qp.recv_cq.push(cqe, done.solicited, &mut self.st.out);
    }

    fn flush_receives(&mut self) {
        self.recv_loaded = false;
        if self.qp.srq.is_none() {
            self.qp.flush_receives(&mut self.st.out);
        } else if let Some(wr_id) = self.end_receive() {
            self.qp.flushed_receive(wr_id, &mut self.st.out);
        }
    }

    fn remote_check(&self, rkey: u32, va: u64, len: u32, access: Access) -> Result<(), MemError> {
        let qp_access = self.qp_access();
        self.mrs()
            .check_remote(rkey, self.qp.pd, qp_access, va, len.into(), access)
    }

    fn remote_read(&mut self, rkey: u32, va: u64, out: &mut [u8]) -> Result<(), MemError> {
        self.mrs().copy_remote(rkey, self.qp.pd, va, Copy::Out(out))
    }

    fn remote_write(&mut self, rkey: u32, va: u64, data: &[u8]) -> Result<(), MemError> {
        self.mrs().copy_remote(rkey, self.qp.pd, va, Copy::In(data))
    }

    fn remote_invalidate(&mut self, rkey: u32) -> Result<(), MemError> {
        let pd = self.qp.pd;
        self.st.hca(self.qp.hca).mrs.invalidate_remote(rkey, pd)
    }

    fn port_lid(&self, port: u8) -> (u16, u8) {
        self.fabric_port(port).map_or((0, 0), |p| (p.lid, p.lmc))
    }

    fn port_active(&self, port: u8) -> bool {
        self.fabric_port(port)
            .is_some_and(|p| p.state == PortState::Active)
    }

    fn pkey(&self, port: u8, index: u16) -> u16 {
        self.fabric_port(port)
            .and_then(|p| p.pkeys.get(usize::from(index)).copied())
            .unwrap_or(0)
    }

    fn bad_pkey(&mut self, port: u8) {
        let node = self.node();
        self.st.fabric.count_bad_pkey(node, port);
    }

    fn transmit(&mut self, port: u8, packet: Packet) {
        let node = self.node();
        self.st.fabric.transmit(node, port, packet, state::now());
    }

    fn event(&mut self, event: QpEvent) {
        self.st.out.event(Event::Qp(self.qp.clone(), event));
    }

    fn migrated(&mut self, cause: MigrationCause, port: u8, dlid: u16) {
        let m = &mut self.st.hca(self.qp.hca).migrations;
        let count = match cause {
            MigrationCause::Exhaustion => &mut m.exhaustion,
            MigrationCause::Peer => &mut m.peer,
            MigrationCause::Command => &mut m.command,
        };
        *count = count.wrapping_add(1);
        self.qp.migrated(self.st, port);
        log::migrated(self.st, self.qp, cause, port, dlid);
    }
}
