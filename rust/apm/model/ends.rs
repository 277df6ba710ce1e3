// SPDX-License-Identifier: GPL-2.0-only

//! The two ends of a connection as the model has them: QPs that do what IBA 17.2.8 says, the module's
//! transition functions as `rust/rdma` calls them, and the messages between.
//!
//! What `rust/rdma/{attend,lap,rearm}.rs` do around the functions is done again here, as near to it as
//! possible; function names are the same.

use super::super::lap::history::{History, Seen};
use super::super::lap::{self, Source, Verdict};
use super::super::path::{Alternate, Disjoint, FullPath, LocalPort};
use super::super::rearm::canon::{LATER, NOW};
use super::super::rearm::{Action, Candidates, Event, Rearm, Times};
use super::super::reason::Reason;
use super::super::state::{self, Load, PathMigState, State};
use crate::wire::cm::lap::{Kind, Lap, Status};
use crate::wire::cm::Ids;
use crate::wire::records::PathRecord;
use crate::wire::Gid;
use std::fmt;

pub(super) const ACTIVE: usize = 0;
pub(super) const PASSIVE: usize = 1;
/// NodeGUIDs.
const NODES: [u64; 2] = [5, 6];
const STRANGER: u64 = 7;
/// Offers that are on their way at most, and other messages in one direction; further ones are lost.
const OFFERS: usize = 2;
const OTHERS: usize = 1;

/// Port numbers at the active and the passive side.
pub(super) type Pair = [u32; 2];

fn lid(side: usize, port: u32) -> u16 {
    10 * (side as u16 + 1) + port as u16
}

/// A path as one side sees it.
fn full(side: usize, pair: Pair) -> FullPath {
    let other = 1 - side;
    let gid = |side: usize| Gid::new(side as u64 + 1, u64::from(pair[side]));
    FullPath {
        port: pair[side],
        sgid: gid(side),
        dgid: gid(other),
        slid: lid(side, pair[side]),
        dlid: lid(other, pair[other]),
        rate: 3,
        packet_life_time: 15,
        ..FullPath::default()
    }
}

fn alternate(pair: Pair, disjoint: Disjoint) -> Alternate {
    Alternate {
        port: pair[ACTIVE],
        path: PathRecord {
            slid: lid(ACTIVE, pair[ACTIVE]),
            dlid: lid(PASSIVE, pair[PASSIVE]),
            ..PathRecord::default()
        },
        disjoint,
        primary_lids: (0, 0),
    }
}

fn pair_of(a: &Alternate) -> Pair {
    [a.port, u32::from(a.path.dlid) - 20]
}

/// What hardware has of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Qp {
    pub(super) mig: PathMigState,
    pub(super) used: Pair,
    pub(super) alt: Option<Pair>,
    pub(super) dead: bool,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mad {
    Lap(Lap, Source),
    Apr(u64, Status),
}

impl Mad {
    pub(super) fn tid(&self) -> u64 {
        match self {
            Mad::Lap(lap, _) => lap.tid,
            Mad::Apr(tid, _) => *tid,
        }
    }

    pub(super) fn renumber(&mut self, tid: u64) {
        match self {
            Mad::Lap(lap, _) => lap.tid = tid,
            Mad::Apr(to, _) => *to = tid,
        }
    }

    pub(super) fn is_lap(&self) -> bool {
        matches!(self, Mad::Lap(..))
    }

    fn is_offer(&self) -> bool {
        matches!(self, Mad::Lap(lap, _) if lap.kind == Kind::Ordinary)
    }
}

/// How far a nudge has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Nudge {
    /// There is none.
    None,
    /// It is in the send queue.
    Posted,
    /// The peer has acknowledged it; whose completion it is has yet to say so.
    Acked,
}

