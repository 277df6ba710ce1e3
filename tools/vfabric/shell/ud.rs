// SPDX-License-Identifier: GPL-2.0-only

//! Datagrams: QP0, QP1 and UD queue pairs (IBA 9.8.3, 10.2.3).

use super::bindings;
use super::cq::Cqe;
use super::qp::{Kind, Qp};
use super::rc_host::{gather, scatter, wc_status};
use super::state::{self, State};
use super::wq::{Extra, SendSlot, SgList, UdDest};
use crate::model::fabric::port::{LID_MULTICAST, LID_PERMISSIVE};
use crate::model::host::{MemError, Status};
use crate::model::packet::{Bth, Deth, Grh, Lrh, Opcode, Packet};
use kernel::prelude::*;
use kernel::sync::Arc;

/// A GRH, as it lies before the data of a datagram.
const GRH_LEN: usize = 40;
/// The sender's own Q_Key is meant where the high bit of a request's is set (IBA 10.2.5).
const QKEY_OF_QP: u32 = 1 << 31;
/// Destination QP number of a multicast packet.
const QPN_MULTICAST: u32 = 0xff_ffff;
/// The default P_Key, full member.
const DEFAULT_PKEY: u16 = 0xffff;

/// Sends what is posted, or flushes it.
pub(crate) fn run(st: &mut State, qp: &Arc<Qp>) {
    match qp.state() {
        bindings::ib_qp_state_IB_QPS_RTS => {}
        bindings::ib_qp_state_IB_QPS_ERR => {
            qp.flush_sends(&mut st.out);
            return qp.flush_receives(&mut st.out);
        }
        _ => return,
    }
    let mut list = SgList::new();
    loop {
        let Some((slot, dest)) = qp.sq.lock().front(&mut list) else {
            return;
        };
        let status = match send(st, qp, &slot, &dest, &list) {
            Ok(()) => Status::Success,
            Err(MemError::Protection) => Status::LocProt,
            Err(MemError::Length) => Status::LocLen,
        };
        qp.sq.lock().pop();
        let signalled = slot.flags & bindings::ib_send_flags_IB_SEND_SIGNALED != 0;
        if qp.signal_all || signalled || status != Status::Success {
            let mut cqe = Cqe::new(qp.handle, slot.wr_id);
            cqe.status = wc_status(status);
            cqe.byte_len = slot.len;
            cqe.port = qp.port(st);
            qp.send_cq.push(cqe, false, &mut st.out);
        }
        if status != Status::Success {
            // What IBA calls SQE: the send queue is dead, receives go on.
            qp.set_state(bindings::ib_qp_state_IB_QPS_SQE);
            return qp.flush_sends(&mut st.out);
        }
    }
}

fn send(
    st: &mut State,
    qp: &Qp,
    slot: &SendSlot,
    dest: &UdDest,
    list: &SgList,
) -> Result<(), MemError> {
    let special = matches!(qp.kind, Kind::Smi | Kind::Gsi);
    let number = match (special, dest.av.port) {
        (true, _) | (false, 0) => qp.port(st),
        (false, port) => port,
    };
    let node = st.hca_ref(qp.hca).node;
    let port = st.fabric.port(node, number).ok_or(MemError::Protection)?;
    let len = slot.len as usize;
    if len > port.mtu_bytes() {
        return Err(MemError::Length);
    }
    let pkey_index = match qp.kind {
        Kind::Gsi => dest.pkey_index,
        _ => qp.attr(st).pkey_index,
    };
    let pkey = match qp.kind {
        Kind::Smi => DEFAULT_PKEY,
        _ => *port.pkeys.get(usize::from(pkey_index)).unwrap_or(&0),
    };
    let multicast = (LID_MULTICAST..LID_PERMISSIVE).contains(&dest.av.dlid);
    // A directed route begins and ends without LIDs.
    let slid = match port.lid {
        _ if dest.av.dlid == LID_PERMISSIVE => LID_PERMISSIVE,
        0 => LID_PERMISSIVE,
        lid => lid | u16::from(dest.av.path_bits) & ((1 << (port.lmc & 7)) - 1),
    };
    let grh = dest.av.grh.map(|g| Grh {
        sgid: port.gid(0).unwrap_or([0; 16]),
        ..g
    });
    let mut payload = KVec::<u8>::zeroed(len, GFP_KERNEL).map_err(|_| MemError::Length)?;
    gather(&st.hca_ref(qp.hca).mrs, qp.pd, list, 0, &mut payload)?;
    let attr = qp.attr_mut(st);
    let psn = attr.sq_psn;
    attr.sq_psn = psn.wrapping_add(1) & 0xff_ffff;
    let qkey = if dest.qkey & QKEY_OF_QP != 0 {
        attr.qkey
    } else {
        dest.qkey
    };
    let packet = Packet {
        lrh: Lrh {
            vl: 0,
            sl: dest.av.sl,
            dlid: dest.av.dlid,
            slid,
        },
        grh,
        bth: Bth {
            opcode: Opcode::UdSend,
            solicited: slot.flags & bindings::ib_send_flags_IB_SEND_SOLICITED != 0,
            mig_req: true,
            pkey,
            dest_qp: if multicast { QPN_MULTICAST } else { dest.qpn },
            ack_req: false,
            psn,
        },
        deth: Some(Deth {
            qkey,
            src_qp: qp.qpn,
        }),
        reth: None,
        aeth: None,
        imm: match slot.extra {
            Extra::Imm(imm) => Some(imm),
            _ => None,
        },
        invalidate: None,
        payload,
    };
    st.fabric.transmit(node, number, packet, state::now());
    Ok(())
}

