// SPDX-License-Identifier: GPL-2.0-only

//! A record of the MADs that HCAs have sent, for who wants to see what was said on the wire.
//!
//! | command | what it does |
//! |---|---|
//! | `mad log class=C` | from now on keeps the latest MADs of this management class; what was kept is gone |
//! | `mad log off` | keeps no more, and shows none |

use super::super::super::mem::{AllocError, KVec, GFP_ATOMIC};
use super::super::packet::Packet;
use super::control::ControlError;
use super::madrule::number;
use super::ring::Ring;
use super::{Fabric, PortRef};
use core::fmt;
use core::str::SplitAsciiWhitespace;

/// MADs kept.
const KEPT: usize = 128;

/// A MAD as an HCA has sent it.
#[derive(Debug)]
pub(super) struct Entry {
    number: u64,
    from: PortRef,
    slid: u16,
    dlid: u16,
    lost: bool,
    mad: KVec<u8>,
}

/// The record.
#[derive(Debug)]
pub(super) struct MadLog {
    class: Option<u8>,
    seen: u64,
    latest: Ring<Entry>,
}

impl MadLog {
    /// An empty one that is off. May sleep.
    pub(super) fn new() -> Result<Self, AllocError> {
        Ok(MadLog {
            class: None,
            seen: 0,
            latest: Ring::new(KEPT, KEPT)?,
        })
    }

    /// Takes the words after `mad log`. What is refused changes nothing.
    pub(super) fn command(
        &mut self,
        mut words: SplitAsciiWhitespace<'_>,
    ) -> Result<(), ControlError> {
        let class = match (words.next(), words.next()) {
            (Some("off"), None) => None,
            (Some(word), None) => {
                let text = word.strip_prefix("class=");
                Some(number(text.ok_or(ControlError::BadMadLog)?)?)
            }
            _ => return Err(ControlError::BadMadLog),
        };
        self.class = class;
        self.seen = 0;
        while self.latest.pop().is_some() {}
        Ok(())
    }

    /// Whether it is to be kept.
    fn wants(&self, packet: &Packet) -> bool {
        self.class.is_some() && packet.payload.get(1).copied() == self.class
    }

    fn add(&mut self, from: PortRef, packet: &Packet, lost: bool) {
        self.seen = self.seen.wrapping_add(1);
        let Ok(mut mad) = KVec::with_capacity(packet.payload.len(), GFP_ATOMIC) else {
            return;
        };
        if mad.extend_from_slice(&packet.payload, GFP_ATOMIC).is_err() {
            return;
        }
        let entry = Entry {
            number: self.seen,
            from,
            slid: packet.lrh.slid,
            dlid: packet.lrh.dlid,
            lost,
            mad,
        };
        if let Err(entry) = self.latest.push(entry) {
            // Full: the oldest makes room.
            let _ = self.latest.pop();
            let _ = self.latest.push(entry);
        }
    }
}

impl Fabric {
    /// Notes a MAD that is about to be sent, where that is wanted; `lost`: a rule has taken it.
    pub(super) fn log_mad(&mut self, from: PortRef, packet: &Packet, lost: bool) {
        if self.mad_log.wants(packet) {
            self.mad_log.add(from, packet, lost);
        }
    }

    /// Writes one line for each MAD kept, the earliest first.
    pub fn write_mads(&self, out: &mut impl fmt::Write) -> fmt::Result {
        for entry in self.mad_log.latest.iter() {
            let node = self.node(entry.from.node).map_or("?", |n| n.name.as_str());
            write!(
                out,
                "n={} from={}/{} slid={} dlid={} lost={} mad=",
                entry.number,
                node,
                entry.from.port,
                entry.slid,
                entry.dlid,
                u8::from(entry.lost),
            )?;
            for byte in entry.mad.iter() {
                write!(out, "{byte:02x}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}