/// What the module has of a connection, at one end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct End {
    pub(super) rearm: Rearm,
    pub(super) state: State,
    pub(super) history: History,
    /// The path in use and the alternate, as far as it knows.
    path: Pair,
    alternate: Option<Pair>,
    /// The module is there.
    pub(super) loaded: bool,
    /// It has not been told that the connection is established.
    pub(super) is_new: bool,
    moved: bool,
    untold: bool,
    seek: bool,
    /// The last nudge.
    pub(super) nudge: Nudge,
    /// A port has changed, and nobody has said so.
    pub(super) port_event: bool,
    /// IB_EVENT_PATH_MIG is on its way.
    pub(super) path_mig: bool,
}

/// What an end is attended to for.
#[derive(Clone, Debug, Default)]
pub(super) struct News {
    pub(super) path_mig: bool,
    pub(super) kick: bool,
    pub(super) nudged: bool,
    pub(super) established: bool,
    pub(super) message: Option<Mad>,
    /// What was waited for is due.
    pub(super) due: bool,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) up: [[bool; 3]; 2],
    pub(super) qp: [Qp; 2],
    pub(super) end: [End; 2],
    /// Messages on their way, and where to.
    pub(super) wire: Vec<(usize, Mad)>,
    /// There is a slot for a nudge.
    slot: [bool; 2],
    /// The HCA refuses the next alternate that is loaded.
    pub(super) refuse: bool,
    /// What must not have happened.
    pub(super) wrong: Option<&'static str>,
    now: u64,
    /// Messages sent; not counted where states are compared.
    pub(super) sent: u32,
}

impl News {
    pub(super) fn of(mad: Mad) -> Self {
        Self {
            message: Some(mad),
            ..Self::default()
        }
    }
}

impl World {
    pub(super) fn new(slot: [bool; 2]) -> Self {
        let times = Times {
            lap_ms: 400,
            lap_retries: 0,
            rep_ms: 400,
            exhaustion_ms: 6_500,
        };
        let qp = Qp {
            mig: PathMigState::Rearm,
            used: [1, 1],
            alt: Some([2, 2]),
            dead: false,
        };
        let end = |rearm| End {
            rearm,
            state: State::Arming(Load::Handed),
            history: History::default(),
            path: [1, 1],
            alternate: Some([2, 2]),
            loaded: true,
            is_new: true,
            moved: false,
            untold: false,
            seek: false,
            nudge: Nudge::None,
            port_event: false,
            path_mig: false,
        };
        Self {
            up: [[true; 3]; 2],
            qp: [qp.clone(), qp],
            end: [
                end(Rearm::active(times, 0)),
                end(Rearm::passive(times, 1 << 32)),
            ],
            wire: Vec::new(),
            slot,
            refuse: false,
            wrong: None,
            now: NOW,
            sent: 0,
        }
    }

    pub(super) fn works(&self, pair: Pair) -> bool {
        self.up[ACTIVE][pair[0] as usize] && self.up[PASSIVE][pair[1] as usize]
    }

    // --- hardware ---

    fn migrate(&mut self, side: usize) {
        let qp = &mut self.qp[side];
        qp.used = qp.alt.take().unwrap();
        qp.mig = PathMigState::Migrated;
        self.end[side].path_mig = true;
    }

    /// Whether a packet from `side` arrives, and is accepted there.
    fn arrives(&mut self, side: usize) -> bool {
        let from = self.qp[side].clone();
        let there = 1 - side;
        let good = !from.dead && !self.qp[there].dead && self.works(from.used);
        let to = &mut self.qp[there];
        let asked = from.mig == PathMigState::Migrated;
        if good && asked && to.mig == PathMigState::Armed && to.alt == Some(from.used) {
            self.migrate(there);
            return true;
        }
        if !good || from.used != to.used || (asked && to.mig == PathMigState::Armed) {
            return false;
        }
        if !asked && to.mig == PathMigState::Rearm {
            to.mig = PathMigState::Armed;
        }
        true
    }

    /// A request of `side` and its acknowledgement; by the other path, if need be and possible.
    pub(super) fn exchange(&mut self, side: usize) -> bool {
        for _ in 0..2 {
            if self.arrives(side) && self.arrives(1 - side) {
                return true;
            }
            if self.qp[side].mig != PathMigState::Armed {
                break;
            }
            self.migrate(side);
        }
        self.qp[side].dead = true;
        self.wrong = Some("a connection has died");
        false
    }

