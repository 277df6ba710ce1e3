// SPDX-License-Identifier: GPL-2.0-only

//! What the passive side makes of a LAP.
//!
//! A LAP comes from the network, and what it says could move a connection to a path that leads nowhere,
//! or to somebody else. [`judge`] believes it only when
//!
//! * its communication ids name a live connection that is served, of which this is the passive side;
//! * it comes from a port of the peer: one of the connection's paths, or a port that subnet administration
//!   (SA) says is the peer's;
//! * the path begins at a port of the peer's HCA, which SA says as well, and ends at an active port of the
//!   QP's own HCA that has that LID and the connection's P_Key;
//! * it isn't the path in use, and the peer uses that path as well: as long as it is not known to have
//!   followed a migration of ours, only a LAP that came by the path in use counts.
//!
//! Otherwise the APR has the status that says why, and nothing changes:
//!
//! | status | when |
//! |---|---|
//! | 1 comm id | no such connection |
//! | 2 unsupported | not served, or a LAP of a later version of this module |
//! | 3 rejected | this is the active side; not from the peer; port down or without P_Key; a notice that is not believed; a wish that concerns no alternate of ours |
//! | 5 same as primary | the path in use |
//! | 6 QPN | not our QP |
//! | 7 LID | not one of the port's |
//! | 8 GID | not one of our HCA's, or not one of the peer's |
//! | 11 hop limit | through a router: there are no LIDs to check |
//! | 12 rate | no such rate |
//! | 13 SL | not that of the path in use |
//!
//! Flow label (9) and traffic class (10) may be anything. A peer that names our path in use while our QP is
//! ARMED has migrated without our noticing: first the QP is forced, then it is judged anew.
//!
//! [`history`] remembers what was answered, for a LAP comes again until its APR arrives; [`bucket`] limits
//! what a peer can make us do.

pub(crate) mod bucket;
pub(crate) mod history;

use super::path::{could_belong, in_range, FullPath, LocalPort};
use super::state::PathMigState;
use crate::wire::cm::lap::{Kind, Lap, Status};
use crate::wire::Gid;

/// The highest packet rate with a name (`enum ib_rate`), and the one below 2.5 Gb/s without.
const MAX_RATE: u8 = 24;
const RESERVED_RATE: u8 = 1;

/// Where a LAP came from, as its work completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    /// Source LID.
    pub(crate) lid: u16,
    /// The LID of ours that it was sent to, path bits included.
    pub(crate) local_lid: u16,
    /// Source GID, where there was a GRH.
    pub(crate) gid: Option<Gid>,
}

impl Source {
    /// Whether it came by this path: then the peer uses it, for it sends what it has to say about a
    /// connection by the connection's path in use.
    pub(crate) fn is_on(&self, path: &FullPath) -> bool {
        (self.lid, self.local_lid) == (path.dlid, path.slid)
    }
}

/// What SA has said of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// It was not asked.
    NotAsked,
    /// It did not answer, or knows no such port.
    Nobody,
    /// NodeGUID of the node that it belongs to, and base LID.
    Of {
        /// NodeGUID, host byte order.
        node: u64,
        /// Base LID.
        lid: u16,
    },
}

/// The connection that a LAP names: its communication ids, reversed, are the connection's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    /// This end sent the REQ.
    pub(crate) active: bool,
    /// It is one that may have an alternate.
    pub(crate) served: bool,
    /// Established for the CM, the QP in RTS by a path that is known, and nothing of it about to end.
    pub(crate) established: bool,
    /// Our QP number.
    pub(crate) qpn: u32,
    /// The path in use.
    pub(crate) in_use: FullPath,
    /// The alternate in the QP.
    pub(crate) loaded: Option<FullPath>,
    /// What the QP says.
    pub(crate) mig: PathMigState,
    /// The peer is known to use the path in use, see [`super::rearm::Rearm::is_told`].
    pub(crate) told: bool,
    /// NodeGUID of the peer's HCA, as its REQ says; 0 where unknown.
    pub(crate) ca_guid: u64,
    /// NodeGUID of the node that the remote port of the path in use belongs to, as SA says; 0 where
    /// unknown. With virtual functions it differs from the former.
    pub(crate) node_guid: u64,
}

