// SPDX-License-Identifier: GPL-2.0-only

//! The counters, one name each.

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// What is counted since the module was loaded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Stat {
            $($(#[$doc])* $variant,)*
        }

        impl Stat {
            /// All counters, in the order in which they are shown.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// Number of counters.
            pub(crate) const COUNT: usize = Self::ALL.len();

            /// The name under which the counter is shown.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// REQs of RC connections sent.
    ReqSeen => "req_seen",
    /// REPs of RC connections sent.
    RepSeen => "rep_seen",
    /// REQs sent with an alternate path that we filled in.
    AlternateOffered => "alternate_offered",
    /// REQs sent with other LIDs of the primary path, so that it has less in common with the alternate.
    PrimaryReplaced => "primary_replaced",
    /// Alternates in a REQ from a peer that our QP was given.
    AlternateAccepted => "alternate_accepted",
    /// Alternates in a REQ from a peer that were kept from our QP.
    AlternateStripped => "alternate_stripped",
    /// REJs because of our alternate.
    AlternateRefused => "alternate_refused",
    /// REQs sent again without it.
    ReqResent => "req_resent",
    /// REPs that decline the alternate.
    FailoverDeclined => "failover_declined",
    /// Migrations of QPs seen.
    Migrations => "migrations",
    /// Migrations that we commanded because a local port was down.
    Forced => "forced",
    /// Commanded migrations that the HCA refused.
    ForceFailed => "force_failed",
    /// Migrations that the CM was brought along with.
    CmFollowed => "cm_followed",
    /// Migrations after which the CM could not be brought along.
    CmFollowFailed => "cm_follow_failed",
    /// Connections that have returned to the path that they began with.
    FailedBack => "failed_back",
    /// REQs whose path lifetime and retry count we have set.
    TimersSet => "timers_set",
    /// LAPs sent, repetitions included.
    LapsSent => "laps_sent",
    /// LAPs sent to tell a peer of a migration, where no nudge was possible.
    NoticesSent => "notices_sent",
    /// Messages that tell the active side of a port that it does not see.
    WishesSent => "wishes_sent",
    /// Such messages of a peer that were acted on.
    WishesHeard => "wishes_heard",
    /// Alternates that the peer had loaded and our HCA would not.
    LoadFailed => "load_failed",
    /// LAPs received for connections that are served.
    LapsReceived => "laps_received",
    /// LAPs answered with status 0: loaded or, of our own kinds, heeded.
    LapsAccepted => "laps_accepted",
    /// LAPs answered with another status than 0.
    LapsRefused => "laps_refused",
    /// LAPs not judged, for there were too many at once.
    LapsLimited => "laps_limited",
    /// LAPs that claim to be our own to ourselves and are not.
    LapForged => "lap_forged",
    /// IB_EVENT_PATH_MIG_ERR seen.
    PathMigErr => "path_mig_err",
    /// REQs that waited for subnet administration.
    ReqHeld => "req_held",
    /// REQs that waited in vain.
    ReqHoldTimeout => "req_hold_timeout",
    /// Searches for an alternate begun.
    Searches => "searches",
    /// REQs answered from a search made before.
    CacheHits => "cache_hits",
    /// Queries sent to subnet administration.
    SaQueries => "sa_queries",
    /// Queries that got no answer.
    SaTimeouts => "sa_timeouts",
    /// Port events seen.
    PortEvents => "port_events",
    /// QP events that did not fit into the queue; all QPs were looked at instead.
    EventOverflow => "event_overflow",
    /// Connections found at load that are older than the module.
    PredatesLoad => "predates_load",
    /// QPs with room for nudges.
    SlotsReserved => "slots_reserved",
    /// QPs of connections that could be served, without it: made on a CQ without, or too large already.
    SlotsRefused => "slots_refused",
    /// Nudges posted.
    Nudges => "nudges",
    /// Nudges that the peer has acknowledged.
    NudgesAcked => "nudges_acked",
    /// Nudges that could not be posted, or ended with an error (as all do when a QP is torn down).
    NudgesFailed => "nudges_failed",
    /// QPs destroyed before a nudge of theirs was completed.
    NudgesOrphaned => "nudges_orphaned",
    /// Devices without an InfiniBand port.
    DevicesNotIb => "devices_not_ib",
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_discriminants_are_places() {
        for (n, stat) in Stat::ALL.iter().enumerate() {
            assert_eq!(*stat as usize, n);
            assert_eq!(
                Stat::ALL.iter().filter(|s| s.name() == stat.name()).count(),
                1
            );
        }
        assert_eq!(Stat::COUNT, Stat::ALL.len());
    }
}