    /// Armed at both ends, with each other.
    pub(super) fn is_armed(&self) -> bool {
        let [a, b] = &self.qp;
        a.mig == PathMigState::Armed
            && b.mig == PathMigState::Armed
            && (a.used, a.alt) == (b.used, b.alt)
    }

    /// An alternate is being replaced: for a moment the ends may have different ones.
    pub(super) fn is_offering(&self) -> bool {
        self.end[ACTIVE].rearm.is_offering() || self.wire.iter().any(|(_, mad)| mad.is_offer())
    }

    /// The active side knows that the peer may have another alternate, and is about to offer one again.
    pub(super) fn is_replacing(&self) -> bool {
        self.is_offering() || !self.end[ACTIVE].rearm.trusts()
    }

    /// Whether the connection is promised to outlive the loss of this port: it has a path that works without,
    /// and is on it, or armed with it.
    pub(super) fn can_lose(&self, side: usize, port: u32) -> bool {
        let [a, b] = &self.qp;
        let works = |pair: Pair| self.works(pair) && pair[side] != port;
        let armed = self.is_armed() && !self.is_offering();
        a.used == b.used && (works(a.used) || armed && a.alt.is_some_and(works))
    }

    // --- the module ---

    fn post(&mut self, from: usize, mad: Mad) {
        let to = 1 - from;
        let same = |(there, other): &&(usize, Mad)| *there == to && other.is_lap() == mad.is_lap();
        self.sent += 1;
        let most = match mad.is_lap() && to == PASSIVE {
            true => OFFERS,
            false => OTHERS,
        };
        if self.wire.iter().filter(same).count() < most {
            self.wire.push((to, mad));
        }
    }

    fn post_lap(&mut self, side: usize, tid: u64, pair: Pair, kind: Kind) {
        let used = full(side, self.end[side].path);
        let source = Source {
            lid: used.slid,
            local_lid: used.dlid,
            gid: None,
        };
        let lap = lap(side, tid, pair, kind);
        if self.works(self.end[side].path) {
            self.post(side, Mad::Lap(lap, source));
        }
    }

    /// A third node offers its own port, or names one of the peer's.
    pub(super) fn forge(&mut self, own: bool) {
        let mut lap = lap(ACTIVE, 1 << 50, [2, 2], Kind::Ordinary);
        if own {
            lap.alternate.local_lid = 99;
        }
        let source = Source {
            lid: 99,
            local_lid: 21,
            gid: None,
        };
        self.attend(
            PASSIVE,
            News {
                message: Some(Mad::Lap(lap, source)),
                ..News::default()
            },
        );
    }

    /// `attend` of `rust/rdma/attend.rs`.
    pub(super) fn attend(&mut self, side: usize, news: News) {
        if !self.end[side].loaded {
            return;
        }
        if self.qp[side].dead {
            self.rearm(side, Event::Close);
            return;
        }
        self.now = NOW;
        let sampled = self.look(side, news.path_mig);
        if self.on_dead_port(side) {
            self.happen(side, state::Event::Force);
        }
        if news.established {
            self.end[side].is_new = false;
            let loaded = self.end[side]
                .alternate
                .filter(|_| self.end[side].state.may_migrate());
            let loaded =
                loaded.map(|pair| (alternate(pair, Disjoint::Ports).key(), Disjoint::Ports));
            self.rearm(side, Event::Established(loaded));
        }
        self.after_look(side, Some(sampled));
        if news.nudged && self.end[side].nudge == Nudge::Acked {
            self.end[side].nudge = Nudge::None;
            self.rearm(side, Event::Nudged);
        }
        match news.message {
            Some(Mad::Lap(lap, source)) => self.lap(side, &lap, &source),
            Some(Mad::Apr(tid, status)) => self.rearm(side, Event::Apr { tid, status }),
            None => {}
        }
        if news.kick {
            self.rearm(side, Event::Kick);
        }
        self.after_look(side, None);
        if news.due {
            self.now = LATER;
            self.rearm(side, Event::Tick);
            self.after_look(side, None);
            self.now = NOW;
        }
    }

