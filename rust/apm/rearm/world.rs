// SPDX-License-Identifier: GPL-2.0-only

//! A connection made up for tests: the module at both ends, and a fabric that loses, doubles and delays MADs.

use super::super::lap::history::{History, Seen};
use super::super::lap::{self as judgement, Source, Verdict};
use super::super::path::{FullPath, LocalPort};
use super::super::state::{Load, State};
use super::super::testbed::{
    alternate, full, lap, pair_of, port_of, Hardware, Wired, ACTIVE, PASSIVE,
};
use super::*;
use crate::wire::cm::lap::{Apr, Kind, Lap};

const TIMES: Times = Times {
    lap_ms: 400,
    lap_retries: 3,
    rep_ms: 400,
    exhaustion_ms: 6_500,
};
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
    pub(super) hw: Hardware,
    pub(super) migrations: [usize; 2],
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

impl Wired for World {
    fn hw(&mut self) -> &mut Hardware {
        &mut self.hw
    }

    fn migrated(&mut self, side: usize, by_peer: bool) {
        self.migrations[side] += 1;
        self.apply(side, state::Event::PathMig);
        self.tell(side, Event::Migrated { told: by_peer });
    }
}

impl World {
    pub(super) fn new(slot: [bool; 2], fate: Vec<u8>, refusals: u8) -> Self {
        let end = |rearm| End {
            rearm,
            state: State::Arming(Load::Handed),
            counted: 0,
            history: History::default(),
        };
        let mut world = Self {
            now: 0,
            hw: Hardware::new(),
            migrations: [0; 2],
            end: [
                end(Rearm::active(TIMES, 1_000)),
                end(Rearm::passive(TIMES, 1 << 40)),
            ],
            wire: Vec::new(),
            fate,
            slot,
            refusals,
        };
        let loaded = (alternate([2, 2], Disjoint::Ports).key(), Disjoint::Ports);
        for side in [ACTIVE, PASSIVE] {
            world.tell(side, Event::Established(Some(loaded)));
        }
        world
    }

    fn apply(&mut self, side: usize, event: state::Event) {
        let end = &mut self.end[side];
        let (next, todo) = state::step(end.state, event);
        end.state = next;
        end.counted += usize::from(todo.has(state::Action::FollowCm));
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
        let used = full(side, self.hw.qp[side].used);
        let source = Source {
            lid: used.slid,
            local_lid: used.dlid,
            gid: None,
        };
        self.post(side, Mad::Lap(lap, source));
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
                let lap = lap(side, tid, self.hw.qp[side].used, Kind::Notice);
                self.post_lap(side, lap);
            }
            Action::Nudge if !self.slot[side] => self.tell(side, Event::NoNudge),
            Action::Tell { .. } | Action::Nudge => {
                let migrations = self.migrations[side];
                if !self.exchange(side) {
                    self.tell(side, Event::Close);
                } else if self.migrations[side] == migrations {
                    self.tell(side, Event::Nudged);
                }
            }
            Action::Search { .. } => self.tell(side, self.hw.search(self.hw.qp[ACTIVE].used)),
            Action::Send { tid, alternate } => {
                let lap = lap(side, tid, pair_of(&alternate), Kind::Ordinary);
                self.post_lap(side, lap);
            }
            Action::Load(alternate) => {
                let pair = pair_of(&alternate);
                // Nothing but what the peer has.
                assert!(self.hw.passive_has(pair));
                if self.refusals > 0 {
                    self.refusals -= 1;
                    return self.tell(side, Event::Loaded(false));
                }
                self.hw.load(side, pair);
                self.tell(side, Event::Loaded(true));
            }
            Action::Sample => self.look(side),
        }
    }

    /// Asks a QP for its state.
    pub(super) fn look(&mut self, side: usize) {
        if !self.hw.qp[side].dead {
            let mig = self.hw.qp[side].mig;
            self.apply(side, state::Event::Sampled(mig));
            self.tell(side, Event::Sampled(mig));
        }
    }

    /// One side gets a LAP.
    fn serve(&mut self, side: usize, lap: &Lap, source: &Source) {
        if source.is_on(&full(side, self.hw.qp[side].used)) {
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
            let qp = self.hw.qp[side];
            let path = FullPath::from_peer(&lap.alternate);
            let port = port_of(path.slid);
            let facts = judgement::Facts {
                connection: Some(judgement::Connection {
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
                    active: self.hw.up[side][port as usize],
                    has_pkey: true,
                }),
                source: judgement::Port::Of { node: 5, lid: 11 },
                far: judgement::Port::Of {
                    node: 5,
                    lid: path.dlid,
                },
                far_lid: judgement::Port::NotAsked,
            };
            match judgement::judge(lap, source, &facts) {
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
                    let pair = [port_of(path.dlid), port];
                    assert_eq!(path, full(side, pair));
                    self.hw.load(side, pair);
                    self.apply(side, state::Event::Rearmed);
                    self.tell(side, Event::Served);
                    return Some(Status::LOADED);
                }
                Verdict::Seek => {
                    self.tell(side, Event::Seek);
                    return Some(Status::LOADED);
                }
                Verdict::Kick => {
                    self.tell(side, Event::Kick);
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

    /// Whether the connection outlives the loss of this port.
    fn can_lose(&self, side: usize, port: u32) -> bool {
        let used = self.hw.qp.iter().any(|qp| qp.used[side] == port);
        let other = self.hw.qp[ACTIVE].alt;
        !used || self.hw.is_armed() && other.is_some_and(|p| p[side] != port && self.hw.works(p))
    }

    pub(super) fn cut(&mut self, side: usize, port: u32, noticed: bool) {
        if !self.hw.up[side][port as usize] || !self.can_lose(side, port) {
            return;
        }
        self.hw.up[side][port as usize] = false;
        if self.hw.qp[side].used[side] != port {
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
        self.hw.up[side][port as usize] = true;
        self.tell(side, Event::Kick);
    }
}
