// SPDX-License-Identifier: GPL-2.0-only

//! How long an HCA tries before it gives a path up, and what of that a REQ can set.
//!
//! A QP sends a packet, waits for an ACK, and sends again, `retry_count` times; then it migrates or fails.
//! The wait is 4.096 us x 2^timeout; the architecture lets an HCA stretch it up to four times, and many do.
//! ib_cm makes the timeout of each end from the packet lifetime in the REQ and from the ACK delay of the
//! *other* HCA: [`qp_timeout`]. So lifetime and retry count in the REQ set both ends, also where the peer
//! does not have this module. With what subnet managers give by default (lifetime 18, timeout 19,
//! retry 7) a lost path is noticed after 17 to 69 seconds: later than a ULP waits.
//!
//! [`choose`] takes, for a connection with an alternate path, the longest lifetime that leads to a timeout
//! of no more than [`TARGET`] (268 ms), or as near as the ACK delay permits, and then a retry count between
//! two bounds:
//!
//! * The last packet leaves at least [`HOLE_MS`] after the first: right after a migration, with no
//!   alternate behind it, a connection outlives a hole of one second. This bound is kept always.
//! * Stretched four times, all tries end before the ULP's keep-alive. Where both cannot be had, the range
//!   ends behind the keep-alive, and an HCA that does stretch them loses that race as it would have without
//!   this module.
//!
//! With a keep-alive of seven seconds, which is when NVMe-oF, by default, gives a controller up or later:
//!
//! | ACK delay | lifetime | timeout | retries | least | most (x 4) |
//! |---|---|---|---|---|---|
//! | up to 14 | 15 | 16 | 5 | 1.6 s | 6.4 s |
//! | 15 | 14 | 16 | 5 | 1.6 s | 6.4 s |
//! | 16 | 13 | 16 | 5 | 1.6 s | 6.4 s |
//! | 17 | 14 | 17 | 3 | 2.1 s | 8.6 s |
//!
//! What is set is never longer than what the ULP would have had, and a ULP that has chosen for itself (a
//! timeout of its own, or fewer than [`FEW_RETRIES`] retries) is left alone.

/// The QP timeout aimed at: 4.096 us x 2^16 = 268 ms.
pub(crate) const TARGET: u8 = 16;
/// A connection outlives a hole of so many milliseconds with no alternate: a second, and a bit.
pub(crate) const HOLE_MS: u64 = 1_200;
/// ULPs want as many retries as there are, or nearly so, unless they know better.
pub(crate) const FEW_RETRIES: u8 = 6;
/// How often an HCA may stretch a timeout.
const STRETCH: u64 = 4;
const MAX_RETRIES: u8 = 7;
/// No peer's HCA takes longer for an ACK than this: 4.3 s.
const MAX_ACK_DELAY: u8 = 20;

/// The timeout of a QP, for a path with this packet lifetime, to a peer whose HCA has this ACK delay: what
/// ib_cm computes. All three are exponents: 4.096 us x 2^n.
pub(crate) fn qp_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    // There and back.
    let both_ways = packet_life_time.saturating_add(1);
    let (longer, shorter) = if both_ways >= ack_delay {
        (both_ways, ack_delay)
    } else {
        (ack_delay, both_ways)
    };
    // The sum of two powers of two, as one: the next one up, unless one is much smaller.
    let near = shorter.saturating_add(1) >= longer;
    longer.saturating_add(u8::from(near)).min(31)
}

/// 4.096 us x 2^n in microseconds, rounded up.
fn micros(exponent: u8) -> u64 {
    let nanos = 4_096u64 << u32::from(exponent.min(31));
    nanos.div_ceil(1_000)
}

/// What passes, in milliseconds, until a QP with this timeout and retry count gives up: at least, and at
/// most. A timeout of 0 means for ever: `None`.
pub(crate) fn exhaustion_ms(timeout: u8, retries: u8) -> Option<(u64, u64)> {
    if timeout == 0 {
        return None;
    }
    let tries = u64::from(retries.min(MAX_RETRIES)).saturating_add(1);
    let least = micros(timeout).saturating_mul(tries);
    let most = least.saturating_mul(STRETCH);
    Some((least.div_ceil(1_000), most.div_ceil(1_000)))
}

