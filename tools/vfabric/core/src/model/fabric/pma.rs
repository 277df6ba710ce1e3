// SPDX-License-Identifier: GPL-2.0-only

//! The performance management agent (IBA 16.1): ClassPortInfo, PortCounters and
//! PortCountersExtended, read and set.

use super::super::topology::Kind;
use super::counters::Totals;
use super::mad::{
    get16, get32, get64, put16, put32, put64, Mad, METHOD_GET, METHOD_SET, STATUS_BAD_VERSION,
    STATUS_INVALID, STATUS_OK, STATUS_UNSUPPORTED,
};
use super::sma::Answer;
use super::{Fabric, PortRef};

const CLASS_PORT_INFO: u16 = 0x0001;
const PORT_COUNTERS: u16 = 0x0012;
const PORT_COUNTERS_EXTENDED: u16 = 0x001d;

/// PortSelect: the sum of all external ports, or all of them to be set.
const ALL_PORTS: u8 = 0xff;
/// ClassPortInfo:CapabilityMask: AllPortSelect (switches only).
const CAP_ALL_PORT_SELECT: u16 = 1 << 8;
/// ClassPortInfo:CapabilityMask: PortCountersExtended with all its counters.
const CAP_EXTENDED_WIDTH: u16 = 1 << 9;
/// ClassPortInfo:RespTimeValue: 4.096 us x 2^16.
const RESP_TIME: u8 = 16;

/// A counter of an attribute: where it lies, how wide it is, the bit of CounterSelect that means it,
/// and what it counts.
struct Field {
    at: usize,
    bits: u32,
    select: u16,
    counter: fn(&mut Totals) -> &mut u64,
}

const fn field(at: usize, bits: u32, select: u16, counter: fn(&mut Totals) -> &mut u64) -> Field {
    Field {
        at,
        bits,
        select,
        counter,
    }
}

/// PortCounters (IBA 16.1.3.5). Symbol errors and link recoveries do not happen.
const COUNTERS: &[Field] = &[
    field(7, 8, 1 << 2, |t| &mut t.link_downed),
    field(8, 16, 1 << 3, |t| &mut t.rcv_errors),
    field(12, 16, 1 << 5, |t| &mut t.relay_errors),
    field(14, 16, 1 << 6, |t| &mut t.xmit_discards),
    field(22, 16, 1 << 11, |t| &mut t.vl15_dropped),
    field(24, 32, 1 << 12, |t| &mut t.xmit_data),
    field(28, 32, 1 << 13, |t| &mut t.rcv_data),
    field(32, 32, 1 << 14, |t| &mut t.xmit_packets),
    field(36, 32, 1 << 15, |t| &mut t.rcv_packets),
];

/// PortCountersExtended (IBA 16.1.4.11).
const EXTENDED: &[Field] = &[
    field(8, 64, 1 << 0, |t| &mut t.xmit_data),
    field(16, 64, 1 << 1, |t| &mut t.rcv_data),
    field(24, 64, 1 << 2, |t| &mut t.xmit_packets),
    field(32, 64, 1 << 3, |t| &mut t.rcv_packets),
    field(40, 64, 1 << 4, |t| &mut t.unicast_xmit),
    field(48, 64, 1 << 5, |t| &mut t.unicast_rcv),
    field(56, 64, 1 << 6, |t| &mut t.multicast_xmit),
    field(64, 64, 1 << 7, |t| &mut t.multicast_rcv),
];

impl Fabric {
    /// Answers a performance MAD that has arrived at a port.
    pub(super) fn perf(&mut self, at: PortRef, mad: &mut Mad<'_>) -> Answer {
        if !matches!(mad.method(), METHOD_GET | METHOD_SET) {
            return Answer::NotMine;
        }
        let set = mad.method() == METHOD_SET;
        let status = match mad.attr() {
            _ if !mad.versions_ok() => STATUS_BAD_VERSION,
            CLASS_PORT_INFO if !set => self.perf_class(at, mad.perf_data()),
            PORT_COUNTERS => self.port_counters(at, mad.perf_data(), set, COUNTERS, false),
            PORT_COUNTERS_EXTENDED => self.port_counters(at, mad.perf_data(), set, EXTENDED, true),
            _ => STATUS_UNSUPPORTED,
        };
        mad.respond(status);
        Answer::Reply
    }

    fn perf_class(&self, at: PortRef, d: &mut [u8]) -> u16 {
        let caps = match self.node(at.node).map(|n| n.kind()) {
            Some(Kind::Switch) => CAP_ALL_PORT_SELECT | CAP_EXTENDED_WIDTH,
            _ => CAP_EXTENDED_WIDTH,
        };
        d.fill(0);
        // BaseVersion, ClassVersion, CapabilityMask, CapabilityMask2 with RespTimeValue
        put16(d, 0, 0x0101);
        put16(d, 2, caps);
        put32(d, 4, u32::from(RESP_TIME));
        STATUS_OK
    }

    fn port_counters(
        &mut self,
        at: PortRef,
        d: &mut [u8],
        set: bool,
        fields: &[Field],
        extended: bool,
    ) -> u16 {
        let [_, select] = get16(d, 0).to_be_bytes();
        let mask = get16(d, 2);
        let Some(node) = self.node_mut(at.node) else {
            return STATUS_INVALID;
        };
        let all = select == ALL_PORTS && node.switch.is_some();
        if !all && node.port(select).is_none() {
            return STATUS_INVALID;
        }
        let mut values = Values::default();
        for p in node.ports.iter_mut() {
            if if all {
                p.number == 0
            } else {
                p.number != select
            } {
                continue;
            }
            let c = &mut p.counters;
            let base = if extended {
                &mut c.base_extended
            } else {
                &mut c.base
            };
            if set {
                for f in fields.iter().filter(|f| mask & f.select != 0) {
                    let now = *(f.counter)(&mut c.total);
                    *(f.counter)(base) = now.wrapping_sub(read(d, f));
                }
            }
            for (sum, f) in values.iter_mut().zip(fields) {
                let since = (f.counter)(&mut c.total).wrapping_sub(*(f.counter)(base));
                *sum = sum.saturating_add(since);
            }
        }
        d.fill(0);
        put16(d, 0, u16::from(select));
        put16(d, 2, mask);
        for (value, f) in values.iter().zip(fields) {
            write(d, f, *value);
        }
        STATUS_OK
    }
}

/// One value for each field of either attribute.
type Values = [u64; 9];

fn read(d: &[u8], f: &Field) -> u64 {
    match f.bits {
        8 => u64::from(d.get(f.at).copied().unwrap_or(0)),
        16 => u64::from(get16(d, f.at)),
        32 => u64::from(get32(d, f.at)),
        _ => get64(d, f.at),
    }
}

/// Counters stop at their largest value.
fn write(d: &mut [u8], f: &Field, value: u64) {
    match f.bits {
        8 => {
            if let Some(b) = d.get_mut(f.at) {
                *b = u8::try_from(value).unwrap_or(u8::MAX);
            }
        }
        16 => put16(d, f.at, u16::try_from(value).unwrap_or(u16::MAX)),
        32 => put32(d, f.at, u32::try_from(value).unwrap_or(u32::MAX)),
        _ => put64(d, f.at, value),
    }
}
