// SPDX-License-Identifier: GPL-2.0-only

//! LAPs of the peer, from their arrival to the APR: gathers what `rust/apm/lap` judges by, and carries out
//! what it says.
//!
//! A LAP that came from where the peer is known to be is noted by its transaction id and answered once;
//! one from elsewhere may be a forgery, and takes no room from the peer's.
//!
//! Locks: the mutex of the connection; see `conn.rs`. What subnet administration is asked is not waited
//! for: the connection is woken.

use super::attend::happen;
use super::cm;
use super::conn::{Inner, Side};
use super::params;
use super::path::Path;
use super::rearm::{standbys, Scene};
use super::resolve::NodeOf;
use super::service::Service;
use super::stats;
use crate::apm::lap::bucket::Bucket;
use crate::apm::lap::history::{History, Seen};
use crate::apm::lap::{judge, Connection, Facts, Port, Question, Source, Verdict};
use crate::apm::path::{FullPath, LocalPort};
use crate::apm::rearm;
use crate::apm::state::{Event, PathMigState, State};
use crate::apm::stats::Stat;
use crate::apm::timers::alternate_timeout;
use crate::wire::cm::lap::{Apr, Kind, Lap, Status};

/// LAPs of one connection that are judged at once, and how often one more is, in milliseconds.
const BURST: u32 = 16;
const PERIOD_MS: u32 = 50;

/// Wishes of so many milliseconds are taken to have one reason.
const SAME_REASON_MS: i64 = 500;

/// A LAP, and where it came from.
#[derive(Clone, Copy)]
pub(crate) struct Arrived {
    /// What it says.
    pub(crate) lap: Lap,
    /// Who has sent it.
    pub(crate) source: Source,
    /// Local port that it came to.
    pub(crate) port: u32,
    /// Its destination's offset from the base LID of that port.
    pub(crate) path_bits: u8,
    /// It came from where the peer is known to be.
    pub(crate) from_peer: bool,
}

/// A LAP being judged.
#[derive(Clone, Copy)]
struct Case {
    arrived: Arrived,
    /// Answers of subnet administration.
    source: Port,
    far: Port,
    far_lid: Port,
    /// The QP was forced on its account.
    forced: bool,
    /// Subnet administration was asked who the peer is.
    peer_asked: bool,
}

/// What a connection remembers of LAPs.
pub(crate) struct Laps {
    history: History,
    bucket: Bucket,
    case: Option<Case>,
}

impl Laps {
    /// Of none yet.
    pub(crate) const fn new() -> Self {
        Self {
            history: History::NONE,
            bucket: Bucket::new(BURST, PERIOD_MS),
            case: None,
        }
    }
}

/// Whether the peer is known to have this LID.
pub(super) fn is_known(inner: &Inner, lid: u16) -> bool {
    inner.path.dlid == lid
        || inner
            .alternate
            .is_some_and(|alternate| alternate.dlid == lid)
}

impl Service {
    /// A LAP has arrived.
    pub(super) fn lap(&self, scene: &Scene<'_>, inner: &mut Inner, arrived: &Arrived) {
        if !inner.laps.bucket.take(self.pacer.now()) {
            return stats::count(Stat::LapsLimited);
        }
        if arrived.source.is_on(&inner.path.way) {
            self.rearm(scene, inner, rearm::Event::PeerSeen);
        }
        if arrived.from_peer {
            match inner.laps.history.begin(&arrived.lap) {
                Seen::New => {}
                Seen::Answered(status) => return answer(scene, inner, arrived, status),
                Seen::Stale => return,
            }
        } else if inner.laps.case.is_some_and(|case| case.arrived.from_peer) {
            // The peer's comes first; whoever this is may try again.
            return stats::count(Stat::LapsLimited);
        }
        inner.laps.case = Some(Case {
            arrived: *arrived,
            source: Port::NotAsked,
            far: Port::NotAsked,
            far_lid: Port::NotAsked,
            forced: false,
            peer_asked: false,
        });
        self.judge(scene, inner);
    }

