// SPDX-License-Identifier: GPL-2.0-only

//! The ports at both ends of a connection, and the order in which pairs of them are tried.

use super::path::{could_belong, LocalPort, Primary};
use crate::wire::Gid;

/// Ports of the local HCA that are considered.
pub(crate) const MAX_LOCAL: usize = 4;
/// Ports of the peer's node that are considered.
pub(crate) const MAX_REMOTE: usize = 8;

/// A port of the peer's node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Remote {
    /// Prefix of its subnet.
    pub(super) prefix: u64,
    /// GUID of the port.
    pub(super) guid: u64,
    /// Base LID.
    pub(super) lid: u16,
}

/// The ports that an alternate may go between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    /// The path in use.
    pub(super) primary: Primary,
    locals: [LocalPort; MAX_LOCAL],
    local_count: usize,
    remotes: [Remote; MAX_REMOTE],
    remote_count: usize,
}

impl Ports {
    /// None yet.
    pub(super) fn new(primary: Primary) -> Self {
        Self {
            primary,
            locals: [LocalPort::default(); MAX_LOCAL],
            local_count: 0,
            remotes: [Remote::default(); MAX_REMOTE],
            remote_count: 0,
        }
    }

    /// Adds a port of the local HCA; what finds no room does not count.
    pub(super) fn add_local(&mut self, local: LocalPort) {
        if let Some(slot) = self.locals.get_mut(self.local_count) {
            *slot = local;
            self.local_count = self.local_count.saturating_add(1);
        }
    }

    /// Adds a port of the peer's node; what finds no room does not count.
    pub(super) fn add_remote(&mut self, remote: Remote) {
        if let Some(slot) = self.remotes.get_mut(self.remote_count) {
            *slot = remote;
            self.remote_count = self.remote_count.saturating_add(1);
        }
    }

    /// The local port of the path in use.
    pub(super) fn current(&self) -> Option<LocalPort> {
        let mut locals = self.locals.iter().take(self.local_count);
        locals.find(|l| l.num == self.primary.port).copied()
    }

    /// The `n`-th local port.
    pub(super) fn local(&self, n: usize) -> Option<LocalPort> {
        self.locals.get(..self.local_count)?.get(n).copied()
    }

    /// Whether an earlier port in the same subnet has already asked for the peer's ports.
    pub(super) fn subnet_known(&self, n: usize) -> bool {
        let prefix = self.local(n).map(|l| l.gid.prefix());
        (0..n).any(|earlier| self.local(earlier).map(|l| l.gid.prefix()) == prefix)
    }

    /// The GID to leave by: a connection keeps the one it has on the port in use.
    pub(super) fn source(&self, local: &LocalPort) -> Gid {
        if local.num == self.primary.port {
            self.primary.sgid
        } else {
            local.gid
        }
    }

    /// Whether it is the remote port of the path in use: by GUID or, where that is an alias, by LID.
    pub(super) fn is_current(&self, remote: &Remote) -> bool {
        let guid = self.primary.dgid.guid();
        let mut known = self.remotes.iter().take(self.remote_count);
        if known.clone().any(|r| r.guid == guid) {
            return remote.guid == guid;
        }
        // With LMC the base LID may be lower than the LID in use.
        let owner = known
            .by_ref()
            .filter(|r| could_belong(r.lid, self.primary.dlid))
            .max_by_key(|r| r.lid);
        owner.is_some_and(|owner| owner.guid == remote.guid)
    }

    /// The `n`-th candidate in order of rank: `None` after the last, `Some(None)` where place `n` of
    /// the order is no candidate.
    #[allow(clippy::type_complexity)]
    pub(super) fn pair(&self, n: usize) -> Option<Option<(LocalPort, Remote)>> {
        let per_rank = self.local_count.checked_mul(self.remote_count)?;
        let rank = n.checked_div(per_rank)?;
        let within = n.checked_rem(per_rank)?;
        let local = self.local(within.checked_div(self.remote_count)?)?;
        let remote = *self.remotes.get(within.checked_rem(self.remote_count)?)?;
        let other_here = local.num != self.primary.port;
        let other_there = !self.is_current(&remote);
        let fits = match rank {
            0 => other_here && other_there,
            1 => other_here && !other_there,
            2 => !other_here && other_there,
            _ => return None,
        };
        if fits && local.gid.prefix() == remote.prefix {
            Some(Some((local, remote)))
        } else {
            Some(None)
        }
    }
}
