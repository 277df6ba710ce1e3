// SPDX-License-Identifier: GPL-2.0-only

//! The life of a connection beside that of a QP.

use super::*;
use proptest::prelude::*;

/// A QP, and what is told of it.
#[derive(Debug)]
struct Qp {
    mig: PathMigState,
    migrations: usize,
    /// IB_EVENT_PATH_MIG not yet delivered.
    pending: usize,
}

impl Qp {
    fn migrate(&mut self, events: usize) {
        if self.mig == PathMigState::Armed {
            self.mig = PathMigState::Migrated;
            self.migrations += 1;
            self.pending += events;
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Happens {
    /// A packet with MigReq = 0.
    Traffic,
    /// The HCA migrates by itself.
    Exhausted,
    /// It is told to; with this number of events.
    Command(usize),
    /// An event is delivered.
    Deliver,
    Look,
    Seek,
    Offer,
    Rearm,
    Fail,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        Just(Happens::Traffic),
        Just(Happens::Exhausted),
        (0usize..3).prop_map(Happens::Command),
        Just(Happens::Deliver),
        Just(Happens::Look),
        Just(Happens::Seek),
        Just(Happens::Offer),
        Just(Happens::Rearm),
        Just(Happens::Fail),
    ]
}

proptest! {
    /// Against a QP: each of its migrations is acted on exactly once, whoever caused it and however
    /// often it is reported, and what is shown as armed was.
    #[test]
    fn each_migration_counts_once(
        script in prop::collection::vec(happens(), 0..60),
    ) {
        let mut qp = Qp { mig: PathMigState::Rearm, migrations: 0, pending: 0 };
        let mut state = State::Arming(Load::Done);
        let mut counted = 0;
        let mut apply = |state: &mut State, event| {
            let (next, todo) = step(*state, event);
            *state = next;
            counted += usize::from(todo.has(Action::FollowCm));
            todo
        };
        for what in script.into_iter().chain([Happens::Look]) {
            match what {
                Happens::Traffic => {
                    if qp.mig == PathMigState::Rearm {
                        qp.mig = PathMigState::Armed;
                    }
                }
                Happens::Exhausted => qp.migrate(1),
                Happens::Command(events) => {
                    let mut todo = apply(&mut state, Event::Force);
                    if todo.has(Action::Sample) {
                        apply(&mut state, Event::Sampled(qp.mig));
                        if state == State::Armed {
                            todo = apply(&mut state, Event::Force);
                        }
                    }
                    if todo.has(Action::Force) {
                        // From REARM that would be an error of ours.
                        let known_loaded = matches!(
                            state,
                            State::Offered(Before::Loaded) | State::Resolving(Before::Loaded)
                        );
                        prop_assert!(qp.mig != PathMigState::Rearm || known_loaded);
                        if qp.mig == PathMigState::Armed {
                            qp.migrate(events);
                            apply(&mut state, Event::Forced);
                        } else if apply(&mut state, Event::ForceFailed).has(Action::Sample) {
                            apply(&mut state, Event::Sampled(qp.mig));
                        }
                    }
                }
                Happens::Deliver => {
                    if qp.pending > 0 {
                        qp.pending -= 1;
                        // An event that the QP's state contradicts is taken for a look.
                        let event = match qp.mig {
                            PathMigState::Migrated => Event::PathMig,
                            mig => Event::Sampled(mig),
                        };
                        apply(&mut state, event);
                    }
                }
                Happens::Look => {
                    apply(&mut state, Event::Sampled(qp.mig));
                }
                Happens::Seek => {
                    apply(&mut state, Event::Seek);
                }
                Happens::Offer => {
                    if !matches!(state, State::Unprotected(_)) {
                        apply(&mut state, Event::Offer);
                    }
                }
                Happens::Rearm => {
                    // Under the connection's mutex: look first, then load.
                    apply(&mut state, Event::Sampled(qp.mig));
                    qp.mig = PathMigState::Rearm;
                    apply(&mut state, Event::Rearmed);
                }
                Happens::Fail => {
                    apply(&mut state, Event::NotRearmed(Reason::PeerTimeout));
                }
            }
            if state == State::Armed && !matches!(what, Happens::Exhausted) {
                // Nothing happened unseen but what the HCA did since.
                prop_assert!(qp.mig != PathMigState::Rearm);
            }
        }
        prop_assert_eq!(counted, qp.migrations);
        prop_assert!(state.may_migrate() == (qp.mig != PathMigState::Migrated));
    }
}
