// SPDX-License-Identifier: GPL-2.0-only

//! Packet sequence numbers: 24 bits, modulo 2^24 (IBA 9.7.1).

const MASK: u32 = 0x00ff_ffff;

/// A packet sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `v`.
    pub const fn new(v: u32) -> Self {
        Psn(v & MASK)
    }

    /// The number as it stands in a BTH.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `n` further on.
    pub const fn plus(self, n: u32) -> Self {
        Psn(self.0.wrapping_add(n) & MASK)
    }

    /// The number before this one.
    pub const fn prev(self) -> Self {
        Psn(self.0.wrapping_sub(1) & MASK)
    }

    /// How far this number is beyond `other`: negative where it comes before it. Each number has
    /// 2^23 successors and as many predecessors.
    pub const fn beyond(self, other: Psn) -> i32 {
        // Moving the sign bit of the 24-bit difference to that of an i32 and back.
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }
}

#[cfg(test)]
mod tests {
    use super::Psn;

    #[test]
    fn distance_wraps_at_24_bits() {
        assert_eq!(Psn::new(0).beyond(Psn::new(0xff_ffff)), 1);
        assert_eq!(Psn::new(0xff_ffff).beyond(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x7f_ffff).beyond(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).beyond(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0xff_fff0).plus(0x20), Psn::new(0x10));
        assert_eq!(Psn::new(0).prev(), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(0x1234_5678).get(), 0x34_5678);
    }
}
