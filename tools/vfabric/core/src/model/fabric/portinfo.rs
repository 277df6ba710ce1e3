// SPDX-License-Identifier: GPL-2.0-only

//! PortInfo (IBA 14.2.5.6): what the SM sees of a port and changes in it.
//!
//! A Set with a field that makes no sense changes nothing and is answered with the status for an
//! invalid field; most fields have a value that means "leave as it is". External ports of a switch
//! ignore the fields that only a managed port has: M_Key, GidPrefix, LID, LMC, SM, SubnetTimeOut.

use super::mad::{get16, get64, put16, put32, put64, Mad, STATUS_INVALID, STATUS_OK};
use super::port::{
    PhysState, Port, PortState, GUIDS, LID_MULTICAST, MTU_CAP, SPEED_SUPPORTED, VLARB_CAP, VL_CAP,
    WIDTH_SUPPORTED,
};
use super::{Fabric, PortEvent, PortRef};

/// RespTimeValue: 4.096 us x 2^16, 0.27 s.
const RESP_TIME: u8 = 16;
/// NoChange of a LinkWidthEnabled or LinkSpeedEnabled, and "all that is supported".
const ALL_WIDTHS: u8 = 0xff;
const ALL_SPEEDS: u8 = 0x0f;

/// The fields of a Set, taken apart.
struct Wanted {
    mkey: u64,
    gid_prefix: u64,
    lid: u16,
    sm_lid: u16,
    mkey_lease: u16,
    width: u8,
    state: u8,
    phys: u8,
    down_default: u8,
    mkey_protect: u8,
    lmc: u8,
    speed: u8,
    mtu: u8,
    sm_sl: u8,
    vl_high_limit: u8,
    init_type_reply: u8,
    vl_stall_hoq: u8,
    vls: u8,
    enforce: u8,
    mkey_violations: u16,
    pkey_violations: u16,
    qkey_violations: u16,
    reregister: bool,
    subnet_timeout: u8,
    error_thresholds: u8,
}

impl Wanted {
    fn decode(d: &[u8]) -> Wanted {
        let at = |i: usize| d.get(i).copied().unwrap_or(0);
        let high = |i| at(i) >> 4;
        let low = |i| at(i) & 0xf;
        Wanted {
            mkey: get64(d, 0),
            gid_prefix: get64(d, 8),
            lid: get16(d, 16),
            sm_lid: get16(d, 18),
            mkey_lease: get16(d, 26),
            width: at(29),
            state: low(32),
            phys: high(33),
            down_default: low(33),
            mkey_protect: at(34) >> 6,
            lmc: at(34) & 7,
            speed: low(35),
            mtu: high(36),
            sm_sl: low(36),
            vl_high_limit: at(38),
            init_type_reply: high(41),
            vl_stall_hoq: at(42),
            vls: high(43),
            enforce: low(43),
            mkey_violations: get16(d, 44),
            pkey_violations: get16(d, 46),
            qkey_violations: get16(d, 48),
            reregister: at(51) & 0x80 != 0,
            subnet_timeout: at(51) & 0x1f,
            error_thresholds: at(53),
        }
    }

    /// Whether all of it can be done to `p`.
    fn possible(&self, p: &Port, managed: bool) -> bool {
        let width = matches!(self.width, 0 | ALL_WIDTHS) || self.width & !WIDTH_SUPPORTED == 0;
        let speed = matches!(self.speed, 0 | ALL_SPEEDS) || self.speed & !SPEED_SUPPORTED == 0;
        let phys = self.phys <= 3;
        let state = match self.state {
            0 | 1 => true,
            3 => matches!(p.state, PortState::Init | PortState::Armed),
            4 => matches!(p.state, PortState::Armed | PortState::Active),
            _ => false,
        };
        // A base port 0 has no link that could have a state.
        let link = p.number == 0 || (width && speed && phys && state && self.down_default <= 2);
        // Without a LID there is only subnet management.
        let unicast =
            |lid| lid < LID_MULTICAST && (lid != 0 || p.state <= PortState::Init || p.number == 0);
        let last_lid = u32::from(self.lid) + (1 << self.lmc);
        let lids =
            unicast(self.lid) && unicast(self.sm_lid) && last_lid <= u32::from(LID_MULTICAST);
        let mtu = self.mtu <= MTU_CAP;
        let vls = self.vls <= VL_CAP;
        link && mtu && vls && (!managed || lids)
    }
}

