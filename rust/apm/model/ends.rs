// SPDX-License-Identifier: GPL-2.0-only

//! The two ends of a connection as the model has them: the module's transition functions as `rust/rdma` calls
//! them, and the messages between.
//!
//! What `rust/rdma/{attend,rearm}.rs` do (`lap.rs`: see `laps.rs`) around the functions is done again here, as near to it as
//! possible; function names are the same.

use super::super::lap::history::History;
use super::super::lap::Source;
use super::super::path::{Alternate, Disjoint};
use super::super::rearm::canon::{LATER, NOW};
use super::super::rearm::{Action, Event, Rearm, Times};
use super::super::state::{self, Load, PathMigState, State};
use super::super::testbed::{
    alternate, full, lap, pair_of, port_of, Hardware, Pair, Swap, Wired, ACTIVE, PASSIVE,
};
use crate::wire::cm::lap::{Kind, Lap, Status};

/// Offers that are on their way at most, and other messages in one direction; further ones are lost.
const OFFERS: usize = 2;
const OTHERS: usize = 1;

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

    /// The same from `side` with another transaction id, and with other names for the ports.
    pub(super) fn renamed(&self, side: usize, tid: u64, swap: Swap) -> Self {
        match self {
            Mad::Lap(known, source) => {
                let told = &known.alternate;
                let mut pair = [port_of(told.local_lid), port_of(told.remote_lid)];
                if side == PASSIVE {
                    pair.reverse();
                }
                let source = Source {
                    lid: swap.lid(source.lid),
                    local_lid: swap.lid(source.local_lid),
                    ..*source
                };
                Mad::Lap(lap(side, tid, swap.pair(pair), known.kind), source)
            }
            Mad::Apr(_, status) => Mad::Apr(tid, *status),
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
    pub(super) path: Pair,
    pub(super) alternate: Option<Pair>,
    /// The module is there.
    pub(super) loaded: bool,
    /// It has not been told that the connection is established.
    pub(super) is_new: bool,
    pub(super) moved: bool,
    pub(super) untold: bool,
    seek: bool,
    /// The last nudge.
    pub(super) nudge: Nudge,
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
    pub(super) hw: Hardware,
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

impl Wired for World {
    fn hw(&mut self) -> &mut Hardware {
        &mut self.hw
    }

    // Whether and when IB_EVENT_PATH_MIG follows is another matter.
    fn migrated(&mut self, _side: usize, _by_peer: bool) {}

    fn died(&mut self, _side: usize) {
        self.wrong = Some("a connection has died");
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
        };
        Self {
            hw: Hardware::new(),
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
        let [a, b] = &self.hw.qp;
        let works = |pair: Pair| self.hw.works(pair) && pair[side] != port;
        let armed = self.hw.is_armed() && !self.is_offering();
        a.used == b.used && (works(a.used) || armed && a.alt.is_some_and(works))
    }

    // --- the module ---

    pub(super) fn post(&mut self, from: usize, mad: Mad) {
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

    pub(super) fn post_lap(&mut self, side: usize, tid: u64, pair: Pair, kind: Kind) {
        let used = full(side, self.end[side].path);
        let source = Source {
            lid: used.slid,
            local_lid: used.dlid,
            gid: None,
        };
        let lap = lap(side, tid, pair, kind);
        if self.hw.works(self.end[side].path) {
            self.post(side, Mad::Lap(lap, source));
        }
    }

    /// `attend` of `rust/rdma/attend.rs`.
    pub(super) fn attend(&mut self, side: usize, news: News) {
        if !self.end[side].loaded {
            return;
        }
        if self.hw.qp[side].dead {
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
        let now = self.hw.qp[side].mig;
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
        let up = |pair: Pair| self.hw.up[side][pair[side] as usize];
        end.alternate
            .is_some_and(|alternate| !up(end.path) && up(alternate))
    }

    pub(super) fn happen(&mut self, side: usize, event: state::Event) {
        let mut next = Some(event);
        let mut asked = false;
        while let Some(event) = next.take() {
            let actions = self.apply(side, event);
            let end = &mut self.end[side];
            end.moved |= actions.has(state::Action::FollowCm);
            end.untold |= actions.has(state::Action::TellPeer);
            end.seek |= actions.has(state::Action::Seek);
            if actions.has(state::Action::Force) {
                next = Some(if self.hw.qp[side].mig == PathMigState::Armed {
                    self.migrate(side, false);
                    state::Event::Forced
                } else {
                    state::Event::ForceFailed
                });
            } else if actions.has(state::Action::Sample) && !asked {
                asked = true;
                next = Some(state::Event::Sampled(self.hw.qp[side].mig));
            }
        }
    }

    pub(super) fn apply(&mut self, side: usize, event: state::Event) -> state::Actions {
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

    pub(super) fn after_look(&mut self, side: usize, sampled: Option<PathMigState>) {
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
    pub(super) fn rearm(&mut self, side: usize, event: Event) {
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
                Action::Search { .. } => Some(self.hw.search(self.end[ACTIVE].path)),
                Action::Send { tid, alternate } => {
                    self.post_lap(side, tid, pair_of(&alternate), Kind::Ordinary);
                    None
                }
                Action::Load(alternate) => Some(Event::Loaded(self.load(side, &alternate))),
                Action::Sample => {
                    let mig = self.hw.qp[side].mig;
                    self.happen(side, state::Event::Sampled(mig));
                    Some(Event::Sampled(mig))
                }
            };
        }
    }

    fn load(&mut self, side: usize, alternate: &Alternate) -> bool {
        let pair = pair_of(alternate);
        if core::mem::take(&mut self.refuse) {
            return false;
        }
        if self.end[PASSIVE].loaded && !self.hw.passive_has(pair) {
            self.wrong = Some("the active side loads what the passive side does not have");
        }
        self.hw.load(side, pair);
        self.end[side].alternate = Some(pair);
        true
    }

    /// A port dies, or is back.
    pub(super) fn set_port(&mut self, side: usize, port: u32, up: bool) {
        self.hw.up[side][port as usize] = up;
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
        self.end[side].loaded = false;
    }
}