/// A datagram has come in by a port.
pub(crate) fn receive(st: &mut State, hca: usize, port: u8, packet: Packet) {
    let h = st.hca_ref(hca);
    match packet.bth.dest_qp {
        which @ (0 | 1) => {
            if let Some(qp) = h.special(port, which as usize) {
                accept(st, &qp, port, &packet);
            }
        }
        QPN_MULTICAST => {
            let Some(grh) = packet.grh else {
                return;
            };
            let mut next = 0;
            while let Some((qp, i)) = st.hca_ref(hca).member_from(&grh.dgid, next) {
                next = i;
                if qp.port(st) == port {
                    accept(st, &qp, port, &packet);
                }
            }
        }
        qpn => {
            let qp = h.qp(qpn).filter(|qp| qp.kind == Kind::Ud).cloned();
            if let Some(qp) = qp.filter(|qp| qp.port(st) == port) {
                accept(st, &qp, port, &packet);
            }
        }
    }
}

/// Whether two P_Keys are of the same partition, at least one as a full member (IBA 10.9.3).
fn pkey_match(a: u16, b: u16) -> bool {
    a & 0x7fff == b & 0x7fff && a & 0x7fff != 0 && (a | b) & 0x8000 != 0
}

/// Index of the port's P_Key that lets the packet in.
fn pkey_index(st: &mut State, qp: &Qp, port: u8, packet: &Packet) -> Option<u16> {
    let node = st.hca_ref(qp.hca).node;
    let keys = &st.fabric.port(node, port)?.pkeys;
    let index = match qp.kind {
        Kind::Smi => Some(0),
        Kind::Gsi => keys.iter().position(|k| pkey_match(*k, packet.bth.pkey)),
        _ => Some(usize::from(qp.attr(st).pkey_index)).filter(|i| {
            keys.get(*i)
                .is_some_and(|k| pkey_match(*k, packet.bth.pkey))
        }),
    };
    if index.is_none() {
        st.fabric.count_bad_pkey(node, port);
    }
    index.map(|i| i as u16)
}

fn accept(st: &mut State, qp: &Arc<Qp>, port: u8, packet: &Packet) {
    let Some(deth) = packet.deth else {
        return;
    };
    if !matches!(
        qp.state(),
        bindings::ib_qp_state_IB_QPS_RTR
            | bindings::ib_qp_state_IB_QPS_RTS
            | bindings::ib_qp_state_IB_QPS_SQD
            | bindings::ib_qp_state_IB_QPS_SQE
    ) {
        return;
    }
    let node = st.hca_ref(qp.hca).node;
    let Some(pkey_index) = pkey_index(st, qp, port, packet) else {
        return;
    };
    if qp.kind != Kind::Smi && qp.attr(st).qkey != deth.qkey {
        return st.fabric.count_bad_qkey(node, port);
    }
    let mut list = SgList::new();
    let wr_id = {
        let mut rq = qp.rq.lock();
        // None posted: the datagram is dropped (IBA 9.8.3.2.1).
        let (Some(()), Some(wr_id)) = (rq.list(&mut list), rq.pop()) else {
            return;
        };
        wr_id
    };
    let mut cqe = Cqe::new(qp.handle, wr_id);
    let mrs = &st.hca_ref(qp.hca).mrs;
    let head = packet.grh.map_or([0; GRH_LEN], |g| grh(&g, packet));
    let stored = scatter(mrs, qp.pd, &list, 0, &head)
        .and_then(|()| scatter(mrs, qp.pd, &list, GRH_LEN as u32, &packet.payload));
    if let Err(e) = stored {
        cqe.status = wc_status(match e {
            MemError::Protection => Status::LocProt,
            MemError::Length => Status::LocLen,
        });
    }
    cqe.opcode = bindings::ib_wc_opcode_IB_WC_RECV;
    cqe.byte_len = (packet.payload.len() + GRH_LEN) as u32;
    cqe.src_qp = deth.src_qp;
    cqe.slid = packet.lrh.slid.into();
    cqe.sl = packet.lrh.sl;
    cqe.pkey_index = pkey_index;
    cqe.port = port;
    if packet.grh.is_some() {
        cqe.flags |= bindings::ib_wc_flags_IB_WC_GRH;
    }
    if let Some(imm) = packet.imm {
        cqe.flags |= bindings::ib_wc_flags_IB_WC_WITH_IMM;
        cqe.ex = imm;
    }
    if packet.lrh.dlid < LID_MULTICAST {
        let lmc = st.fabric.port(node, port).map_or(0, |p| p.lmc & 7);
        cqe.dlid_path_bits = (packet.lrh.dlid & ((1 << lmc) - 1)) as u8;
    }
    qp.recv_cq.push(cqe, packet.bth.solicited, &mut st.out);
}

/// The GRH as it stands on the wire (IBA 8.3).
fn grh(g: &Grh, packet: &Packet) -> [u8; GRH_LEN] {
    // BTH, DETH and ICRC are counted in PayLen, and immediate data where there is some.
    let headers = 12 + 8 + 4 + if packet.imm.is_some() { 4 } else { 0 };
    let len = (packet.payload.len() + headers) as u16;
    let first = 6 << 28 | u32::from(g.tclass) << 20 | g.flow_label & 0xf_ffff;
    let mut out = [0; GRH_LEN];
    out[..4].copy_from_slice(&first.to_be_bytes());
    out[4..6].copy_from_slice(&len.to_be_bytes());
    out[6] = 0x1b;
    out[7] = g.hop_limit;
    out[8..24].copy_from_slice(&g.sgid);
    out[24..].copy_from_slice(&g.dgid);
    out
}