impl Fabric {
    /// The port that the modifier of a PortInfo names: 0 is the one asked in an HCA and port 0 in a
    /// switch.
    fn port_info_port(&self, at: PortRef, smp: &Mad<'_>) -> Option<PortRef> {
        let node = self.node(at.node)?;
        let port = match (smp.modifier() & 0xff) as u8 {
            0 => node.managed_port(at.port),
            n => n,
        };
        node.port(port)?;
        Some(PortRef {
            node: at.node,
            port,
        })
    }

    pub(super) fn get_port_info(
        &mut self,
        at: PortRef,
        smp: &mut Mad<'_>,
        ignore_mkey: bool,
    ) -> u16 {
        let Some(port) = self.port_info_port(at, smp) else {
            smp.smp_data().fill(0);
            return STATUS_INVALID;
        };
        self.write_port_info(port, at.port, smp, ignore_mkey, false)
    }

    pub(super) fn set_port_info(
        &mut self,
        at: PortRef,
        smp: &mut Mad<'_>,
        ignore_mkey: bool,
        now: u64,
    ) -> u16 {
        let Some(port) = self.port_info_port(at, smp) else {
            smp.smp_data().fill(0);
            return STATUS_INVALID;
        };
        let managed = self
            .node(at.node)
            .is_some_and(|n| n.managed_port(port.port) == port.port);
        let key = smp.mkey();
        let wanted = Wanted::decode(smp.smp_data());
        let Some(p) = self.port_at(port) else {
            return STATUS_INVALID;
        };
        // Another port of the HCA has an M_Key of its own.
        let allowed = port == at || !managed || ignore_mkey || p.mkey == 0 || p.mkey == key;
        let status = if allowed && wanted.possible(p, managed) {
            if managed {
                self.set_managed(port, &wanted);
            }
            self.set_link(port, &wanted, now);
            STATUS_OK
        } else {
            STATUS_INVALID
        };
        let echo = managed && wanted.reregister && status == STATUS_OK;
        self.write_port_info(port, at.port, smp, true, echo);
        status
    }

    /// The part of a Set that concerns the port as an address, and its events.
    fn set_managed(&mut self, at: PortRef, w: &Wanted) {
        let Some(p) = self.port_mut(at) else {
            return;
        };
        // An LMC is not for a base port 0 (IBA 14.2.5.6).
        let lmc = if p.number == 0 { 0 } else { w.lmc };
        let lid_changed = (p.lid, p.lmc) != (w.lid, lmc);
        let sm_changed = (p.sm_lid, p.sm_sl) != (w.sm_lid, w.sm_sl);
        let gid_changed = p.gid_prefix != w.gid_prefix;
        p.mkey = w.mkey;
        p.mkey_protect = w.mkey_protect;
        p.mkey_lease = w.mkey_lease;
        p.gid_prefix = w.gid_prefix;
        p.lid = w.lid;
        p.lmc = lmc;
        p.sm_lid = w.sm_lid;
        p.sm_sl = w.sm_sl;
        p.subnet_timeout = w.subnet_timeout;
        p.init_type_reply = w.init_type_reply;
        // Violation counters are only ever cleared.
        for (counter, value) in [
            (&mut p.mkey_violations, w.mkey_violations),
            (&mut p.pkey_violations, w.pkey_violations),
            (&mut p.qkey_violations, w.qkey_violations),
        ] {
            if value == 0 {
                *counter = 0;
            }
        }
        for (happened, kind) in [
            (lid_changed, PortEvent::LidChange),
            (gid_changed, PortEvent::GidChange),
            (sm_changed, PortEvent::SmChange),
            (w.reregister, PortEvent::ClientReregister),
        ] {
            if happened {
                self.raise(at, kind);
            }
        }
    }

