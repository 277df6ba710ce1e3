// SPDX-License-Identifier: GPL-2.0-only

//! Faults of single management datagrams: MADs that HCAs send are lost, late, doubled or changed.
//!
//! | command | what it does |
//! |---|---|
//! | `mad drop class=C attr=A [method=M] [count=N]` | loses the MADs of this management class and attribute |
//! | `mad delay class=C attr=A us=N [method=M] [count=N]` | sends them that many microseconds later; what follows overtakes them |
//! | `mad duplicate class=C attr=A [us=N] [method=M] [count=N]` | sends them twice, the second time so much later |
//! | `mad rewrite class=C attr=A offset=O value=HEX [method=M] [count=N]` | puts the bytes HEX at offset O of the MAD, from its first byte on |
//! | `mad clear` | ends all that |
//! | `mad log …` | shows them: see `madlog.rs` |
//!
//! Numbers are decimal or begin with 0x. With `count=` a rule ends after it has met so many MADs.
//! Rules are tried in the order in which they were given; a MAD not lost meets the later ones, too.
//! Delays add up; of several rules that double a MAD the last one counts.

use super::super::packet::Packet;
use super::control::ControlError;
use super::impair::MAX_DELAY_US;
use super::{grh, Fabric, PortRef};
use core::str::SplitAsciiWhitespace;

/// Rules that can be in force at once.
const MAX_RULES: usize = 16;
/// Bytes that one rule can put in place.
const MAX_VALUE: usize = 16;
/// Size of a MAD.
const MAD: usize = 256;

/// What happens to a MAD that a rule meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Drop,
    Delay {
        ns: u64,
    },
    Duplicate {
        later_ns: u64,
    },
    Rewrite {
        offset: usize,
        value: [u8; MAX_VALUE],
        len: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    class: u8,
    attr: u16,
    method: Option<u8>,
    /// MADs still to be met; `None` for ever.
    left: Option<u32>,
    fate: Fate,
}

/// The rules in force, and how often they were used.
#[derive(Debug, Default)]
pub(super) struct MadRules {
    rules: [Option<Rule>; MAX_RULES],
    used: u64,
}

impl MadRules {
    /// Takes the words after `mad`. What is refused changes nothing.
    pub(super) fn command(
        &mut self,
        mut words: SplitAsciiWhitespace<'_>,
    ) -> Result<(), ControlError> {
        let rule = match words.next() {
            Some("clear") if words.next().is_none() => {
                *self = MadRules::default();
                return Ok(());
            }
            Some(what @ ("drop" | "delay" | "duplicate" | "rewrite")) => parse(what, words)?,
            _ => return Err(ControlError::BadMadRule),
        };
        let free = self.rules.iter_mut().find(|r| r.is_none());
        *free.ok_or(ControlError::TooManyRules)? = Some(rule);
        Ok(())
    }

    /// How many times a rule has met a MAD.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Applies the rules to a packet; `None`: it is lost.
    fn apply(&mut self, packet: &mut Packet) -> Option<Sending> {
        let mut sending = Sending::default();
        for slot in &mut self.rules {
            let Some(rule) = slot else { continue };
            if !rule.meets(&packet.payload) {
                continue;
            }
            self.used = self.used.wrapping_add(1);
            let fate = rule.fate;
            match rule.left.and_then(|n| n.checked_sub(1)) {
                Some(0) => *slot = None,
                left => rule.left = left,
            }
            match fate {
                Fate::Drop => return None,
                Fate::Delay { ns } => sending.delay = sending.delay.saturating_add(ns),
                Fate::Duplicate { later_ns } => sending.again = Some(later_ns),
                Fate::Rewrite { offset, value, len } => {
                    let bytes = value.iter().take(len);
                    for (to, from) in packet.payload.iter_mut().skip(offset).zip(bytes) {
                        *to = *from;
                    }
                }
            }
        }
        Some(sending)
    }
}

/// When a MAD is sent, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Sending {
    /// So much later than it would be.
    delay: u64,
    /// Once more, so much later than that.
    again: Option<u64>,
}

impl Rule {
    fn meets(&self, mad: &[u8]) -> bool {
        // MAD header (IBA 13.4.3): class at 1, method at 3, attribute at 16.
        let (Some(&class), Some(&method)) = (mad.get(1), mad.get(3)) else {
            return false;
        };
        let (Some(&high), Some(&low)) = (mad.get(16), mad.get(17)) else {
            return false;
        };
        class == self.class
            && u16::from_be_bytes([high, low]) == self.attr
            && self.method.is_none_or(|m| m == method)
    }
}