/// What the judgement rests on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// The connection, if there is one.
    pub(crate) connection: Option<Connection>,
    /// The port of the connection's HCA whose GID table has the alternate's GID ("remote port" of the LAP).
    pub(crate) local: Option<LocalPort>,
    /// Whose port it came from.
    pub(crate) source: Port,
    /// Whose port the alternate's far end is: by GID, or else by LID.
    pub(crate) far: Port,
    /// Who has the far end's LID, where that isn't the base LID of `far`.
    pub(crate) far_lid: Port,
}

/// A question to SA, by the port that the path in use leaves by, or the alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Question {
    /// Who has this LID, to be put into [`Facts::source`].
    Source(u16),
    /// Who has this GID or, where that isn't known (alias GUIDs), this LID, to be put into [`Facts::far`].
    Far(Gid, u16),
    /// Who has this LID, to be put into [`Facts::far_lid`].
    FarLid(u16),
}

/// What is to be done about a LAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verdict {
    /// Nothing, not even an APR.
    Drop,
    /// Answer with this status.
    Answer(Status),
    /// Ask SA, and judge again.
    Ask(Question),
    /// Force the QP to its alternate. Then judge again; if that failed, answer with this status.
    Force(Status),
    /// Load this path with REARM and answer 0 or, if that failed, 3.
    Load(FullPath),
    /// Look for another alternate, the one there is is dead; answer 0.
    Seek,
    /// Try again soon what is being waited for; answer 0.
    Kick,
}

/// Judges a LAP.
pub(crate) fn judge(lap: &Lap, source: &Source, facts: &Facts) -> Verdict {
    match check(lap, source, facts) {
        Ok(verdict) | Err(verdict) => verdict,
    }
}

fn check(lap: &Lap, source: &Source, facts: &Facts) -> Result<Verdict, Verdict> {
    let refuse = |status| Err(Verdict::Answer(status));
    match lap.kind {
        Kind::Ordinary | Kind::Notice | Kind::DeadStandby | Kind::PortBack => {}
        // Ours would not have come here.
        Kind::Own(_) => return Err(Verdict::Drop),
        Kind::Unknown => return refuse(Status::UNSUPPORTED),
    }
    let Some(conn) = &facts.connection else {
        return refuse(Status::INVALID_COMM_ID);
    };
    if !conn.served {
        return refuse(Status::UNSUPPORTED);
    }
    if !conn.established {
        // While it is set up, or ends: the peer will say it again, if it still matters.
        return Err(Verdict::Drop);
    }
    let path = FullPath::from_peer(&lap.alternate);
    check_source(conn, source, &path, facts)?;
    if lap.qpn != conn.qpn {
        return refuse(Status::QPN);
    }
    match lap.kind {
        // Either side sends one.
        Kind::Notice => return Ok(notice(conn, &path)),
        Kind::DeadStandby | Kind::PortBack => return Ok(wish(conn, lap.kind, &path)),
        _ => {}
    }
    if conn.active {
        // Both sides would load what the other one does not.
        return refuse(Status::REJECTED);
    }
    if !conn.told && !source.is_on(&conn.in_use) {
        // It has yet to follow us, and would have us load an alternate to a path that we have left.
        return Err(Verdict::Drop);
    }
    check_values(conn, lap)?;
    let port = check_local(&path, facts)?;
    let path = FullPath {
        port,
        // The timers are those of the REQ, on each path.
        packet_life_time: conn.in_use.packet_life_time,
        ..path
    };
    if path.same_way(&conn.in_use) {
        return Err(match conn.mig {
            PathMigState::Armed => Verdict::Force(Status::SAME_AS_PRIMARY),
            _ => Verdict::Answer(Status::SAME_AS_PRIMARY),
        });
    }
    check_far(conn, &path, facts)?;
    Ok(Verdict::Load(path))
}

/// Whether a node is the peer's.
fn is_peer(conn: &Connection, node: u64) -> bool {
    node != 0 && (node == conn.ca_guid || node == conn.node_guid)
}