/// The timeout of an alternate path that a peer has named in a LAP: what it says, its ACK delay counted in,
/// within the bounds of reason. `packet_life_time` is that of the path in use.
pub(crate) fn alternate_timeout(told: u8, packet_life_time: u8) -> u8 {
    // 0 would be for ever. Real ACK delays are 15 or 16.
    let least = qp_timeout(0, packet_life_time);
    told.clamp(least, qp_timeout(MAX_ACK_DELAY, packet_life_time))
}

/// ib_cm's milliseconds for 4.096 us x 2^n, by which it repeats its messages.
pub(crate) fn cm_ms(exponent: u8) -> u64 {
    1u64 << u32::from(exponent.min(31)).saturating_sub(8)
}

/// What a REQ says about time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timers {
    /// Of the primary and the alternate path: 4.096 us x 2^n.
    pub(crate) packet_life_time: u8,
    /// How often a packet is repeated: 0 to 7.
    pub(crate) retry_count: u8,
}

/// What the choice rests on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// What the REQ would say. The longer lifetime of the two paths.
    pub(crate) given: Timers,
    /// The ULP has set a timeout of its own (`rdma_set_ack_timeout`).
    pub(crate) ulp_timeout: bool,
    /// `local_ca_ack_delay` of the HCA; the peer's, which comes with the REP, is taken to be no longer.
    pub(crate) ack_delay: u8,
    /// How long the ULP waits for a sign of life, in milliseconds.
    pub(crate) keep_alive_ms: u64,
}