    /// Goes on with the LAP being judged, where there is one.
    pub(super) fn judge(&self, scene: &Scene<'_>, inner: &mut Inner) {
        let Some(mut case) = inner.laps.case.take() else {
            return;
        };
        let Arrived { lap, source, .. } = case.arrived;
        if inner.peer_sa_node == 0 && !case.peer_asked {
            // A virtual function names itself by another GUID than subnet administration does.
            let used = inner.path;
            let node = NodeOf {
                guid: used.dgid.guid(),
                lid: used.dlid,
                port: used.port,
            };
            match self.nodes.get_later(&self.queue, scene.conn, &node) {
                Ok(None) => {
                    // To be woken.
                    inner.laps.case = Some(case);
                    return;
                }
                Ok(Some(Ok(Some(rec)))) => inner.peer_sa_node = rec.node_guid,
                Ok(Some(_)) | Err(_) => {}
            }
            case.peer_asked = true;
        }
        let own = FullPath::from_peer(&lap.alternate);
        let local = local_port(scene, inner, &own);
        let verdict = loop {
            let facts = Facts {
                connection: connection(scene, inner, &lap),
                local,
                source: case.source,
                far: case.far,
                far_lid: case.far_lid,
            };
            match judge(&lap, &source, &facts) {
                Verdict::Ask(question) => {
                    let port = local.map_or(case.arrived.port, |local| local.num);
                    let (to, node) = match question {
                        Question::Source(lid) => (
                            &mut case.source,
                            NodeOf {
                                guid: 0,
                                lid,
                                port: case.arrived.port,
                            },
                        ),
                        Question::Far(gid, lid) => (
                            &mut case.far,
                            NodeOf {
                                guid: gid.guid(),
                                lid,
                                port,
                            },
                        ),
                        Question::FarLid(lid) => (&mut case.far_lid, NodeOf { guid: 0, lid, port }),
                    };
                    *to = match self.nodes.get_later(&self.queue, scene.conn, &node) {
                        Ok(None) => {
                            // To be woken.
                            inner.laps.case = Some(case);
                            return;
                        }
                        Ok(Some(Ok(Some(rec)))) => Port::Of {
                            node: rec.node_guid,
                            lid: rec.lid,
                        },
                        Ok(Some(_)) | Err(_) => Port::Nobody,
                    };
                }
                Verdict::Force(status) if case.forced => break Verdict::Answer(status),
                Verdict::Force(_) => {
                    case.forced = true;
                    happen(inner, scene.qp, Event::Force);
                    if inner.moved {
                        // The peer is there already.
                        inner.untold = false;
                        self.after_look(scene, inner, None);
                        if lap.kind == Kind::Notice {
                            break Verdict::Answer(Status::LOADED);
                        }
                    }
                }
                verdict => break verdict,
            }
        };
        self.carry_out(scene, inner, &case.arrived, verdict);
    }

    fn carry_out(&self, scene: &Scene<'_>, inner: &mut Inner, arrived: &Arrived, verdict: Verdict) {
        // The peer may have sent another one while subnet administration was asked.
        let stale = arrived.from_peer && !inner.laps.history.is_latest(&arrived.lap);
        let status = match verdict {
            Verdict::Answer(status) => status,
            Verdict::Load(_) if stale => return,
            Verdict::Load(way) if load(scene, inner, &arrived.lap, way) => Status::LOADED,
            Verdict::Load(_) => Status::REJECTED,
            Verdict::Seek | Verdict::Kick => Status::LOADED,
            Verdict::Drop | Verdict::Ask(_) | Verdict::Force(_) => {
                return inner.laps.history.dropped(&arrived.lap);
            }
        };
        if arrived.from_peer || status == Status::LOADED {
            // A believed one is the peer's, wherever it came from.
            let _ = inner.laps.history.begin(&arrived.lap);
            inner.laps.history.answered(&arrived.lap, status);
        }
        answer(scene, inner, arrived, status);
        if matches!(verdict, Verdict::Load(_)) && status == Status::LOADED {
            self.rearm(scene, inner, rearm::Event::Served);
        }
        let wished = match verdict {
            Verdict::Seek => rearm::Event::Seek,
            Verdict::Kick => rearm::Event::Kick,
            _ => return,
        };
        stats::count(Stat::WishesHeard);
        // What subnet administration said before may be wrong now, unless another connection had it asked for
        // the same reason.
        let question = standbys(inner);
        self.standbys
            .forget_one(scene.conn.device(), &question, SAME_REASON_MS);
        self.rearm(scene, inner, wished);
    }
}

