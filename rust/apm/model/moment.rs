// SPDX-License-Identifier: GPL-2.0-only

//! A state of the model, what may happen in it, and whether there is a way out of it.

use super::super::reason::Reason;
use super::super::state::{PathMigState, State};
use super::super::testbed::{alternate, pair_of, Swap, Wired, ACTIVE, PASSIVE};
use super::ends::{End, News, Nudge, World};
use super::{take, Bounds};
use dashmap::DashMap;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

const PORTS: [u32; 2] = [1, 2];
/// Steps, and messages, within which a connection is armed again.
const STEPS: usize = 200;
const MESSAGES: u32 = 40;

/// One end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Active = ACTIVE as isize,
    Passive = PASSIVE as isize,
}

impl Side {
    const ALL: [Self; 2] = [Self::Active, Self::Passive];
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Happens {
    /// The end hears that the connection is up.
    Established(Side),
    /// The passive side has repeated its REP.
    RepAgain,
    /// The n-th message arrives.
    Arrives(usize),
    /// It is lost.
    IsLost(usize),
    /// It arrives, and will once more.
    ArrivesTwice(usize),
    /// What the end waits for is due.
    Due(Side),
    /// The end is attended to for no particular reason.
    Look(Side),
    /// Its nudge is acknowledged, and whose completion it is will say so.
    NudgeArrives(Side),
    /// Its nudge completes.
    NudgeCompletes(Side),
    /// It gets IB_EVENT_PATH_MIG.
    PathMig(Side),
    /// It gets the event of a port.
    PortEvent(Side),
    /// Its ULP sends something.
    UlpSends(Side),
    /// A port dies.
    Dies(Side, u32),
    /// A port is back.
    IsBack(Side, u32),
    /// The passive side says that its port of the alternate is dead.
    Wish,
    /// The HCA refuses the next alternate.
    HcaWillRefuse,
    /// The module is unloaded.
    Unload(Side),
    /// A third node sends the passive side a LAP: for a port of its own, or for the peer's.
    Forged { own: bool },
}

/// A state: the connection, and what may yet happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Moment {
    pub(super) world: World,
    pub(super) left: Bounds,
}

impl Moment {
    /// Two moments that will go on alike become equal.
    pub(super) fn canonical(mut self) -> Self {
        let world = &mut self.world;
        world.sent = 0;
        // An answer to what is not asked any more is no different from none.
        let asked = [ACTIVE, PASSIVE].map(|side| world.end[side].rearm.tid());
        world
            .wire
            .retain(|(to, mad)| mad.is_lap() || mad.tid() == asked[*to]);
        let mut tids: BTreeSet<u64> = world.wire.iter().map(|(_, mad)| mad.tid()).collect();
        for end in &world.end {
            tids.insert(end.rearm.tid());
            tids.extend(end.history.latest());
        }
        // Their order is all that matters, for each sender; those are far apart.
        let number = |tid: u64| {
            let mut same = tids.iter().filter(|t| **t >> 32 == tid >> 32);
            let place = same.position(|t| *t == tid)?;
            Some((tid >> 32 << 32) + place as u64)
        };
        // The path that the active side's QP uses is always called (1, 1).
        let swap = Swap(world.hw.qp[ACTIVE].used.map(|port| port != 1));
        world.hw = world.hw.swapped(swap);
        for (to, mad) in &mut world.wire {
            *mad = mad.renamed(1 - *to, number(mad.tid()).unwrap(), swap);
        }
        for end in &mut world.end {
            let tid = number(end.rearm.tid()).unwrap();
            end.rearm.canonical(tid);
            end.rearm
                .relabel(|known| alternate(swap.pair(pair_of(known)), known.disjoint));
            end.history.renumber(number, |lid| swap.lid(lid));
            // Why it is as it is makes no difference.
            match &mut end.state {
                State::Unprotected(reason) | State::Migrated(reason) => *reason = Reason::PortDown,
                _ => {}
            }
            end.path = swap.pair(end.path);
            end.alternate = end.alternate.map(|pair| swap.pair(pair));
        }
        // They arrive in any order.
        world
            .wire
            .sort_by_key(|(to, mad)| (*to, mad.is_lap(), mad.tid()));
        self
    }

