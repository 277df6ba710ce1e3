// SPDX-License-Identifier: GPL-2.0-only

//! Why a connection is not protected.

use core::fmt;

/// Why a connection has no armed alternate path. Extended only by adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// Subnet administration knows no usable path beside the one in use.
    NoAlternateInSa,
    /// This HCA shows one port, and no other port of the peer can be reached.
    SinglePortHca,
    /// The only other path found is the one in use.
    AlternateNotDisjoint,
    /// The other paths have a smaller MTU than the one in use.
    MtuMismatch,
    /// The other port lacks the connection's P_Key.
    PkeyMissing,
    /// The alternate's local GID is one of another HCA of this host, or of several.
    AlternateOnOtherHca,
    /// The HCA does not offer automatic path migration.
    HcaNoApm,
    /// The HCA's driver is not known to do path migration well; see the parameter `drivers`.
    DriverNotAllowed,
    /// The link layer is not InfiniBand.
    Roce,
    /// Path migration would do harm to this ULP, or it runs in user space.
    UlpExcluded,
    /// The peer refused: the reason of its REJ, REP `failover_accepted`, or the status of its APR.
    PeerRejected(u8),
    /// The peer's REQ named no alternate path.
    NotOffered,
    /// The local ports that an alternate could use are down.
    PortDown,
    /// The QP is in REARM: it becomes ARMED by the first packet from the peer.
    WaitingForTraffic,
    /// The connection has migrated and no new alternate was loaded.
    NotRearmed,
    /// The connection is older than the module.
    PredatesLoad,
    /// Switched off, by `enable` or by `devices`.
    PolicyOff,
    /// The connection manager's state does not permit it.
    CmState,
    /// Subnet administration did not answer in time.
    SaTimeout,
    /// The last try to load an alternate failed; the next one comes later.
    RearmBackoff,
    /// The peer did not answer a LAP.
    PeerTimeout,
    /// The peer has never answered a LAP, and is not believed to understand them.
    PeerWithoutLap,
}

impl Reason {
    /// Number of different reasons.
    pub(crate) const COUNT: usize = 22;

    /// All reasons, in the order of [`Reason::index`].
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::NoAlternateInSa,
        Self::SinglePortHca,
        Self::AlternateNotDisjoint,
        Self::MtuMismatch,
        Self::PkeyMissing,
        Self::AlternateOnOtherHca,
        Self::HcaNoApm,
        Self::DriverNotAllowed,
        Self::Roce,
        Self::UlpExcluded,
        Self::PeerRejected(0),
        Self::NotOffered,
        Self::PortDown,
        Self::WaitingForTraffic,
        Self::NotRearmed,
        Self::PredatesLoad,
        Self::PolicyOff,
        Self::CmState,
        Self::SaTimeout,
        Self::RearmBackoff,
        Self::PeerTimeout,
        Self::PeerWithoutLap,
    ];

    /// Place in [`Reason::ALL`].
    pub(crate) fn index(self) -> usize {
        Self::ALL
            .iter()
            .position(|r| r.word() == self.word())
            .unwrap_or(0)
    }

    /// Whether an established connection may get an alternate later, by a LAP of its active side.
    pub(crate) fn may_pass(self) -> bool {
        match self {
            Self::NoAlternateInSa
            | Self::SinglePortHca
            | Self::AlternateNotDisjoint
            | Self::MtuMismatch
            | Self::PkeyMissing
            | Self::AlternateOnOtherHca
            | Self::PeerRejected(_)
            | Self::NotOffered
            | Self::PortDown
            | Self::WaitingForTraffic
            | Self::NotRearmed
            | Self::SaTimeout
            | Self::RearmBackoff
            | Self::PeerTimeout
            | Self::PeerWithoutLap => true,
            Self::HcaNoApm
            | Self::DriverNotAllowed
            | Self::Roce
            | Self::UlpExcluded
            | Self::PredatesLoad
            | Self::PolicyOff
            | Self::CmState => false,
        }
    }

    /// The word, without the status that a peer gave.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::NoAlternateInSa => "no-alternate-in-sa",
            Self::SinglePortHca => "single-port-hca",
            Self::AlternateNotDisjoint => "alternate-not-disjoint",
            Self::MtuMismatch => "mtu-mismatch",
            Self::PkeyMissing => "pkey-missing",
            Self::AlternateOnOtherHca => "alternate-on-other-hca",
            Self::HcaNoApm => "hca-no-apm",
            Self::DriverNotAllowed => "driver-not-allowed",
            Self::Roce => "roce",
            Self::UlpExcluded => "ulp-excluded",
            Self::PeerRejected(_) => "peer-rejected",
            Self::NotOffered => "not-offered",
            Self::PortDown => "port-down",
            Self::WaitingForTraffic => "waiting-for-traffic",
            Self::NotRearmed => "not-rearmed",
            Self::PredatesLoad => "predates-load",
            Self::PolicyOff => "policy-off",
            Self::CmState => "cm-state",
            Self::SaTimeout => "sa-timeout",
            Self::RearmBackoff => "rearm-backoff",
            Self::PeerTimeout => "peer-timeout",
            Self::PeerWithoutLap => "peer-without-lap",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            Self::PeerRejected(status) => write!(f, "({status})"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_place_and_its_word() {
        for (n, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), n);
            assert!(reason
                .word()
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b == b'-'));
        }
        assert_eq!(
            Reason::PeerRejected(18).index(),
            Reason::PeerRejected(0).index()
        );
        assert_eq!(Reason::PeerRejected(18).to_string(), "peer-rejected(18)");
        assert_eq!(Reason::SaTimeout.to_string(), "sa-timeout");
        assert_eq!(Reason::PeerWithoutLap.to_string(), "peer-without-lap");
        assert!(Reason::SaTimeout.may_pass() && !Reason::UlpExcluded.may_pass());
    }
}
