// SPDX-License-Identifier: GPL-2.0-only

//! A connection in every state that it can get into, within bounds.
//!
//! Both ends are the real transition functions ([`super::state`], [`super::rearm`], [`super::lap`]). All that
//! happens may happen at any time and in any order: messages arrive in any order, late, twice or not at all;
//! timers fire early or late; ports die and come back; events of ports and of migrations come late, more than
//! once or not at all (that of a migration before the QP was ever seen armed does come); nudges complete at
//! any time; the module is unloaded at one end; a third node sends LAPs. What is bounded is how often
//! ([`Bounds`]), and the messages on their way in one direction. Time is abstract, and of the paths that have
//! failed only the last is remembered, see [`super::rearm::canon`].

mod ends;
mod laps;
mod moment;
mod show;

use super::state::{PathMigState, State};
use ends::World;
use moment::{Happens, Moment, Ways};
use stateright::{Checker, Model, Property};

/// How often what happens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Bounds {
    /// A port dies.
    cuts: u8,
    /// A message is lost.
    losses: u8,
    /// A message arrives twice.
    doubles: u8,
    /// An HCA refuses to load an alternate.
    refusals: u8,
    /// The module goes at one end.
    unloads: u8,
    /// A third node sends a LAP.
    forgeries: u8,
}

/// Of something that may happen any number of times.
const ANY: u8 = u8::MAX;

/// One time less.
fn take(left: &mut u8) {
    if *left != ANY {
        *left -= 1;
    }
}

/// The model.
struct Connection {
    slot: [bool; 2],
    bounds: Bounds,
    ways: Ways,
}

impl Model for Connection {
    type State = Moment;
    type Action = Happens;

    fn init_states(&self) -> Vec<Moment> {
        vec![Moment {
            world: World::new(self.slot),
            left: self.bounds.clone(),
        }
        .canonical()]
    }

    fn actions(&self, state: &Moment, actions: &mut Vec<Happens>) {
        if state.world.wrong.is_none() {
            state.possible(actions);
        }
    }

    fn next_state(&self, last: &Moment, action: Happens) -> Option<Moment> {
        let mut next = last.clone();
        next.happen(action);
        let next = next.canonical();
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing goes wrong", |_, s: &Moment| {
                s.world.wrong.is_none()
            }),
            Property::always(
                "armed at both ends is armed with each other",
                |_, s: &Moment| {
                    let armed = s.world.hw.qp.iter().all(|qp| qp.mig == PathMigState::Armed);
                    !armed || s.world.hw.is_armed() || s.world.is_replacing()
                },
            ),
            Property::always("what is shown as Armed is not in REARM", |_, s: &Moment| {
                let ends = s.world.end.iter().zip(&s.world.hw.qp);
                let mut shown = ends.filter(|(end, _)| end.state == State::Armed);
                shown.all(|(_, qp)| qp.mig != PathMigState::Rearm)
            }),
            Property::always(
                "it is armed again, by few messages",
                |m: &Self, s: &Moment| {
                    let whole = s.world.end.iter().all(|end| end.loaded);
                    s.world.wrong.is_some() || !whole || s.recovers(&m.ways, false).is_ok()
                },
            ),
        ]
    }
}

/// Checks all that can come within the bounds, and of so many steps where there is such a number; and says how
/// much that was.
fn check(name: &str, slot: [bool; 2], bounds: Bounds, steps: Option<usize>) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let ways = Ways::default();
    let model = Connection { slot, bounds, ways };
    let mut checker = model.checker().threads(threads);
    if let Some(steps) = steps {
        checker = checker.target_max_depth(deeper(steps));
    }
    let checker = checker.spawn_bfs().join();
    println!(
        "model: {name}: {} states, {} {} steps",
        checker.unique_state_count(),
        if steps.is_some() { "within" } else { "all, in" },
        checker.max_depth()
    );
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        let last = path.last_state().clone();
        for (n, (moment, action)) in path.into_vec().into_iter().enumerate() {
            eprint!("{}", moment.world);
            if let Some(action) = action {
                eprintln!("{n}. {action:?}");
            }
        }
        panic!("{property}: {:?}", last.recovers(&Ways::default(), true));
    }
}

/// `MODEL_STEPS=N` in the environment: so many more.
fn deeper(steps: usize) -> usize {
    let more = std::env::var("MODEL_STEPS").ok();
    steps + more.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Everything that can come of one dead port, with any number of messages lost and doubled.
#[test]
fn one_port() {
    let bounds = Bounds {
        cuts: 1,
        losses: ANY,
        doubles: ANY,
        ..Bounds::default()
    };
    check("one port, nudges", [true; 2], bounds.clone(), None);
    check("one port, notices", [false; 2], bounds, None);
}

#[test]
fn ports_and_messages() {
    let bounds = Bounds {
        cuts: 3,
        losses: ANY,
        doubles: ANY,
        ..Bounds::default()
    };
    check("nudges", [true; 2], bounds.clone(), Some(13));
    check("notices", [false; 2], bounds, Some(13));
}

#[test]
fn one_end_goes() {
    let bounds = Bounds {
        cuts: 2,
        unloads: 1,
        ..Bounds::default()
    };
    check("unload", [true, false], bounds, Some(13));
}

#[test]
fn refusals_and_forgeries() {
    let bounds = Bounds {
        cuts: 2,
        refusals: 1,
        forgeries: ANY,
        ..Bounds::default()
    };
    check("refusals and forgeries", [true; 2], bounds, Some(13));
}