/// The connection as it is now, if it is the one that a LAP names.
fn connection(scene: &Scene<'_>, inner: &Inner, lap: &Lap) -> Option<Connection> {
    let id = scene.conn.id();
    // SAFETY: The mutex is held and the connection not dead.
    let (remote, established) = unsafe { (u32::from_be((*id).remote_id), cm::is_established(id)) };
    if remote != lap.ids.local {
        return None;
    }
    let mig = scene.qp.path_mig_state(inner.peer_qpn);
    let is_up = established && mig.is_some_and(|mig| inner.state().knows_path(mig));
    Some(Connection {
        active: scene.conn.side == Side::Active,
        served: is_served(inner),
        established: is_up && !inner.is_closed(),
        qpn: inner.qpn,
        in_use: inner.path.way,
        loaded: inner.alternate.map(|alternate| alternate.way),
        mig: mig.unwrap_or(PathMigState::Migrated),
        told: inner.rearm.as_ref().is_none_or(|rearm| rearm.is_told()),
        ca_guid: inner.peer_node,
        node_guid: inner.peer_sa_node,
    })
}

/// Whether the connection may get an alternate now.
pub(super) fn is_served(inner: &Inner) -> bool {
    let excluded = matches!(inner.state(), State::Unprotected(reason) if !reason.may_pass());
    params::rearm() && !inner.hands_off && !excluded
}

/// The port of the connection's HCA where a path begins.
fn local_port(scene: &Scene<'_>, inner: &Inner, own: &FullPath) -> Option<LocalPort> {
    let ports = scene.device.local_ports(inner.path.pkey).ok()?;
    ports.iter().find(|port| port.gid == own.sgid).copied()
}

/// Loads the path of a LAP that is believed; whether the HCA took it.
fn load(scene: &Scene<'_>, inner: &mut Inner, lap: &Lap, way: FullPath) -> bool {
    let path = Path { way, ..inner.path };
    // How long the peer waits, its ACK delay counted in: so do we, as after a REQ.
    let timeout = alternate_timeout(lap.alternate.ack_timeout, way.packet_life_time);
    // SAFETY: The scene has the device's gate, and the QP is one of that device.
    let loaded = unsafe { scene.qp.load_alternate(scene.device.raw(), &path, timeout) };
    if loaded.is_err() {
        stats::count(Stat::LoadFailed);
        return false;
    }
    inner.alternate = Some(path);
    inner.disjoint = None;
    inner.apply(Event::Rearmed);
    true
}

/// Sends an APR back to where a LAP came from.
fn answer(scene: &Scene<'_>, inner: &Inner, arrived: &Arrived, status: Status) {
    stats::count(match status {
        Status::LOADED => Stat::LapsAccepted,
        _ => Stat::LapsRefused,
    });
    let Some(port) = scene.device.port(arrived.port) else {
        return;
    };
    let Some((gid, lid)) = scene.device.address(arrived.port) else {
        return;
    };
    let mut back = inner.path;
    back.way.port = arrived.port;
    back.way.sgid = gid;
    back.way.slid = lid | u16::from(arrived.path_bits);
    back.way.dlid = arrived.source.lid;
    match arrived.source.gid {
        Some(gid) => {
            back.way.dgid = gid;
            back.way.hop_limit = back.hop_limit.max(1);
        }
        None => back.way.hop_limit = 0,
    }
    let apr = Apr::to(&arrived.lap, status);
    // Lost or not sent is all the same: the LAP comes again.
    let _ = port
        .cm
        .send(&back, Some(arrived.lap.tid), |_, mad| apr.write(mad));
}