/// What the REQ of a connection with an alternate path is to say; `None` to leave it as it is.
pub(crate) fn choose(facts: &Facts) -> Option<Timers> {
    let given = facts.given;
    if facts.ulp_timeout || given.retry_count < FEW_RETRIES {
        return None;
    }
    let shortest = qp_timeout(facts.ack_delay, 0);
    let wanted = shortest.max(TARGET);
    let packet_life_time = (0..=given.packet_life_time)
        .rev()
        .find(|life| qp_timeout(facts.ack_delay, *life) <= wanted)?;
    let timeout = qp_timeout(facts.ack_delay, packet_life_time);
    if packet_life_time == given.packet_life_time && timeout < TARGET {
        // Shorter than we would make it, by subnet management. All retries there are.
        return None;
    }
    let wait = micros(timeout);
    let least = HOLE_MS.saturating_mul(1_000).div_ceil(wait);
    let tries = facts
        .keep_alive_ms
        .saturating_mul(1_000)
        .checked_div(wait.saturating_mul(STRETCH))?;
    let retries = tries.saturating_sub(1).max(least);
    let retry_count = u8::try_from(retries).unwrap_or(MAX_RETRIES);
    let chosen = Timers {
        packet_life_time,
        retry_count: retry_count.min(given.retry_count),
    };
    (chosen != given).then_some(chosen)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The default: what NVMe-oF's makes of its own.
    const KEEP_ALIVE_MS: u64 = 7_000;

    fn facts(ack_delay: u8) -> Facts {
        Facts {
            given: Timers {
                packet_life_time: 18,
                retry_count: 7,
            },
            ulp_timeout: false,
            ack_delay,
            keep_alive_ms: KEEP_ALIVE_MS,
        }
    }

    #[test]
    fn the_table_above() {
        let rows = [
            (0, 15, 16, 5, (1_611, 6_443)),
            (8, 15, 16, 5, (1_611, 6_443)),
            (14, 15, 16, 5, (1_611, 6_443)),
            (15, 14, 16, 5, (1_611, 6_443)),
            (16, 13, 16, 5, (1_611, 6_443)),
            (17, 14, 17, 3, (2_148, 8_590)),
        ];
        for (ack_delay, life, timeout, retries, range) in rows {
            let chosen = choose(&facts(ack_delay)).unwrap();
            assert_eq!(chosen.packet_life_time, life, "delay {ack_delay}");
            assert_eq!(qp_timeout(ack_delay, life), timeout);
            assert_eq!(chosen.retry_count, retries, "delay {ack_delay}");
            assert_eq!(exhaustion_ms(timeout, retries), Some(range));
        }
    }

    #[test]
    fn the_defaults_of_subnet_management() {
        assert_eq!(qp_timeout(0, 18), 19);
        assert_eq!(exhaustion_ms(19, 7), Some((17_180, 68_720)));
        assert_eq!(qp_timeout(15, 15), 17);
        assert_eq!(qp_timeout(16, 15), 17);
        assert_eq!(qp_timeout(31, 31), 31);
        assert_eq!(exhaustion_ms(0, 7), None);
        assert_eq!((cm_ms(20), cm_ms(8), cm_ms(0)), (4_096, 1, 1));
    }

    #[test]
    fn what_a_peer_says_of_its_timeout() {
        assert_eq!(alternate_timeout(16, 15), 16);
        assert_eq!(alternate_timeout(17, 15), 17);
        assert_eq!(alternate_timeout(0, 15), 16);
        assert_eq!(alternate_timeout(31, 15), 20);
        assert_eq!(alternate_timeout(31, 31), 31);
        for (told, life) in (0..=255).flat_map(|t| (0..=255).map(move |l| (t, l))) {
            assert!((1..=31).contains(&alternate_timeout(told, life)));
        }
    }

    #[test]
    fn left_alone() {
        let own = Facts {
            ulp_timeout: true,
            ..facts(8)
        };
        assert_eq!(choose(&own), None);
        for retry_count in 0..FEW_RETRIES {
            let mut few = facts(8);
            few.given.retry_count = retry_count;
            assert_eq!(choose(&few), None, "{retry_count}");
        }
        let mut quick = facts(8);
        quick.given.packet_life_time = 12;
        assert_eq!(choose(&quick), None);
    }

    #[test]
    fn a_longer_keep_alive_permits_more_retries() {
        let patient = Facts {
            keep_alive_ms: 10_000,
            ..facts(8)
        };
        assert_eq!(choose(&patient).unwrap().retry_count, 7);
        let hasty = Facts {
            keep_alive_ms: 1_000,
            ..facts(8)
        };
        assert_eq!(choose(&hasty).unwrap().retry_count, 5);
    }

    proptest! {
        /// Nobody waits longer than before. A hole of a second is outlived, unless it would not have been
        /// before, and the keep-alive is met wherever it can be.
        #[test]
        fn whatever_is_given(
            life in 0u8..32,
            retries in 0u8..8,
            ack_delay in 0u8..32,
            keep_alive_ms in 0u64..100_000,
        ) {
            let given = Timers { packet_life_time: life, retry_count: retries };
            let facts = Facts { given, ulp_timeout: false, ack_delay, keep_alive_ms };
            let Some(chosen) = choose(&facts) else { return Ok(()) };
            prop_assert!(chosen.packet_life_time <= life && chosen.retry_count <= retries);
            let before = qp_timeout(ack_delay, life);
            let timeout = qp_timeout(ack_delay, chosen.packet_life_time);
            prop_assert!(timeout <= before);
            prop_assert!(timeout <= TARGET.max(qp_timeout(ack_delay, 0)));
            let outlives = |t, n: u8| micros(t) * u64::from(n) >= HOLE_MS * 1_000;
            if outlives(before, retries) {
                prop_assert!(outlives(timeout, chosen.retry_count));
            }
            let (_, most) = exhaustion_ms(timeout, chosen.retry_count).unwrap();
            let fewer = chosen.retry_count.saturating_sub(1);
            prop_assert!(most <= keep_alive_ms + 1 || !outlives(timeout, fewer));
        }

        /// As ib_cm has it, spelled out otherwise: twice the lifetime plus the delay, rounded to a power
        /// of two; what is less than half is dropped.
        #[test]
        fn timeout_of_a_qp(ack_delay in 0u8..28, life in 0u8..28) {
            let sum = (1u64 << (life + 1)) + (1u64 << ack_delay);
            let down = 63 - sum.leading_zeros() as u8;
            let half_more = sum >= (1 << down) + (1 << (down - 1));
            prop_assert_eq!(qp_timeout(ack_delay, life), down + u8::from(half_more));
        }
    }
}
