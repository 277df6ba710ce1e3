// SPDX-License-Identifier: GPL-2.0-only

//! What a queue pair finds around it.

use std::collections::{BTreeMap, VecDeque};
use vfabric_core::model::host::{
    Access, Host, MemError, MigrationCause, QpEvent, RecvDone, SendOp, SendWqe, Status,
};
use vfabric_core::model::packet::Packet;

/// Registered memory.
pub struct Region {
    pub va: u64,
    pub data: Vec<u8>,
    pub read: bool,
    pub write: bool,
}

impl Region {
    fn range(&self, va: u64, len: usize) -> Result<std::ops::Range<usize>, MemError> {
        let at = va.checked_sub(self.va).ok_or(MemError::Protection)? as usize;
        let end = at.checked_add(len).ok_or(MemError::Protection)?;
        (end <= self.data.len())
            .then_some(at..end)
            .ok_or(MemError::Protection)
    }
}

pub struct Posted {
    pub wqe: SendWqe,
    /// Data to send, or place for what is read.
    pub data: Vec<u8>,
    /// How a local operation ends.
    pub outcome: Result<(), Status>,
    /// Its memory cannot be reached.
    pub unreachable: bool,
}

/// An HCA with one queue pair.
pub struct Node {
    pub now: u64,
    pub ports: BTreeMap<u8, (u16, u8)>,
    pub down: Vec<u8>,
    pub pkeys: Vec<u16>,

    pub sq: Vec<Posted>,
    /// Index, status and length of each completion, in order.
    pub sent: Vec<(u32, Status, u32)>,
    pub rq: VecDeque<Vec<u8>>,
    pub rq_unreachable: bool,
    pub received: Vec<(RecvDone, Vec<u8>)>,
    pub regions: BTreeMap<u32, Region>,

    pub local_ops: Vec<u32>,
    pub remote_reads: usize,
    pub remote_writes: usize,
    pub bad_pkeys: usize,
    pub events: Vec<QpEvent>,
    pub migrations: Vec<(MigrationCause, u8, u16)>,
    pub out: Vec<(u8, Packet)>,
}

