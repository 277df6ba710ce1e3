// SPDX-License-Identifier: GPL-2.0-only

//! A connection made up for tests: the module at both ends, two QPs as IBA 17.2.8 has them, and a fabric
//! that loses, doubles and delays MADs.

use super::super::lap::history::{History, Seen};
use super::super::lap::{self, Source, Verdict};
use super::super::path::{FullPath, LocalPort};
use super::super::state::{Load, State};
use super::tests::alternate;
use super::*;
use crate::wire::cm::lap::{Apr, Kind, Lap};
use crate::wire::cm::Ids;
use crate::wire::Gid;

const TIMES: Times = Times {
    lap_ms: 400,
    lap_retries: 3,
    rep_ms: 400,
    exhaustion_ms: 6_500,
};
pub(super) const ACTIVE: usize = 0;
pub(super) const PASSIVE: usize = 1;

/// Port numbers at the active and the passive side.
pub(super) type Pair = [u32; 2];

fn lid(side: usize, port: u32) -> u16 {
    10 * (side as u16 + 1) + port as u16
}

fn gid(side: usize, port: u32) -> Gid {
    Gid::new(side as u64 + 1, u64::from(port))
}

/// A path as one side sees it.
fn full(side: usize, pair: Pair) -> FullPath {
    let other = 1 - side;
    FullPath {
        port: pair[side],
        sgid: gid(side, pair[side]),
        dgid: gid(other, pair[other]),
        slid: lid(side, pair[side]),
        dlid: lid(other, pair[other]),
        rate: 3,
        packet_life_time: 15,
        ..FullPath::default()
    }
}

