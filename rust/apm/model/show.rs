// SPDX-License-Identifier: GPL-2.0-only

//! A state of the model, to be read in a counterexample.

use super::super::testbed::{ACTIVE, PASSIVE};
use super::ends::{Mad, Nudge, World};
use std::fmt;

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, side) in [("active ", ACTIVE), ("passive", PASSIVE)] {
            let (qp, end) = (&self.hw.qp[side], &self.end[side]);
            let down: Vec<u32> = [1, 2]
                .into_iter()
                .filter(|p| !self.hw.up[side][*p as usize])
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
            writeln!(
                f,
                "  down {down:?}{}",
                if end.nudge == Nudge::None {
                    ""
                } else {
                    "  nudge"
                }
            )?;
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
