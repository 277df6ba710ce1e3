// SPDX-License-Identifier: GPL-2.0-only

//! What is wrong with a cable that still carries packets: it loses some, or it takes its time.
//!
//! Which packets are lost is decided by a sequence of pseudo random numbers of its own for each
//! port and direction. It begins anew with `loss` and with `seed`: the n-th packet to pass there
//! after that has the same fate each time.

use super::control::ControlError;
use super::PortRef;
use core::fmt;

/// Parts of a million that are everything.
const ALL: u32 = 1_000_000;
/// Longest delay of a link or of a MAD, in microseconds.
pub(super) const MAX_DELAY_US: u32 = 10_000_000;
/// Seed before anybody has said another.
pub(super) const FIRST_SEED: u64 = 1;

/// Directions in which a fault is in force, as seen from the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// For what arrives.
    pub inward: bool,
    /// For what leaves.
    pub outward: bool,
}

impl Ways {
    /// `in`, `out` or `both`; nothing means both.
    pub(super) fn parse(word: Option<&str>) -> Result<Ways, ControlError> {
        let (inward, outward) = match word {
            None | Some("both") => (true, true),
            Some("in") => (true, false),
            Some("out") => (false, true),
            Some(_) => return Err(ControlError::BadDirection),
        };
        Ok(Ways { inward, outward })
    }

    /// As in the command; `none` where neither is.
    pub fn as_str(self) -> &'static str {
        match (self.inward, self.outward) {
            (false, false) => "none",
            (true, false) => "in",
            (false, true) => "out",
            (true, true) => "both",
        }
    }
}

/// How many packets are lost, in parts of a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    /// A percentage from 0 to 100 with up to four decimals.
    pub(super) fn parse(text: &str) -> Option<Share> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 4 {
            return None;
        }
        let missing = 4u32.checked_sub(u32::try_from(fraction.len()).ok()?)?;
        let fraction = fraction
            .parse::<u32>()
            .ok()?
            .checked_mul(10u32.checked_pow(missing)?)?;
        let whole = whole.parse::<u32>().ok()?.checked_mul(ALL / 100)?;
        let parts = whole.checked_add(fraction)?;
        (parts <= ALL).then_some(Share(parts))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = ALL / 100;
        let (whole, mut fraction) = (self.0 / unit, self.0 % unit);
        if fraction == 0 {
            return write!(f, "{whole}");
        }
        let mut width = 4;
        while fraction % 10 == 0 {
            fraction /= 10;
            width -= 1;
        }
        write!(f, "{whole}.{fraction:0width$}")
    }
}

/// What one port does to packets in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Impairment {
    /// How many are lost.
    pub loss: Share,
    /// How long each is on its way, in microseconds.
    pub delay_us: u32,
    /// State of the sequence of random numbers.
    random: u64,
}

impl Impairment {
    pub(super) fn delay_ns(&self) -> u64 {
        u64::from(self.delay_us) * 1000
    }

    /// Begins the sequence that belongs to this seed, port and direction.
    pub(super) fn seed(&mut self, seed: u64, at: PortRef, outward: bool) {
        let port = u64::from(at.port) << 1;
        let place = (u64::from(at.node.0) << 9) | port | u64::from(outward);
        // One round in between keeps the sequences of neighbours apart.
        self.random = place;
        self.random = seed ^ self.next();
    }

    /// Whether the next packet is lost.
    pub(super) fn loses(&mut self) -> bool {
        if self.loss.0 == 0 {
            return false;
        }
        let upper = self.next() >> 32;
        (upper * u64::from(ALL)) >> 32 < u64::from(self.loss.0)
    }

    /// A step of the SplitMix64 generator.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