fn pair_of(a: &Alternate) -> Pair {
    [a.port, u32::from(a.path.dlid) - 20]
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Qp {
    pub(super) mig: PathMigState,
    pub(super) used: Pair,
    pub(super) alt: Option<Pair>,
    pub(super) dead: bool,
    pub(super) migrations: usize,
}

#[derive(Clone, Copy, Debug)]
enum Mad {
    Lap(Lap, Source),
    Apr(Apr),
}

/// The module at one end.
pub(super) struct End {
    pub(super) rearm: Rearm,
    pub(super) state: State,
    /// Migrations that it has acted on.
    pub(super) counted: usize,
    history: History,
}

pub(super) struct World {
    pub(super) now: u64,
    up: [[bool; 3]; 2],
    pub(super) qp: [Qp; 2],
    pub(super) end: [End; 2],
    /// MADs on their way: when they arrive, and where.
    wire: Vec<(u64, usize, Mad)>,
    /// What becomes of the MADs that are sent, one byte each; then nothing happens to them.
    fate: Vec<u8>,
    /// There is a slot for a nudge.
    pub(super) slot: [bool; 2],
    /// The HCA refuses to load, so many times.
    refusals: u8,
}

impl World {
    pub(super) fn new(slot: [bool; 2], fate: Vec<u8>, refusals: u8) -> Self {
        let qp = Qp {
            mig: PathMigState::Rearm,
            used: [1, 1],
            alt: Some([2, 2]),
            dead: false,
            migrations: 0,
        };
        let end = |rearm| End {
            rearm,
            state: State::Arming(Load::Handed),
            counted: 0,
            history: History::default(),
        };
        let mut world = Self {
            now: 0,
            up: [[true; 3]; 2],
            qp: [qp; 2],
            end: [
                end(Rearm::active(TIMES, 1_000)),
                end(Rearm::passive(TIMES, 1 << 40)),
            ],
            wire: Vec::new(),
            fate,
            slot,
            refusals,
        };
        let loaded = (alternate(2, 12, 22, Disjoint::Ports).key(), Disjoint::Ports);
        for side in [ACTIVE, PASSIVE] {
            world.tell(side, Event::Established(Some(loaded)));
        }
        world
    }

    pub(super) fn works(&self, pair: Pair) -> bool {
        self.up[ACTIVE][pair[0] as usize] && self.up[PASSIVE][pair[1] as usize]
    }

    fn apply(&mut self, side: usize, event: state::Event) {
        let end = &mut self.end[side];
        let (next, todo) = state::step(end.state, event);
        end.state = next;
        end.counted += usize::from(todo.has(state::Action::FollowCm));
    }

    fn migrate(&mut self, side: usize, by_peer: bool) {
        let qp = &mut self.qp[side];
        qp.used = qp.alt.take().unwrap();
        qp.mig = PathMigState::Migrated;
        qp.migrations += 1;
        self.apply(side, state::Event::PathMig);
        self.tell(side, Event::Migrated { told: by_peer });
    }

    /// Whether a packet from `side` arrives, and is accepted there.
    fn arrives(&mut self, side: usize) -> bool {
        let from = self.qp[side];
        let there = 1 - side;
        let good = !from.dead && !self.qp[there].dead && self.works(from.used);
        let to = &mut self.qp[there];
        let asked = from.mig == PathMigState::Migrated;
        if good && asked && to.mig == PathMigState::Armed && to.alt == Some(from.used) {
            self.migrate(there, true);
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

    /// A request of `side`, and its acknowledgement; by the other path, if need be and possible.
    pub(super) fn exchange(&mut self, side: usize) -> bool {
        for _ in 0..2 {
            if self.arrives(side) && self.arrives(1 - side) {
                return true;
            }
            if self.qp[side].mig != PathMigState::Armed {
                break;
            }
            self.migrate(side, false);
        }
        self.qp[side].dead = true;
        false
    }

    fn post(&mut self, from: usize, mad: Mad) {
        let to = 1 - from;
        let fate = self.fate.pop().unwrap_or(u8::MAX);
        let soon = self.now + 1;
        match fate {
            // Lost.
            0..=79 => {}
            // Late, and it may be overtaken.
            80..=119 => self.wire.push((soon + u64::from(fate) * 20, to, mad)),
            // Twice.
            120..=159 => {
                self.wire.push((soon, to, mad));
                self.wire.push((soon + u64::from(fate) * 7, to, mad));
            }
            _ => self.wire.push((soon, to, mad)),
        }
    }

    /// Sends a LAP, by the path in use.
    fn post_lap(&mut self, side: usize, lap: Lap) {
        let used = full(side, self.qp[side].used);
        let source = Source {
            lid: used.slid,
            local_lid: used.dlid,
            gid: None,
        };
        self.post(side, Mad::Lap(lap, source));
    }

    fn lap(&self, side: usize, tid: u64, pair: Pair, kind: Kind) -> Lap {
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

    fn search(&self) -> Event {
        let [a, b] = self.qp[ACTIVE].used;
        let mut found = Candidates::default();
        let all = [
            ([3 - a, 3 - b], Disjoint::Ports),
            ([3 - a, b], Disjoint::Port),
            ([a, 3 - b], Disjoint::Port),
        ];
        for (pair, disjoint) in all {
            if self.works(pair) {
                let lids = (lid(ACTIVE, pair[0]), lid(PASSIVE, pair[1]));
                found.push(alternate(pair[0], lids.0, lids.1, disjoint));
            }
        }
        match found == Candidates::default() {
            true => Event::NotFound(Reason::PortDown),
            false => Event::Found(found),
        }
    }

    /// Lets the machine of one side know, and does what it says.
    fn tell(&mut self, side: usize, event: Event) {
        let jitter = (self.now as u32).wrapping_mul(0x9e37_79b9);
        let step = self.end[side].rearm.step(event, self.now, jitter);
        if let Some(event) = step.event {
            self.apply(side, event);
        }
        match step.action {
            Action::None => {}
            Action::Tell { tid } if !self.slot[side] => {
                self.tell(side, Event::NoNudge);
                let lap = self.lap(side, tid, self.qp[side].used, Kind::Notice);
                self.post_lap(side, lap);
            }
            Action::Nudge if !self.slot[side] => self.tell(side, Event::NoNudge),
            Action::Tell { .. } | Action::Nudge => {
                let migrations = self.qp[side].migrations;
                if !self.exchange(side) {
                    self.tell(side, Event::Close);
                } else if self.qp[side].migrations == migrations {
                    self.tell(side, Event::Nudged);
                }
            }
            Action::Search { .. } => self.tell(side, self.search()),
            Action::Send { tid, alternate } => {
                let lap = self.lap(side, tid, pair_of(&alternate), Kind::Ordinary);
                self.post_lap(side, lap);
            }
            Action::Load(alternate) => {
                let pair = pair_of(&alternate);
                // Nothing but what the peer has.
                let peer = &self.qp[PASSIVE];
                assert!(peer.alt == Some(pair) || peer.used == pair);
                if self.refusals > 0 {
                    self.refusals -= 1;
                    return self.tell(side, Event::Loaded(false));
                }
                self.qp[side].alt = Some(pair);
                self.qp[side].mig = PathMigState::Rearm;
                self.tell(side, Event::Loaded(true));
            }
            Action::Sample => self.look(side),
        }
    }

    /// Asks a QP for its state.
    pub(super) fn look(&mut self, side: usize) {
        if !self.qp[side].dead {
            let mig = self.qp[side].mig;
            self.apply(side, state::Event::Sampled(mig));
            self.tell(side, Event::Sampled(mig));
        }
    }

    /// One side gets a LAP.
    fn serve(&mut self, side: usize, lap: &Lap, source: &Source) {
        if source.is_on(&full(side, self.qp[side].used)) {
            self.tell(side, Event::PeerSeen);
        }
        let status = match self.end[side].history.begin(lap) {
            Seen::Stale => return,
            Seen::Answered(status) => status,
            Seen::New => match self.decide(side, lap, source) {
                Some(status) => status,
                None => return self.end[side].history.dropped(lap),
            },
        };
        self.end[side].history.answered(lap, status);
        self.post(side, Mad::Apr(Apr::to(lap, status)));
    }

    fn decide(&mut self, side: usize, lap: &Lap, source: &Source) -> Option<Status> {
        loop {
            let qp = self.qp[side];
            let path = FullPath::from_peer(&lap.alternate);
            let port = u32::from(path.slid % 10);
            let facts = lap::Facts {
                connection: Some(lap::Connection {
                    active: side == ACTIVE,
                    served: true,
                    established: !qp.dead,
                    qpn: 7,
                    in_use: full(side, qp.used),
                    loaded: qp.alt.map(|pair| full(side, pair)),
                    mig: qp.mig,
                    told: self.end[side].rearm.is_told(),
                    ca_guid: 5,
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
                source: lap::Port::Of { node: 5, lid: 11 },
                far: lap::Port::Of {
                    node: 5,
                    lid: path.dlid,
                },
                far_lid: lap::Port::NotAsked,
            };
            match lap::judge(lap, source, &facts) {
                Verdict::Answer(status) => return Some(status),
                Verdict::Force(_) => {
                    assert_eq!(qp.mig, PathMigState::Armed);
                    // The peer is there already.
                    self.migrate(side, true);
                    if lap.kind == Kind::Notice {
                        return Some(Status::LOADED);
                    }
                }
                Verdict::Load(path) => {
                    assert_eq!(side, PASSIVE);
                    let pair = [u32::from(path.dlid % 10), port];
                    assert_eq!(path, full(side, pair));
                    self.qp[side].alt = Some(pair);
                    self.qp[side].mig = PathMigState::Rearm;
                    self.apply(side, state::Event::Rearmed);
                    self.tell(side, Event::Served);
                    return Some(Status::LOADED);
                }
                Verdict::Seek | Verdict::Kick => {
                    let event = match lap.kind {
                        Kind::DeadStandby => Event::Seek,
                        _ => Event::Kick,
                    };
                    self.tell(side, event);
                    return Some(Status::LOADED);
                }
                Verdict::Ask(question) => panic!("{question:?}"),
                Verdict::Drop => return None,
            }
        }
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, until: u64) {
        let mut steps = 0;
        while self.now < until {
            steps += 1;
            assert!(steps < 100_000, "it spins");
            let ticks = self.end.iter().filter_map(|end| end.rearm.deadline());
            let next = self.wire.iter().map(|(at, ..)| *at).chain(ticks).min();
            let Some(next) = next.filter(|next| *next < until) else {
                break;
            };
            self.now = self.now.max(next);
            if let Some(n) = self.wire.iter().position(|(at, ..)| *at <= self.now) {
                let (_, side, mad) = self.wire.remove(n);
                self.deliver(side, mad);
                continue;
            }
            for side in [ACTIVE, PASSIVE] {
                self.tell(side, Event::Tick);
            }
        }
        self.now = until;
    }

    fn deliver(&mut self, side: usize, mad: Mad) {
        match mad {
            Mad::Lap(lap, source) => self.serve(side, &lap, &source),
            Mad::Apr(Apr { tid, status, .. }) => self.tell(side, Event::Apr { tid, status }),
        }
    }

    pub(super) fn is_armed(&self) -> bool {
        let [a, b] = &self.qp;
        a.mig == PathMigState::Armed
            && b.mig == PathMigState::Armed
            && (a.used, a.alt) == (b.used, b.alt)
    }

    /// Whether the connection outlives the loss of this port.
    fn can_lose(&self, side: usize, port: u32) -> bool {
        let used = self.qp.iter().any(|qp| qp.used[side] == port);
        let other = self.qp[ACTIVE].alt;
        !used || self.is_armed() && other.is_some_and(|p| p[side] != port && self.works(p))
    }

    pub(super) fn cut(&mut self, side: usize, port: u32, noticed: bool) {
        if !self.up[side][port as usize] || !self.can_lose(side, port) {
            return;
        }
        self.up[side][port as usize] = false;
        if self.qp[side].used[side] != port {
            return;
        }
        if noticed {
            // By command, and the nudge that goes with it.
            self.migrate(side, false);
        } else {
            self.exchange(1 - side);
        }
    }

    pub(super) fn join(&mut self, side: usize, port: u32) {
        self.up[side][port as usize] = true;
        self.tell(side, Event::Kick);
    }
}
