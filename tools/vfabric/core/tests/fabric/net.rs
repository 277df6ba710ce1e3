// SPDX-License-Identifier: GPL-2.0-only

//! A fabric with hosts on it: what the MAD layer of each HCA does, and builders of packets.

use std::collections::VecDeque;
use vfabric_core::mem::{KVec, GFP_KERNEL};
use vfabric_core::model::fabric::{
    Fabric, MadRequest, MadResult, NodeId, Output, PortEvent, PortState,
};
use vfabric_core::model::packet::{Bth, Deth, Lrh, Opcode, Packet};
use vfabric_core::model::topology::Topology;

pub const PERMISSIVE: u16 = 0xffff;
pub const GET: u8 = 1;
pub const SET: u8 = 2;
pub const GET_RESP: u8 = 0x81;
pub const QP1_QKEY: u32 = 0x8001_0000;

/// A packet that has arrived at an HCA and was not for its agents.
#[derive(Debug)]
pub struct Arrived {
    pub node: NodeId,
    pub port: u8,
    pub packet: Packet,
}

pub struct Net {
    pub fabric: Fabric,
    pub now: u64,
    pub arrived: VecDeque<Arrived>,
    pub events: Vec<(String, u8, PortEvent)>,
}

impl Net {
    pub fn new(text: &str) -> Net {
        let topology = Topology::parse(text).expect("a topology");
        Net {
            fabric: Fabric::new(&topology).expect("memory"),
            now: 1_000_000_000,
            arrived: VecDeque::new(),
            events: Vec::new(),
        }
    }

    pub fn named(name: &str) -> Net {
        Net::new(Topology::named(name).expect("a named topology"))
    }

    pub fn id(&self, name: &str) -> NodeId {
        self.fabric.find(name).expect("a node").id
    }

    /// State of the port that `at` names as `NODE/PORT`.
    pub fn state(&self, at: &str) -> PortState {
        let (node, port) = self.end(at);
        self.fabric.port(node, port).expect("a port").state
    }

    pub fn lid(&self, at: &str) -> u16 {
        let (node, port) = self.end(at);
        self.fabric.port(node, port).expect("a port").lid
    }

    pub fn end(&self, at: &str) -> (NodeId, u8) {
        let (name, port) = at.split_once('/').expect("NODE/PORT");
        (self.id(name), port.parse().expect("a port number"))
    }

    pub fn control(&mut self, line: &str) {
        self.fabric.control(line, self.now).expect(line);
        self.run();
    }

    /// Lets everything happen that is due now.
    pub fn run(&mut self) {
        while let Some(output) = self.fabric.poll(self.now) {
            match output {
                Output::Event { node, port, kind } => {
                    let name = self.fabric.node(node).expect("a node").name.to_string();
                    self.events.push((name, port, kind));
                }
                Output::Deliver { node, port, packet } => self.deliver(node, port, packet),
            }
        }
    }

    pub fn send(&mut self, at: &str, packet: Packet) {
        let (node, port) = self.end(at);
        self.fabric.transmit(node, port, packet, self.now);
        self.run();
    }

    /// Everything that has arrived since the last call, as `NODE/PORT`.
    pub fn take_arrived(&mut self) -> Vec<String> {
        let arrived = std::mem::take(&mut self.arrived);
        let name = |n| self.fabric.node(n).expect("a node").name.to_string();
        arrived
            .into_iter()
            .map(|a| format!("{}/{}", name(a.node), a.port))
            .collect()
    }

