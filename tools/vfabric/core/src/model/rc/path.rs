// SPDX-License-Identifier: GPL-2.0-only

//! The paths of a queue pair: which packets belong to them, and migration (IBA 17.2.8).
//!
//! ```text
//!            modify(REARM), alternate loaded          received MigReq = 0
//!  MIGRATED ---------------------------------> REARM ---------------------> ARMED
//!      ^                                                                      |
//!      +-- retries exhausted, MigReq = 1 on the alternate path, modify -------+
//! ```

use super::super::host::{Host, MigrationCause, QpEvent};
use super::super::packet::Packet;
use super::{MigState, Path, Rc};

/// Where a queue pair sends to and may receive from.
#[derive(Debug)]
pub(super) struct Paths {
    /// The path in use.
    pub(super) active: Option<Path>,
    /// The alternate path, until it is migrated to.
    pub(super) alt: Option<Path>,
    /// The path that was in use before the last migration; only a query that does not swap paths
    /// tells of it.
    pub(super) left: Option<Path>,
    /// The path in use lies in the place of the alternate.
    pub(super) crossed: bool,
    /// Migration state.
    pub(super) mig: MigState,
    /// PATH_MIG_ERR was raised for a request to migrate that this alternate cannot answer; once is
    /// enough.
    pub(super) complained: bool,
}

impl Paths {
    pub(super) const NONE: Paths = Paths {
        active: None,
        alt: None,
        left: None,
        crossed: false,
        mig: MigState::Migrated,
        complained: false,
    };

    /// Primary and alternate as `query` gives them.
    pub(super) fn reported(&self, swaps: bool) -> (Option<Path>, Option<Path>) {
        if self.crossed && !swaps {
            (self.alt.or(self.left), self.active)
        } else {
            (self.active, self.alt)
        }
    }
}

/// The LID that packets on `path` carry as their source.
pub(super) fn own_lid(base: u16, lmc: u8, path: &Path) -> u16 {
    let mask = 0x7fu16 & !0x7fu16.wrapping_shl(u32::from(lmc.min(7)));
    (base & !mask) | (u16::from(path.path_bits) & mask)
}

/// P_Key match (IBA 10.9.3): the same partition, and one of the two a full member at least.
pub(super) fn pkey_match(a: u16, b: u16) -> bool {
    const FULL: u16 = 0x8000;
    a & !FULL != 0 && a & !FULL == b & !FULL && (a | b) & FULL != 0
}

/// Whether a packet that came in by `port` came by `path` (IBA 9.6.1.5): port, both LIDs, and GIDs
/// where the path is global.
fn belongs(path: &Path, port: u8, packet: &Packet, host: &impl Host) -> bool {
    let (base, lmc) = host.port_lid(port);
    port == path.port
        && packet.lrh.slid == path.dlid
        && packet.lrh.dlid == own_lid(base, lmc, path)
        && match (&packet.grh, &path.grh) {
            (None, None) => true,
            (Some(g), Some(p)) => g.sgid == p.dgid && g.dgid == p.sgid,
            _ => false,
        }
}

impl Rc {
    /// Whether a packet comes from the right place. Moves the migration state as its MigReq asks.
    ///
    /// An ARMED queue pair takes MigReq = 1 from its alternate path only: what the peer sends after
    /// it has migrated cannot come by the path that it left. Anything on a path not in use is
    /// dropped, so what the peer sent before it followed a migration is lost and is sent again.
    pub(super) fn accept(&mut self, port: u8, packet: &Packet, host: &mut impl Host) -> bool {
        let asked = packet.bth.mig_req;
        let migrates = asked && self.paths.mig == MigState::Armed;
        let path = if migrates {
            self.paths.alt
        } else {
            self.paths.active
        };
        let good = path.is_some_and(|p| {
            if !belongs(&p, port, packet, host) {
                return false;
            }
            let good = pkey_match(packet.bth.pkey, host.pkey(port, p.pkey_index));
            if !good {
                host.bad_pkey(port);
            }
            good && !(migrates && self.quirks.alternate_unusable)
        });
        if !good {
            self.counters.refused = self.counters.refused.saturating_add(1);
            if migrates && !self.paths.complained {
                self.paths.complained = true;
                host.event(QpEvent::PathMigErr);
            }
            return false;
        }
        if migrates {
            self.migrate(MigrationCause::Peer, host);
        } else if !asked && self.paths.mig == MigState::Rearm {
            self.paths.mig = MigState::Armed;
        }
        true
    }

    /// Whether a queue pair can send by this alternate path.
    pub(super) fn is_usable(&self, alt: Option<Path>, host: &impl Host) -> bool {
        !self.quirks.alternate_unusable && alt.is_some_and(|p| host.port_active(p.port))
    }

    /// Makes the alternate path the path in use. The only way from ARMED to MIGRATED.
    pub(super) fn migrate(&mut self, cause: MigrationCause, host: &mut impl Host) {
        let Some(path) = self.paths.alt.take() else {
            return;
        };
        self.paths.left = self.paths.active.replace(path);
        self.paths.crossed = !self.paths.crossed;
        self.paths.mig = MigState::Migrated;
        self.paths.complained = false;
        self.counters.migrations = self.counters.migrations.saturating_add(1);
        self.req.path_changed(
            cause == MigrationCause::Exhaustion || self.quirks.retransmit_on_migration,
        );
        host.migrated(cause, path.port, path.dlid);
        let events = match cause {
            MigrationCause::Command => self.quirks.path_mig_events.min(2),
            MigrationCause::Exhaustion | MigrationCause::Peer => 1,
        };
        for _ in 0..events {
            host.event(QpEvent::PathMig);
        }
    }
}