impl Fabric {
    /// Sends a MAD of an HCA, as `grh` and the rules will have it.
    pub(super) fn transmit_mad(&mut self, from: PortRef, mut packet: Packet) {
        if self.grh > 0 {
            grh::force(&mut packet.payload, self.grh);
        }
        let sending = self.mad_rules.apply(&mut packet);
        self.log_mad(from, &packet, sending.is_none());
        let Some(sending) = sending else {
            return;
        };
        let copy = sending.again.map(|later| (later, packet.duplicate()));
        self.mad_after(from, sending.delay, packet);
        match copy {
            None => {}
            Some((later, Ok(copy))) => {
                self.mad_after(from, sending.delay.saturating_add(later), copy);
            }
            Some((_, Err(_))) => self.no_room(from, 0),
        }
    }

    fn mad_after(&mut self, from: PortRef, delay: u64, packet: Packet) {
        if delay == 0 {
            self.inject(from, packet);
        } else {
            self.hold_mad(from, delay, packet);
        }
    }

    /// How many times a rule has met a MAD.
    pub fn mad_rules_used(&self) -> u64 {
        self.mad_rules.used()
    }
}

fn parse(what: &str, words: SplitAsciiWhitespace<'_>) -> Result<Rule, ControlError> {
    let (mut class, mut attr, mut method, mut left) = (None, None, None, None);
    let (mut offset, mut value, mut ns) = (None, None, None);
    let rewrite = what == "rewrite";
    for word in words {
        let (key, text) = word.split_once('=').ok_or(ControlError::BadMadRule)?;
        match key {
            "class" => class = Some(number(text)?),
            "attr" => attr = Some(number(text)?),
            "method" => method = Some(number(text)?),
            "count" => left = Some(number::<u32>(text)?),
            "us" if matches!(what, "delay" | "duplicate") => ns = Some(microseconds(text)?),
            "offset" if rewrite => offset = Some(usize::from(number::<u16>(text)?)),
            "value" if rewrite => value = Some(hex(text)?),
            _ => return Err(ControlError::BadMadRule),
        }
    }
    let fate = match (what, offset, value, ns) {
        ("drop", ..) => Fate::Drop,
        ("delay", _, _, Some(ns)) => Fate::Delay { ns },
        ("duplicate", ..) => Fate::Duplicate {
            later_ns: ns.unwrap_or(0),
        },
        ("rewrite", Some(offset), Some((value, len)), _) if offset.saturating_add(len) <= MAD => {
            Fate::Rewrite { offset, value, len }
        }
        _ => return Err(ControlError::BadMadRule),
    };
    if left == Some(0) {
        return Err(ControlError::BadMadRule);
    }
    Ok(Rule {
        class: class.ok_or(ControlError::BadMadRule)?,
        attr: attr.ok_or(ControlError::BadMadRule)?,
        method,
        left,
        fate,
    })
}

/// A delay, in nanoseconds.
fn microseconds(text: &str) -> Result<u64, ControlError> {
    match number::<u32>(text)? {
        us if us <= MAX_DELAY_US => Ok(u64::from(us) * 1000),
        _ => Err(ControlError::BadMadRule),
    }
}

/// A decimal or 0x number that fits.
pub(super) fn number<T: TryFrom<u32>>(text: &str) -> Result<T, ControlError> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let n = parsed.map_err(|_| ControlError::BadMadRule)?;
    T::try_from(n).map_err(|_| ControlError::BadMadRule)
}

/// Bytes in hexadecimal, at least one.
fn hex(text: &str) -> Result<([u8; MAX_VALUE], usize), ControlError> {
    let mut value = [0; MAX_VALUE];
    let mut digits = text.bytes();
    let mut len = 0usize;
    for slot in &mut value {
        let Some(high) = digits.next() else { break };
        let low = digits.next().ok_or(ControlError::BadMadRule)?;
        *slot = (nibble(high)? << 4) | nibble(low)?;
        len = len.wrapping_add(1);
    }
    if len == 0 || digits.next().is_some() {
        return Err(ControlError::BadMadRule);
    }
    Ok((value, len))
}

fn nibble(digit: u8) -> Result<u8, ControlError> {
    let n = char::from(digit)
        .to_digit(16)
        .ok_or(ControlError::BadMadRule)?;
    u8::try_from(n).map_err(|_| ControlError::BadMadRule)
}
