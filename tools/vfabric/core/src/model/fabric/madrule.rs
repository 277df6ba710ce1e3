// SPDX-License-Identifier: GPL-2.0-only

//! Faults of single management datagrams: MADs that HCAs send are lost or changed on their way.
//!
//! | command | what it does |
//! |---|---|
//! | `mad drop class=C attr=A [method=M] [count=N]` | loses the MADs of this management class and attribute |
//! | `mad rewrite class=C attr=A offset=O value=HEX [method=M] [count=N]` | puts the bytes HEX at offset O of the MAD, from its first byte on |
//! | `mad clear` | ends all that |
//!
//! Numbers are decimal or begin with 0x. With `count=` a rule ends after it has met so many MADs.
//! Rules are tried in the order in which they were given; a rewritten MAD meets the later ones, too.

use super::super::packet::{Opcode, Packet};
use super::control::ControlError;
use super::Fabric;
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
            Some("drop") => parse(words, false)?,
            Some("rewrite") => parse(words, true)?,
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

    /// Applies the rules to a packet; false: it is lost.
    fn apply(&mut self, packet: &mut Packet) -> bool {
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
                Fate::Drop => return false,
                Fate::Rewrite { offset, value, len } => {
                    let bytes = value.iter().take(len);
                    for (to, from) in packet.payload.iter_mut().skip(offset).zip(bytes) {
                        *to = *from;
                    }
                }
            }
        }
        true
    }
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
    /// Lets the MAD rules have their way with a packet that an HCA sends; false: it is lost.
    pub(super) fn mad_fate(&mut self, packet: &mut Packet) -> bool {
        if packet.bth.opcode != Opcode::UdSend || packet.bth.dest_qp > 1 {
            return true;
        }
        self.mad_rules.apply(packet)
    }

    /// How many times a rule of `mad drop` or `mad rewrite` was used.
    pub fn mad_rules_used(&self) -> u64 {
        self.mad_rules.used()
    }
}

fn parse(words: SplitAsciiWhitespace<'_>, rewrite: bool) -> Result<Rule, ControlError> {
    let (mut class, mut attr, mut method, mut left) = (None, None, None, None);
    let (mut offset, mut value) = (None, None);
    for word in words {
        let (key, text) = word.split_once('=').ok_or(ControlError::BadMadRule)?;
        match key {
            "class" => class = Some(number(text)?),
            "attr" => attr = Some(number(text)?),
            "method" => method = Some(number(text)?),
            "count" => left = Some(number::<u32>(text)?),
            "offset" if rewrite => offset = Some(usize::from(number::<u16>(text)?)),
            "value" if rewrite => value = Some(hex(text)?),
            _ => return Err(ControlError::BadMadRule),
        }
    }
    let fate = match (rewrite, offset, value) {
        (false, ..) => Fate::Drop,
        (true, Some(offset), Some((value, len))) if offset.saturating_add(len) <= MAD => {
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

/// A decimal or 0x number that fits.
fn number<T: TryFrom<u32>>(text: &str) -> Result<T, ControlError> {
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
