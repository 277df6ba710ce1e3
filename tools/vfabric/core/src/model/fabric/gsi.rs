// SPDX-License-Identifier: GPL-2.0-only

//! Who gets a MAD: the agents of this file's neighbours, or somebody else.

use super::super::packet::{Deth, Packet};
use super::mad::{self, Mad, MAD_SIZE};
use super::sma::Answer;
use super::{Fabric, NodeId, PortRef};

/// Q_Key of QP 1.
const QP1_QKEY: u32 = 0x8001_0000;

/// Circumstances of a MAD that an HCA hands to its agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadRequest {
    /// The M_Key is not checked (IB_MAD_IGNORE_MKEY).
    pub ignore_mkey: bool,
}

/// What an HCA's agents made of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadResult {
    /// The MAD now holds the answer (SUCCESS | REPLY).
    Reply,
    /// Taken, without an answer (SUCCESS | CONSUMED).
    Consumed,
    /// Not theirs; it goes to the agents registered with the MAD layer (SUCCESS).
    PassToAgents,
}

impl Fabric {
    /// Gives a MAD that has arrived at an HCA port to the port's subnet management and performance
    /// agents (`process_mad` of the device).
    ///
    /// `mad` becomes the answer where there is one. Directed-route SMPs have their hop pointer moved
    /// by the MAD layer, not here.
    pub fn process_mad(
        &mut self,
        node: NodeId,
        port: u8,
        mad: &mut [u8; MAD_SIZE],
        request: MadRequest,
        now_ns: u64,
    ) -> MadResult {
        let at = PortRef { node, port };
        if self.port_at(at).is_none() {
            return MadResult::Consumed;
        }
        let mut mad = Mad::new(mad);
        let answer = match mad.class() {
            mad::CLASS_SMP | mad::CLASS_SMP_DIRECTED => {
                self.smp(at, &mut mad, request.ignore_mkey, now_ns)
            }
            mad::CLASS_PERF => self.perf(at, &mut mad),
            _ => Answer::NotMine,
        };
        match answer {
            Answer::Reply => MadResult::Reply,
            Answer::Silence => MadResult::Consumed,
            Answer::NotMine => MadResult::PassToAgents,
        }
    }

    /// A LID-routed SMP for a switch; true when `packet` has become the answer.
    pub(super) fn smp_at_switch(&mut self, at: PortRef, packet: &mut Packet, now: u64) -> bool {
        let Some(mut smp) = Mad::from_payload(&mut packet.payload) else {
            return false;
        };
        if smp.class() != mad::CLASS_SMP || self.smp(at, &mut smp, false, now) != Answer::Reply {
            return false;
        }
        self.turn_around(at.node, packet, Deth { qkey: 0, src_qp: 0 });
        true
    }

    /// A packet for QP 1 of a switch; true when `packet` has become the answer.
    pub(super) fn gsi(&mut self, at: PortRef, packet: &mut Packet) -> bool {
        let Some(deth) = packet.deth.filter(|_| packet.bth.dest_qp == 1) else {
            return false;
        };
        let port0 = PortRef {
            node: at.node,
            port: 0,
        };
        let Some(p) = self.port_mut(port0) else {
            return false;
        };
        // One of two members of a partition has to be a full one.
        let key = packet.bth.pkey;
        let fits =
            |k: &u16| *k & 0x7fff != 0 && (*k ^ key) & 0x7fff == 0 && (*k | key) & 0x8000 != 0;
        if !p.pkeys.iter().any(fits) {
            p.pkey_violations = p.pkey_violations.saturating_add(1);
            return false;
        }
        if deth.qkey != QP1_QKEY {
            p.qkey_violations = p.qkey_violations.saturating_add(1);
            return false;
        }
        let Some(mut mad) = Mad::from_payload(&mut packet.payload) else {
            return false;
        };
        if mad.class() != mad::CLASS_PERF || self.perf(port0, &mut mad) != Answer::Reply {
            return false;
        }
        self.turn_around(
            at.node,
            packet,
            Deth {
                qkey: QP1_QKEY,
                src_qp: 1,
            },
        );
        true
    }

    /// Addresses a packet to where it came from, as sent by port 0 of a switch.
    fn turn_around(&self, node: NodeId, packet: &mut Packet, deth: Deth) {
        let port0 = self.port(node, 0);
        packet.lrh.dlid = packet.lrh.slid;
        packet.lrh.slid = port0.map_or(0, |p| p.lid);
        packet.bth.dest_qp = packet.deth.map_or(0, |d| d.src_qp);
        packet.deth = Some(deth);
        if let Some(grh) = packet.grh.as_mut() {
            grh.dgid = grh.sgid;
            grh.sgid = port0.and_then(|p| p.gid(0)).unwrap_or_default();
        }
    }
}