    /// What may happen next.
    pub(super) fn possible(&self, actions: &mut Vec<Happens>) {
        let World { end, wire, .. } = &self.world;
        for side in Side::ALL {
            let (at, end) = (side as usize, &end[side as usize]);
            let mut may = |is: bool, what: Happens| is.then(|| actions.push(what));
            may(end.loaded && end.is_new, Happens::Established(side));
            may(self.world.may_be_due(at), Happens::Due(side));
            may(end.loaded, Happens::PortEvent(side));
            let migrated = self.world.hw.qp[at].mig == PathMigState::Migrated;
            may(end.loaded && migrated, Happens::PathMig(side));
            may(end.loaded, Happens::Look(side));
            may(end.loaded && self.left.unloads > 0, Happens::Unload(side));
            may(end.nudge == Nudge::Posted, Happens::NudgeArrives(side));
            may(end.nudge == Nudge::Acked, Happens::NudgeCompletes(side));
            may(true, Happens::UlpSends(side));
            for port in PORTS {
                let up = self.world.hw.up[at][port as usize];
                let lost = self.left.cuts > 0 && self.world.can_lose(at, port);
                may(!up, Happens::IsBack(side, port));
                may(up && lost, Happens::Dies(side, port));
            }
        }
        let mut may = |is: bool, what: Happens| is.then(|| actions.push(what));
        for n in 0..wire.len() {
            may(true, Happens::Arrives(n));
            may(self.left.losses > 0, Happens::IsLost(n));
            may(self.left.doubles > 0, Happens::ArrivesTwice(n));
        }
        may(self.world.may_wish(), Happens::Wish);
        may(
            end[PASSIVE].is_new && !end[ACTIVE].is_new,
            Happens::RepAgain,
        );
        may(
            self.left.refusals > 0 && !self.world.refuse,
            Happens::HcaWillRefuse,
        );
        for own in [true, false] {
            may(self.left.forgeries > 0, Happens::Forged { own });
        }
    }

    /// Lets something happen.
    pub(super) fn happen(&mut self, what: Happens) {
        let Self { world, left } = self;
        let news = News::default;
        match what {
            Happens::Established(side) => world.attend(
                side as usize,
                News {
                    established: true,
                    ..news()
                },
            ),
            Happens::RepAgain => world.rep_again(),
            Happens::Arrives(n) => {
                let (to, mad) = world.wire.remove(n);
                world.attend(to, News::of(mad));
            }
            Happens::IsLost(n) => {
                take(&mut left.losses);
                world.wire.remove(n);
            }
            Happens::ArrivesTwice(n) => {
                take(&mut left.doubles);
                let (to, mad) = world.wire[n].clone();
                world.attend(to, News::of(mad));
            }
            Happens::Due(side) => world.attend(
                side as usize,
                News {
                    due: true,
                    ..news()
                },
            ),
            Happens::Look(side) => world.attend(side as usize, news()),
            Happens::NudgeArrives(side) => world.nudge(side as usize),
            Happens::NudgeCompletes(side) => world.attend(
                side as usize,
                News {
                    nudged: true,
                    ..news()
                },
            ),
            Happens::PathMig(side) => {
                world.attend(
                    side as usize,
                    News {
                        path_mig: true,
                        ..news()
                    },
                );
            }
            Happens::PortEvent(side) => {
                world.attend(
                    side as usize,
                    News {
                        kick: true,
                        ..news()
                    },
                );
            }
            Happens::UlpSends(side) => {
                world.exchange(side as usize);
            }
            Happens::Dies(side, port) => {
                take(&mut left.cuts);
                world.set_port(side as usize, port, false);
            }
            Happens::IsBack(side, port) => world.set_port(side as usize, port, true),
            Happens::Wish => world.wish(),
            Happens::HcaWillRefuse => {
                take(&mut left.refusals);
                world.refuse = true;
            }
            Happens::Unload(side) => {
                take(&mut left.unloads);
                world.unload(side as usize);
            }
            Happens::Forged { own } => {
                take(&mut left.forgeries);
                world.forge(own);
            }
        }
    }