fn check_source(
    conn: &Connection,
    source: &Source,
    path: &FullPath,
    facts: &Facts,
) -> Result<(), Verdict> {
    let gid_fits = |known: &FullPath| source.gid.is_none_or(|gid| gid == known.dgid);
    let known = [Some(conn.in_use), conn.loaded];
    if known
        .iter()
        .flatten()
        .any(|known| known.dlid == source.lid && gid_fits(known))
    {
        return Ok(());
    }
    match facts.source {
        Port::NotAsked => Err(Verdict::Ask(Question::Source(source.lid))),
        Port::Of { node, .. } if is_peer(conn, node) => {
            // A GRH that names somebody else than the sender of the packet.
            let mut gids = known.iter().flatten().chain([path]);
            if gids.any(gid_fits) {
                Ok(())
            } else {
                Err(Verdict::Answer(Status::REJECTED))
            }
        }
        Port::Of { .. } | Port::Nobody => Err(Verdict::Answer(Status::REJECTED)),
    }
}

/// A notice: "I have migrated to this path".
fn notice(conn: &Connection, path: &FullPath) -> Verdict {
    if conn.in_use.same_lids(path) {
        return Verdict::Answer(Status::SAME_AS_PRIMARY);
    }
    let armed = conn.mig == PathMigState::Armed;
    if armed && conn.loaded.is_some_and(|loaded| loaded.same_lids(path)) {
        return Verdict::Force(Status::REJECTED);
    }
    Verdict::Answer(Status::REJECTED)
}

/// A wish of the passive side, which does not look for alternates itself. Nothing in it is loaded: whoever
/// sends it makes us ask subnet administration, and no more.
fn wish(conn: &Connection, kind: Kind, path: &FullPath) -> Verdict {
    match kind {
        _ if !conn.active => Verdict::Answer(Status::REJECTED),
        Kind::PortBack => Verdict::Kick,
        // One that has been replaced since is nothing to worry about.
        _ if conn.loaded.is_some_and(|loaded| loaded.same_lids(path)) => Verdict::Seek,
        _ => Verdict::Answer(Status::REJECTED),
    }
}

/// What can be said of the values alone.
fn check_values(conn: &Connection, lap: &Lap) -> Result<(), Verdict> {
    let told = &lap.alternate;
    let status = if told.hop_limit > 1 || !told.subnet_local {
        Status::HOP_LIMIT
    } else if !told.has_lids() {
        Status::LID
    } else if told.rate > MAX_RATE || told.rate == RESERVED_RATE {
        Status::RATE
    } else if told.sl != conn.in_use.sl {
        Status::SL
    } else {
        return Ok(());
    };
    Err(Verdict::Answer(status))
}

/// Our end of the path; its port number.
fn check_local(path: &FullPath, facts: &Facts) -> Result<u32, Verdict> {
    let Some(local) = &facts.local else {
        return Err(Verdict::Answer(Status::GID));
    };
    if !local.active || !local.has_pkey {
        return Err(Verdict::Answer(Status::REJECTED));
    }
    if !in_range(local.lid, local.lmc, path.slid) {
        return Err(Verdict::Answer(Status::LID));
    }
    Ok(local.num)
}

/// The peer's end of the path.
fn check_far(conn: &Connection, path: &FullPath, facts: &Facts) -> Result<(), Verdict> {
    let used = &conn.in_use;
    if (path.dgid, path.dlid) == (used.dgid, used.dlid) {
        return Ok(());
    }
    match facts.far {
        Port::NotAsked => Err(Verdict::Ask(Question::Far(path.dgid, path.dlid))),
        Port::Nobody => Err(Verdict::Answer(Status::GID)),
        Port::Of { node, .. } if !is_peer(conn, node) => Err(Verdict::Answer(Status::GID)),
        Port::Of { lid, .. } => check_far_lid(lid, path.dlid, facts),
    }
}

/// The LID of the peer's end, at the port that begins with `base`. How many it has isn't known, and the
/// next one may be somebody else's.
fn check_far_lid(base: u16, dlid: u16, facts: &Facts) -> Result<(), Verdict> {
    if dlid == base {
        return Ok(());
    }
    match facts.far_lid {
        _ if !could_belong(base, dlid) => Err(Verdict::Answer(Status::LID)),
        Port::NotAsked => Err(Verdict::Ask(Question::FarLid(dlid))),
        Port::Of { lid, .. } if lid == base => Ok(()),
        Port::Of { .. } | Port::Nobody => Err(Verdict::Answer(Status::LID)),
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests;