    fn look(&mut self, side: usize, migrated: bool) -> PathMigState {
        let now = self.qp[side].mig;
        if self.end[side].state.keeps_alternate() {
            let event = if migrated && now == PathMigState::Migrated {
                state::Event::PathMig
            } else {
                state::Event::Sampled(now)
            };
            self.happen(side, event);
        }
        now
    }

    fn on_dead_port(&self, side: usize) -> bool {
        let end = &self.end[side];
        let up = |pair: Pair| self.up[side][pair[side] as usize];
        end.alternate
            .is_some_and(|alternate| !up(end.path) && up(alternate))
    }

    fn happen(&mut self, side: usize, event: state::Event) {
        let mut next = Some(event);
        let mut asked = false;
        while let Some(event) = next.take() {
            let actions = self.apply(side, event);
            let end = &mut self.end[side];
            end.moved |= actions.has(state::Action::FollowCm);
            end.untold |= actions.has(state::Action::TellPeer);
            end.seek |= actions.has(state::Action::Seek);
            if actions.has(state::Action::Force) {
                next = Some(if self.qp[side].mig == PathMigState::Armed {
                    self.migrate(side);
                    state::Event::Forced
                } else {
                    state::Event::ForceFailed
                });
            } else if actions.has(state::Action::Sample) && !asked {
                asked = true;
                next = Some(state::Event::Sampled(self.qp[side].mig));
            }
        }
    }

    fn apply(&mut self, side: usize, event: state::Event) -> state::Actions {
        let end = &mut self.end[side];
        let (next, actions) = state::step(end.state, event);
        end.state = next;
        if actions.has(state::Action::FollowCm) {
            if let Some(alternate) = end.alternate.take() {
                end.path = alternate;
            }
        }
        actions
    }

    fn after_look(&mut self, side: usize, sampled: Option<PathMigState>) {
        let end = &mut self.end[side];
        if core::mem::take(&mut end.moved) {
            let told = !core::mem::take(&mut end.untold);
            end.nudge = Nudge::None;
            end.seek = false;
            self.rearm(side, Event::Migrated { told });
        }
        if core::mem::take(&mut self.end[side].seek) {
            self.rearm(side, Event::Seek);
        }
        if let Some(mig) = sampled {
            self.rearm(side, Event::Sampled(mig));
        }
    }