    /// What the MAD layer of an HCA does with a packet for QP 0 or 1; others are kept.
    fn deliver(&mut self, node: NodeId, port: u8, mut packet: Packet) {
        if packet.bth.opcode != Opcode::UdSend || packet.bth.dest_qp > 1 {
            self.arrived.push_back(Arrived { node, port, packet });
            return;
        }
        let mut mad: [u8; 256] = (*packet.payload).try_into().expect("256 bytes");
        let directed = mad[1] == 0x81;
        if directed && !receive_directed(&mut mad, port) {
            return;
        }
        let result = self
            .fabric
            .process_mad(node, port, &mut mad, MadRequest::default(), self.now);
        packet.payload = bytes(&mad);
        match result {
            MadResult::Consumed => {}
            MadResult::PassToAgents => self.arrived.push_back(Arrived { node, port, packet }),
            MadResult::Reply => {
                if directed && !send_directed(&mut mad, port) {
                    return;
                }
                let qp = packet.bth.dest_qp;
                let lrh = packet.lrh;
                let to = packet.deth.expect("a datagram").src_qp;
                let lid = self.fabric.port(node, port).expect("a port").lid;
                let slid = if directed { PERMISSIVE } else { lid };
                let reply = datagram(slid, lrh.slid, to, qp, &mad);
                self.fabric.transmit(node, port, reply, self.now);
            }
        }
    }
}

/// IBA 14.2.2 as the MAD layer of an HCA port carries it out on receipt.
fn receive_directed(mad: &mut [u8; 256], port: u8) -> bool {
    let (ptr, cnt) = (mad[6], mad[7]);
    if cnt > 63 {
        return false;
    }
    if mad[4] & 0x80 == 0 {
        if ptr == cnt && cnt > 0 {
            mad[192 + usize::from(ptr)] = port;
            mad[6] = ptr + 1;
        }
        ptr == cnt || ptr == cnt + 1
    } else {
        if ptr == 1 {
            mad[6] = 0;
        }
        ptr <= 1
    }
}

/// The same for sending.
pub fn send_directed(mad: &mut [u8; 256], port: u8) -> bool {
    let (ptr, cnt) = (mad[6], mad[7]);
    let path = if mad[4] & 0x80 == 0 {
        if ptr != 0 || cnt == 0 {
            return false;
        }
        mad[6] = 1;
        128 + 1
    } else {
        if cnt == 0 || ptr != cnt + 1 {
            return false;
        }
        mad[6] = ptr - 1;
        192 + usize::from(ptr - 1)
    };
    mad[path] == port
}

pub fn bytes(data: &[u8]) -> KVec<u8> {
    let mut v = KVec::new();
    v.extend_from_slice(data, GFP_KERNEL).expect("memory");
    v
}

/// A datagram without GRH; Q_Key as MADs have it.
pub fn datagram(slid: u16, dlid: u16, dest_qp: u32, src_qp: u32, payload: &[u8]) -> Packet {
    Packet {
        lrh: Lrh {
            vl: 0,
            sl: 0,
            dlid,
            slid,
        },
        grh: None,
        bth: Bth {
            opcode: Opcode::UdSend,
            solicited: false,
            mig_req: true,
            pkey: 0xffff,
            dest_qp,
            ack_req: false,
            psn: 0,
        },
        deth: Some(Deth {
            qkey: if dest_qp == 1 { QP1_QKEY } else { 0 },
            src_qp,
        }),
        reth: None,
        aeth: None,
        imm: None,
        invalidate: None,
        payload: bytes(payload),
    }
}

/// A MAD of version 1.
pub fn mad(class: u8, method: u8, attr: u16, modifier: u32) -> [u8; 256] {
    let mut m = [0; 256];
    m[0] = 1;
    m[1] = class;
    m[2] = 1;
    m[3] = method;
    m[8..16].copy_from_slice(&77u64.to_be_bytes());
    m[16..18].copy_from_slice(&attr.to_be_bytes());
    m[20..24].copy_from_slice(&modifier.to_be_bytes());
    m
}

/// A directed-route SMP along `path`, whose first entry is the sender's own port.
pub fn directed(path: &[u8], method: u8, attr: u16, modifier: u32) -> [u8; 256] {
    let mut m = mad(0x81, method, attr, modifier);
    m[7] = path.len() as u8;
    m[32..36].fill(0xff);
    m[129..129 + path.len()].copy_from_slice(path);
    m
}

pub fn status(mad: &[u8; 256]) -> u16 {
    u16::from_be_bytes([mad[4] & 0x7f, mad[5]])
}