    /// What happens next where nothing goes wrong any more.
    fn good(&self, idle: &mut usize) -> Option<Happens> {
        let World { end, wire, .. } = &self.world;
        let who =
            |is: fn(&End) -> bool| Side::ALL.into_iter().find(|side| is(&end[*side as usize]));
        if let Some(side) = who(|end| end.is_new) {
            return Some(Happens::Established(side));
        }
        // An end that has never seen its QP armed needs the event.
        let unseen = |side: &Side| {
            let (qp, end) = (&self.world.hw.qp[*side as usize], &end[*side as usize]);
            qp.mig == PathMigState::Migrated && end.path != qp.used && end.loaded
        };
        if let Some(side) = Side::ALL.into_iter().find(unseen) {
            return Some(Happens::PathMig(side));
        }
        if !wire.is_empty() {
            return Some(Happens::Arrives(0));
        }
        if let Some(side) = who(|end| end.nudge == Nudge::Posted) {
            return Some(Happens::NudgeArrives(side));
        }
        if let Some(side) = who(|end| end.nudge == Nudge::Acked) {
            return Some(Happens::NudgeCompletes(side));
        }
        if self.world.hw.is_armed() && end.iter().all(|end| end.state == State::Armed) {
            return None;
        }
        *idle += 1;
        Some(match *idle % 4 {
            0 if end[ACTIVE].rearm.deadline().is_some() => Happens::Due(Side::Active),
            2 if end[PASSIVE].rearm.deadline().is_some() => Happens::Due(Side::Passive),
            0 | 1 => Happens::UlpSends(Side::Active),
            _ => Happens::UlpSends(Side::Passive),
        })
    }

    /// Whether the connection is armed again at both ends, with each other, once all ports are up, nothing is
    /// lost and packets flow; or why not. `loud`: say how it goes.
    pub(super) fn recovers(&self, ways: &Ways, loud: bool) -> Result<(), &'static str> {
        let mut moment = self.in_good_times();
        let mut idle = 0;
        let mut way: Vec<(u64, u32)> = Vec::new();
        let mut messages = 0;
        loop {
            if let Some(wrong) = moment.world.wrong {
                return Err(wrong);
            }
            if way.len() > STEPS {
                return Err("it is never armed again");
            }
            let place = place(&moment.world, idle);
            if let Some(known) = ways.get(&place) {
                messages = *known;
                break;
            }
            let Some(what) = moment.good(&mut idle) else {
                break;
            };
            if loud {
                eprintln!("   then {what:?}");
            }
            moment.happen(what);
            way.push((place, moment.world.sent));
            moment = moment.canonical();
            if loud {
                eprint!("{}", moment.world);
            }
        }
        for (_, sent) in way.iter_mut().rev() {
            messages += *sent;
            *sent = messages;
        }
        if messages > MESSAGES {
            return Err("messages without end");
        }
        way.into_iter().for_each(|(place, messages)| {
            ways.insert(place, messages);
        });
        Ok(())
    }

    fn in_good_times(&self) -> Self {
        let mut moment = self.clone();
        for side in Side::ALL {
            for port in PORTS {
                if !moment.world.hw.up[side as usize][port as usize] {
                    moment.happen(Happens::IsBack(side, port));
                }
            }
        }
        moment.world.refuse = false;
        moment.canonical()
    }
}

/// Where good times lead: for what was seen on the way to ARMED ([`place`]), the number of messages that it takes
/// from there.
pub(super) type Ways = DashMap<u64, u32>;

fn place(world: &World, idle: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    (world, idle % 4).hash(&mut hasher);
    hasher.finish()
}