    /// `rearm` of `rust/rdma/rearm.rs`: lets the machine know, and does what it says.
    fn rearm(&mut self, side: usize, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let step = self.end[side].rearm.step(event, self.now, 1 << 31);
            if let Some(event) = step.event {
                self.apply(side, event);
            }
            next = match step.action {
                Action::None => None,
                Action::Tell { tid } => {
                    if self.post_nudge(side) {
                        continue;
                    }
                    let path = self.end[side].path;
                    self.post_lap(side, tid, path, Kind::Notice);
                    Some(Event::NoNudge)
                }
                Action::Nudge => (!self.post_nudge(side)).then_some(Event::NoNudge),
                Action::Search { .. } => Some(self.search()),
                Action::Send { tid, alternate } => {
                    self.post_lap(side, tid, pair_of(&alternate), Kind::Ordinary);
                    None
                }
                Action::Load(alternate) => Some(Event::Loaded(self.load(side, &alternate))),
                Action::Sample => {
                    let mig = self.qp[side].mig;
                    self.happen(side, state::Event::Sampled(mig));
                    Some(Event::Sampled(mig))
                }
            };
        }
    }

    fn search(&self) -> Event {
        let [a, b] = self.end[ACTIVE].path;
        let mut found = Candidates::default();
        let all = [
            ([3 - a, 3 - b], Disjoint::Ports),
            ([3 - a, b], Disjoint::Port),
            ([a, 3 - b], Disjoint::Port),
        ];
        for (pair, disjoint) in all {
            if self.works(pair) {
                found.push(alternate(pair, disjoint));
            }
        }
        match found == Candidates::default() {
            true => Event::NotFound(Reason::PortDown),
            false => Event::Found(found),
        }
    }

    fn load(&mut self, side: usize, alternate: &Alternate) -> bool {
        let pair = pair_of(alternate);
        if core::mem::take(&mut self.refuse) {
            return false;
        }
        if self.end[PASSIVE].loaded
            && self.qp[PASSIVE].alt != Some(pair)
            && self.qp[PASSIVE].used != pair
        {
            self.wrong = Some("the active side loads what the passive side does not have");
        }
        self.qp[side].alt = Some(pair);
        self.qp[side].mig = PathMigState::Rearm;
        self.end[side].alternate = Some(pair);
        true
    }

    // --- LAPs: `rust/rdma/lap.rs` ---

    fn lap(&mut self, side: usize, lap: &Lap, source: &Source) {
        if source.is_on(&full(side, self.end[side].path)) {
            self.rearm(side, Event::PeerSeen);
        }
        let from_peer = source.lid != 99;
        if from_peer {
            match self.end[side].history.begin(lap) {
                Seen::Stale => return,
                Seen::Answered(status) => return self.post(side, Mad::Apr(lap.tid, status)),
                Seen::New => {}
            }
        }
        let Some(status) = self.judge(side, lap, source) else {
            return self.end[side].history.dropped(lap);
        };
        if from_peer {
            self.end[side].history.answered(lap, status);
            self.post(side, Mad::Apr(lap.tid, status));
        }
        match lap.kind {
            Kind::Ordinary if status == Status::LOADED => self.rearm(side, Event::Served),
            Kind::DeadStandby if status == Status::LOADED => self.rearm(side, Event::Seek),
            _ => {}
        }
    }

    fn judge(&mut self, side: usize, lap: &Lap, source: &Source) -> Option<Status> {
        let mut forced = false;
        loop {
            let verdict = lap::judge(lap, source, &self.facts(side, lap, source));
            let refused = matches!(verdict, Verdict::Answer(Status::REJECTED) | Verdict::Drop);
            if source.lid == 99 && !refused {
                self.wrong = Some("a third node was believed");
            }
            match verdict {
                Verdict::Answer(status) => return Some(status),
                Verdict::Force(status) if forced => return Some(status),
                Verdict::Force(_) => {
                    forced = true;
                    self.happen(side, state::Event::Force);
                    if self.end[side].moved {
                        self.end[side].untold = false;
                        self.after_look(side, None);
                        if lap.kind == Kind::Notice {
                            return Some(Status::LOADED);
                        }
                    }
                }
                Verdict::Load(path) => {
                    let pair = [u32::from(path.dlid % 10), path.port];
                    self.qp[side].alt = Some(pair);
                    self.qp[side].mig = PathMigState::Rearm;
                    self.end[side].alternate = Some(pair);
                    self.apply(side, state::Event::Rearmed);
                    return Some(Status::LOADED);
                }
                Verdict::Seek | Verdict::Kick => return Some(Status::LOADED),
                Verdict::Ask(_) => unreachable!("all is known"),
                Verdict::Drop => return None,
            }
        }
    }

    fn facts(&self, side: usize, lap: &Lap, source: &Source) -> lap::Facts {
        let (end, qp) = (&self.end[side], &self.qp[side]);
        let path = FullPath::from_peer(&lap.alternate);
        let port = u32::from(path.slid % 10);
        let node_of = |lid: u16| match lid {
            99 => STRANGER,
            _ => NODES[1 - side],
        };
        lap::Facts {
            connection: Some(lap::Connection {
                active: side == ACTIVE,
                served: true,
                established: !qp.dead && !end.is_new && end.state.knows_path(qp.mig),
                qpn: 7,
                in_use: full(side, end.path),
                loaded: end.alternate.map(|pair| full(side, pair)),
                mig: qp.mig,
                told: end.rearm.is_told(),
                ca_guid: NODES[1 - side],
                node_guid: 0,
            }),
            local: Some(LocalPort {
                num: port,
                gid: path.sgid,
                lid: path.slid,
                lmc: 0,
                active: self.up[side][port as usize],
                has_pkey: true,
            }),
            source: lap::Port::Of {
                node: node_of(source.lid),
                lid: source.lid,
            },
            far: lap::Port::Of {
                node: node_of(path.dlid),
                lid: path.dlid,
            },
            far_lid: lap::Port::NotAsked,
        }
    }

    /// A port dies, or is back.
    pub(super) fn set_port(&mut self, side: usize, port: u32, up: bool) {
        self.up[side][port as usize] = up;
        self.end[side].port_event = self.end[side].loaded;
    }

    fn post_nudge(&mut self, side: usize) -> bool {
        if self.slot[side] {
            self.end[side].nudge = Nudge::Posted;
        }
        self.slot[side]
    }

    /// The nudge of one side arrives, or cannot.
    pub(super) fn nudge(&mut self, side: usize) {
        if self.exchange(side) {
            self.end[side].nudge = Nudge::Acked;
        }
    }

    /// What the timer of an end stands for can have happened: a nudge that the HCA has not given up after
    /// so long has arrived.
    pub(super) fn may_be_due(&self, side: usize) -> bool {
        let end = &self.end[side];
        let waits = end.rearm.is_telling() && end.nudge == Nudge::Posted;
        end.loaded && end.rearm.deadline().is_some() && !waits
    }

    pub(super) fn rep_again(&mut self) {
        self.rearm(ACTIVE, Event::RepAgain);
    }

    pub(super) fn unload(&mut self, side: usize) {
        let end = &mut self.end[side];
        end.loaded = false;
        end.port_event = false;
        end.path_mig = false;
    }

    /// The passive side says that its port of the alternate is down.
    pub(super) fn wish(&mut self) {
        if let Some(pair) = self.end[PASSIVE].alternate {
            self.post_lap(PASSIVE, (1 << 33) + 1, pair, Kind::DeadStandby);
        }
    }

    pub(super) fn may_wish(&self) -> bool {
        let end = &self.end[PASSIVE];
        let down = |pair: Pair| !self.up[PASSIVE][pair[PASSIVE] as usize];
        let said = self
            .wire
            .iter()
            .any(|(to, mad)| *to == ACTIVE && mad.is_lap());
        end.loaded && end.state.may_migrate() && end.alternate.is_some_and(down) && !said
    }
}