    /// The part of a Set that concerns the link, and the link's state.
    fn set_link(&mut self, at: PortRef, w: &Wanted, now: u64) {
        let Some(p) = self.port_mut(at) else {
            return;
        };
        match w.width {
            0 => {}
            ALL_WIDTHS => p.width_enabled = WIDTH_SUPPORTED,
            mask => p.width_enabled = mask,
        }
        match w.speed {
            0 => {}
            ALL_SPEEDS => p.speed_enabled = SPEED_SUPPORTED,
            mask => p.speed_enabled = mask,
        }
        if w.mtu != 0 {
            p.neighbor_mtu = w.mtu;
        }
        if w.vls != 0 {
            p.operational_vls = w.vls;
        }
        if w.down_default != 0 {
            p.link_down_default = w.down_default;
        }
        p.enforce = w.enforce;
        p.vl_high_limit = w.vl_high_limit;
        p.vl_stall_hoq = w.vl_stall_hoq;
        p.error_thresholds = w.error_thresholds;
        if at.port == 0 || p.peer.is_none() && !matches!(w.phys, 1..=3) {
            return;
        }
        match (w.phys, w.state) {
            (1, _) => self.link_down(at, Some(PhysState::Sleep), now),
            (3, _) => self.link_down(at, Some(PhysState::Disabled), now),
            (2, _) => {
                self.link_down(at, Some(PhysState::Polling), now);
                self.link_up(at, now);
            }
            (_, 1) => {
                self.link_down(at, None, now);
                self.link_up(at, now);
            }
            (_, 3) => p.state = PortState::Armed,
            (_, 4) if p.state != PortState::Active => {
                p.state = PortState::Active;
                self.raise(at, PortEvent::PortActive);
            }
            _ => {}
        }
    }

    fn write_port_info(
        &self,
        at: PortRef,
        asked: u8,
        smp: &mut Mad<'_>,
        ignore_mkey: bool,
        reregister: bool,
    ) -> u16 {
        let key = smp.mkey();
        let Some(p) = self.port_at(at) else {
            return STATUS_INVALID;
        };
        let visible = ignore_mkey || p.mkey_protect == 0 || p.mkey == key;
        encode(p, asked, visible, reregister, smp.smp_data());
        STATUS_OK
    }
}

/// Writes the 64 bytes of a PortInfo.
fn encode(p: &Port, asked: u8, mkey_visible: bool, reregister: bool, d: &mut [u8]) {
    let managed = p.guid() != 0;
    d.fill(0);
    put64(d, 0, if mkey_visible { p.mkey } else { 0 });
    put64(d, 8, p.gid_prefix);
    put16(d, 16, p.lid);
    put16(d, 18, p.sm_lid);
    put32(d, 20, p.cap_mask);
    // DiagCode at 24 stays 0.
    put16(d, 26, p.mkey_lease);
    let bytes = [
        asked,
        p.width_enabled,
        WIDTH_SUPPORTED,
        p.width_active,
        (SPEED_SUPPORTED << 4) | p.state as u8,
        ((p.phys as u8) << 4) | p.link_down_default,
        (p.mkey_protect << 6) | p.lmc,
        (p.speed_active << 4) | p.speed_enabled,
        (p.neighbor_mtu << 4) | p.sm_sl,
        VL_CAP << 4,
        p.vl_high_limit,
        VLARB_CAP,
        VLARB_CAP,
        (p.init_type_reply << 4) | MTU_CAP,
        p.vl_stall_hoq,
        (p.operational_vls << 4) | p.enforce,
    ];
    if let Some(place) = d.get_mut(28..44) {
        place.copy_from_slice(&bytes);
    }
    put16(d, 44, p.mkey_violations);
    put16(d, 46, p.pkey_violations);
    put16(d, 48, p.qkey_violations);
    let guid_cap = if managed { GUIDS as u8 } else { 0 };
    put16(
        d,
        50,
        u16::from_be_bytes([guid_cap, (u8::from(reregister) << 7) | p.subnet_timeout]),
    );
    put16(d, 52, u16::from_be_bytes([RESP_TIME, p.error_thresholds]));
}
