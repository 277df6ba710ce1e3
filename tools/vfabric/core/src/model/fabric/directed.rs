// SPDX-License-Identifier: GPL-2.0-only

//! Directed routes through a switch (IBA 14.2.2).
//!
//! An SMP carries its way: InitialPath names the port to leave by at each hop, HopPointer the hop it
//! is at, and each switch notes in ReturnPath where it came in. The direction bit of the status says
//! whether it is on its way out or back. DrSLID and DrDLID, where not permissive, put a LID-routed
//! part before or behind. The hop pointer at the HCA ends is the business of their MAD layer.

use super::super::packet::Packet;
use super::mad::{Mad, MAX_HOPS};
use super::port::LID_PERMISSIVE;
use super::sma::Answer;
use super::{Fabric, PortRef};

/// What a switch does with a packet that carries a directed-route SMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Smi {
    /// It leaves by this port.
    Out(u8),
    /// It goes to its DLID by the forwarding table.
    Route,
    /// It is lost.
    Drop,
}

/// Where an SMP has to go from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Out by this port.
    Out(u8),
    /// To the LID with which its LID-routed part ends.
    Lid(u16),
    /// To the agent of this switch.
    Agent,
    /// Nowhere.
    Drop,
}

impl Fabric {
    /// A directed-route SMP has reached a switch, by a link (`permissive`) or LID-routed.
    pub(super) fn smi(
        &mut self,
        at: PortRef,
        permissive: bool,
        packet: &mut Packet,
        now: u64,
    ) -> Smi {
        let Some(node) = self.node(at.node) else {
            return Smi::Drop;
        };
        let ports = node.port_count();
        let own_lid = node.port(0).map_or(0, |p| p.lid);
        let from = packet.lrh.slid;
        let Some(mut smp) = Mad::from_payload(&mut packet.payload) else {
            return Smi::Drop;
        };
        let mut step = advance(&mut smp, at.port, ports, permissive);
        if step == Step::Agent {
            if smp.returning() || self.smp(at, &mut smp, false, now) != Answer::Reply {
                return Smi::Drop;
            }
            step = if smp.dr_dlid() == LID_PERMISSIVE {
                advance(&mut smp, at.port, ports, false)
            } else {
                Step::Lid(from)
            };
        }
        let (dlid, slid, smi) = match step {
            Step::Out(port) => (LID_PERMISSIVE, LID_PERMISSIVE, Smi::Out(port)),
            Step::Lid(lid) => (lid, own_lid, Smi::Route),
            Step::Agent | Step::Drop => return Smi::Drop,
        };
        packet.lrh.dlid = dlid;
        packet.lrh.slid = slid;
        smi
    }
}

/// Moves the hop pointer of an SMP that is at a switch with `ports` external ports, having come in by
/// `input`; `from_link` says that it came by its directed part, and not LID-routed or from here.
fn advance(smp: &mut Mad<'_>, input: u8, ports: u8, from_link: bool) -> Step {
    let (ptr, cnt) = (smp.hop_ptr(), smp.hop_cnt());
    if cnt > MAX_HOPS {
        return Step::Drop;
    }
    let exit = |port: u8| match port {
        0 => Step::Drop,
        p if p > ports => Step::Drop,
        p => Step::Out(p),
    };
    if !smp.returning() {
        return match ptr {
            // Whoever sends it along a link has moved the pointer off 0.
            0 if from_link => Step::Drop,
            // The directed part begins here.
            0 if cnt > 0 => {
                smp.set_hop_ptr(1);
                exit(smp.initial_path(1))
            }
            p if p < cnt => {
                smp.set_return_path(p, input);
                smp.set_hop_ptr(p + 1);
                exit(smp.initial_path(p + 1))
            }
            // The directed part ends here.
            p if p == cnt => {
                if cnt > 0 {
                    smp.set_return_path(p, input);
                }
                smp.set_hop_ptr(p + 1);
                match smp.dr_dlid() {
                    LID_PERMISSIVE => Step::Agent,
                    lid => Step::Lid(lid),
                }
            }
            p if p == cnt + 1 => Step::Agent,
            _ => Step::Drop,
        };
    }
    match ptr {
        // The directed part of the way back begins here, or goes on.
        p if p >= 2 && (p <= cnt || (p == cnt + 1 && !from_link)) => {
            smp.set_hop_ptr(p - 1);
            exit(smp.return_path(p - 1))
        }
        // It ends here; an SM, to whom a permissive DrSLID would lead, does not live in a switch.
        1 if smp.dr_slid() != LID_PERMISSIVE => {
            smp.set_hop_ptr(0);
            Step::Lid(smp.dr_slid())
        }
        _ => Step::Drop,
    }
}