fn lap(side: usize, tid: u64, pair: Pair, kind: Kind) -> Lap {
    Lap {
        tid,
        ids: Ids {
            local: 1,
            remote: 2,
        },
        qpn: 7,
        remote_cm_response_timeout: 20,
        alternate: full(side, pair).to_cm(16),
        kind,
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, side) in [("active ", ACTIVE), ("passive", PASSIVE)] {
            let (qp, end) = (&self.qp[side], &self.end[side]);
            let down: Vec<u32> = [1, 2]
                .into_iter()
                .filter(|p| !self.up[side][*p as usize])
                .collect();
            write!(
                f,
                "   {name}  QP {:?} {:?} alt {:?}",
                qp.mig, qp.used, qp.alt
            )?;
            write!(
                f,
                "  knows {:?} alt {:?}  {:?}  {}",
                end.path,
                end.alternate,
                end.state,
                end.rearm.phase()
            )?;
            write!(
                f,
                "  down {down:?}{}",
                if end.nudge == Nudge::None {
                    ""
                } else {
                    "  nudge"
                }
            )?;
            writeln!(f, "{}", if end.path_mig { "  PATH_MIG" } else { "" })?;
        }
        for (to, mad) in &self.wire {
            match mad {
                Mad::Lap(lap, _) => writeln!(
                    f,
                    "   to {to}: LAP {} {:?} {}->{}",
                    lap.tid, lap.kind, lap.alternate.local_lid, lap.alternate.remote_lid
                )?,
                Mad::Apr(tid, status) => writeln!(f, "   to {to}: APR {tid} {status:?}")?,
            }
        }
        Ok(())
    }
}
