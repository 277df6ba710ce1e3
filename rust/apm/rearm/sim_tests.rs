// SPDX-License-Identifier: GPL-2.0-only

//! Both ends of a connection against each other: after whatever happened, it is armed again, at both ends
//! and with the same path.

use super::super::state::State;
use super::super::testbed::{Wired, ACTIVE, PASSIVE};
use super::world::World;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Happens {
    Cut(usize, u32, bool),
    Join(usize, u32),
    Traffic(usize),
    Look(usize),
    Time(u64),
}

fn happens() -> impl Strategy<Value = Happens> {
    let port = || (0usize..2, 1u32..3);
    prop_oneof![
        2 => (port(), any::<bool>()).prop_map(|((s, p), noticed)| Happens::Cut(s, p, noticed)),
        2 => port().prop_map(|(s, p)| Happens::Join(s, p)),
        1 => (0usize..2).prop_map(Happens::Traffic),
        1 => (0usize..2).prop_map(Happens::Look),
        2 => (1u64..50).prop_map(Happens::Time),
        2 => (50u64..20_000).prop_map(Happens::Time),
    ]
}

/// Whether a path in use leads nowhere: then traffic would end the connection, and rightly so.
fn traffic_is_safe(world: &World, side: usize) -> bool {
    world.hw.works(world.hw.qp[side].used) && world.hw.qp[0].used == world.hw.qp[1].used
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn armed_in_the_end(
        script in prop::collection::vec(happens(), 0..40),
        fate in prop::collection::vec(any::<u8>(), 0..60),
        slot in [prop::bool::weighted(0.8), prop::bool::weighted(0.8)],
        refusals in 0u8..3,
    ) {
        let mut world = World::new(slot, fate, refusals);
        for what in script {
            match what {
                Happens::Cut(side, port, noticed) => world.cut(side, port, noticed),
                Happens::Join(side, port) => world.join(side, port),
                Happens::Traffic(side) if traffic_is_safe(&world, side) => {
                    world.exchange(side);
                }
                Happens::Traffic(_) => {}
                Happens::Look(side) => world.look(side),
                Happens::Time(ms) => {
                    let until = world.now + ms;
                    world.run(until);
                }
            }
            prop_assert!(!world.hw.qp[0].dead && !world.hw.qp[1].dead);
            for side in [ACTIVE, PASSIVE] {
                prop_assert_eq!(world.end[side].counted, world.migrations[side]);
            }
        }
        for (side, port) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
            world.join(side, port);
        }
        // Idle from here on, unless there is nothing to nudge with. The longest wait is five minutes.
        for _ in 0..40 {
            let until = world.now + 60_000;
            world.run(until);
            for side in [ACTIVE, PASSIVE] {
                if !world.slot[ACTIVE] && traffic_is_safe(&world, side) {
                    world.exchange(side);
                }
            }
        }
        for side in [ACTIVE, PASSIVE] {
            world.look(side);
            let end = &world.end[side];
            prop_assert!(world.hw.is_armed(), "{:?} {:?}", world.hw.qp, end.rearm);
            prop_assert_eq!(end.state, State::Armed);
            prop_assert_eq!(end.counted, world.migrations[side]);
        }
        let [a, b] = world.hw.qp[ACTIVE].used;
        prop_assert_eq!(world.hw.qp[ACTIVE].alt, Some([3 - a, 3 - b]));
    }
}

/// A better alternate is offered while the QP is ARMED with another one.
#[test]
fn the_second_cut_of_a_pair() {
    let mut world = World::new([true; 2], Vec::new(), 0);
    world.run(5_000);
    assert!(world.hw.is_armed());
    world.cut(ACTIVE, 1, true);
    world.run(10_000);
    // The port that is left, to the peer's other port.
    assert!(world.hw.is_armed());
    assert_eq!(world.hw.qp[ACTIVE].alt, Some([2, 1]));
    world.join(ACTIVE, 1);
    world.run(20_000);
    assert_eq!(world.hw.qp[ACTIVE].alt, Some([1, 1]));
    assert!(world.hw.is_armed());
    assert!(world.end.iter().all(|end| end.state == State::Armed));
    world.cut(ACTIVE, 2, true);
    world.run(30_000);
    assert!(world.hw.is_armed());
    assert_eq!(world.end[ACTIVE].counted, 2);
    assert_eq!(world.end[PASSIVE].counted, 2);
}