impl Node {
    pub fn new(number: usize) -> Self {
        Node {
            now: 0,
            ports: [1, 2].map(|p| (p, (super::lid(number, p), 0))).into(),
            down: Vec::new(),
            pkeys: vec![0xffff],
            sq: Vec::new(),
            sent: Vec::new(),
            rq: VecDeque::new(),
            rq_unreachable: false,
            received: Vec::new(),
            regions: BTreeMap::new(),
            local_ops: Vec::new(),
            remote_reads: 0,
            remote_writes: 0,
            bad_pkeys: 0,
            events: Vec::new(),
            migrations: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Queues a request; the caller tells the queue pair.
    pub fn push(&mut self, wqe: SendWqe, data: Vec<u8>) -> u32 {
        assert_eq!(wqe.len as usize, data.len());
        self.sq.push(Posted {
            wqe,
            data,
            outcome: Ok(()),
            unreachable: false,
        });
        self.sq.len() as u32 - 1
    }

    pub fn post_recv(&mut self, len: usize) {
        self.rq.push_back(vec![0; len]);
    }

    pub fn statuses(&self) -> Vec<Status> {
        self.sent.iter().map(|s| s.1).collect()
    }

    pub fn payloads(&self) -> Vec<Vec<u8>> {
        self.received
            .iter()
            .map(|(done, data)| data[..done.len as usize].to_vec())
            .collect()
    }

    pub fn count(&self, event: QpEvent) -> usize {
        self.events.iter().filter(|e| **e == event).count()
    }

    fn finish_recv(&mut self, done: RecvDone) {
        let data = self.rq.pop_front().expect("a receive at the head");
        self.received.push((done, data));
    }

    fn posted(&mut self, index: u32) -> &mut Posted {
        self.sq
            .get_mut(index as usize)
            .expect("a request that was posted")
    }
}

impl Host for Node {
    fn now(&self) -> u64 {
        self.now
    }

    fn send_wqe(&self, index: u32) -> Option<SendWqe> {
        assert!(
            index as usize >= self.sent.len(),
            "asked for one that has ended"
        );
        self.sq.get(index as usize).map(|p| p.wqe)
    }

    fn gather(&mut self, index: u32, offset: u32, out: &mut [u8]) -> Result<(), MemError> {
        let p = self.posted(index);
        if p.unreachable {
            return Err(MemError::Protection);
        }
        let at = offset as usize;
        out.copy_from_slice(&p.data[at..at + out.len()]);
        Ok(())
    }

    fn scatter(&mut self, index: u32, offset: u32, data: &[u8]) -> Result<(), MemError> {
        let p = self.posted(index);
        assert!(matches!(p.wqe.op, SendOp::Read { .. }));
        if p.unreachable {
            return Err(MemError::Protection);
        }
        let at = offset as usize;
        p.data[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn local_op(&mut self, index: u32) -> Result<(), Status> {
        self.local_ops.push(index);
        self.posted(index).outcome
    }

    fn send_done(&mut self, index: u32, status: Status, len: u32) {
        assert_eq!(index as usize, self.sent.len(), "each once and in order");
        assert!((index as usize) < self.sq.len(), "only what was posted");
        self.sent.push((index, status, len));
    }

    fn recv_ready(&mut self) -> bool {
        !self.rq.is_empty()
    }

    fn recv_scatter(&mut self, offset: u32, data: &[u8]) -> Result<(), MemError> {
        if self.rq_unreachable {
            return Err(MemError::Protection);
        }
        let to = self.rq.front_mut().expect("a receive at the head");
        let at = offset as usize;
        let place = to.get_mut(at..at + data.len()).ok_or(MemError::Length)?;
        place.copy_from_slice(data);
        Ok(())
    }

    fn recv_done(&mut self, done: RecvDone) {
        self.finish_recv(done);
    }

    fn flush_receives(&mut self) {
        while !self.rq.is_empty() {
            self.finish_recv(RecvDone {
                status: Status::Flush,
                len: 0,
                imm: None,
                invalidated: None,
                write_imm: false,
                solicited: false,
                slid: 0,
            });
        }
    }

    fn remote_check(&self, rkey: u32, va: u64, len: u32, access: Access) -> Result<(), MemError> {
        let r = self.regions.get(&rkey).ok_or(MemError::Protection)?;
        let allowed = match access {
            Access::Read => r.read,
            Access::Write => r.write,
        };
        r.range(va, len as usize)?;
        allowed.then_some(()).ok_or(MemError::Protection)
    }

    fn remote_read(&mut self, rkey: u32, va: u64, out: &mut [u8]) -> Result<(), MemError> {
        self.remote_reads += 1;
        let r = self.regions.get(&rkey).ok_or(MemError::Protection)?;
        out.copy_from_slice(&r.data[r.range(va, out.len())?]);
        Ok(())
    }

    fn remote_write(&mut self, rkey: u32, va: u64, data: &[u8]) -> Result<(), MemError> {
        self.remote_writes += 1;
        let r = self.regions.get_mut(&rkey).ok_or(MemError::Protection)?;
        let range = r.range(va, data.len())?;
        r.data[range].copy_from_slice(data);
        Ok(())
    }

    fn remote_invalidate(&mut self, rkey: u32) -> Result<(), MemError> {
        self.regions
            .remove(&rkey)
            .map(|_| ())
            .ok_or(MemError::Protection)
    }

    fn port_lid(&self, port: u8) -> (u16, u8) {
        self.ports.get(&port).copied().unwrap_or((0, 0))
    }

    fn port_active(&self, port: u8) -> bool {
        self.ports.contains_key(&port) && !self.down.contains(&port)
    }

    fn pkey(&self, _port: u8, index: u16) -> u16 {
        self.pkeys.get(index as usize).copied().unwrap_or(0)
    }

    fn bad_pkey(&mut self, _port: u8) {
        self.bad_pkeys += 1;
    }

    fn transmit(&mut self, port: u8, packet: Packet) {
        assert!(packet.payload.len() <= 4096);
        self.out.push((port, packet));
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }

    fn migrated(&mut self, cause: MigrationCause, port: u8, dlid: u16) {
        self.migrations.push((cause, port, dlid));
    }
}
