// SPDX-License-Identifier: GPL-2.0-only

//! What an end makes of a LAP, as `rust/rdma/lap.rs` does it, and LAPs that are not the machine's.

use super::super::lap::history::Seen;
use super::super::lap::{self as judgement, Source, Verdict};
use super::super::path::{FullPath, LocalPort};
use super::super::rearm::Event;
use super::super::state;
use super::super::testbed::{full, lap, port_of, Pair, ACTIVE, PASSIVE};
use super::ends::{Mad, News, World};
use crate::wire::cm::lap::{Kind, Lap, Status};

/// NodeGUIDs.
const NODES: [u64; 2] = [5, 6];
/// The third node, and its LID.
const STRANGER: u64 = 7;
const STRANGERS_LID: u16 = 99;

impl World {
    /// A third node offers its own port, or names one of the peer's.
    pub(super) fn forge(&mut self, own: bool) {
        let mut lap = lap(ACTIVE, 1 << 50, [2, 2], Kind::Ordinary);
        if own {
            lap.alternate.local_lid = STRANGERS_LID;
        }
        let source = Source {
            lid: STRANGERS_LID,
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

    pub(super) fn lap(&mut self, side: usize, lap: &Lap, source: &Source) {
        if source.is_on(&full(side, self.end[side].path)) {
            self.rearm(side, Event::PeerSeen);
        }
        let from_peer = source.lid != STRANGERS_LID;
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
            let verdict = judgement::judge(lap, source, &self.facts(side, lap, source));
            let refused = matches!(verdict, Verdict::Answer(Status::REJECTED) | Verdict::Drop);
            if source.lid == STRANGERS_LID && !refused {
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
                    let pair = [port_of(path.dlid), path.port];
                    self.hw.load(side, pair);
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

    fn facts(&self, side: usize, lap: &Lap, source: &Source) -> judgement::Facts {
        let (end, qp) = (&self.end[side], &self.hw.qp[side]);
        let path = FullPath::from_peer(&lap.alternate);
        let port = port_of(path.slid);
        let node_of = |lid: u16| match lid {
            STRANGERS_LID => STRANGER,
            _ => NODES[1 - side],
        };
        judgement::Facts {
            connection: Some(judgement::Connection {
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
                active: self.hw.up[side][port as usize],
                has_pkey: true,
            }),
            source: judgement::Port::Of {
                node: node_of(source.lid),
                lid: source.lid,
            },
            far: judgement::Port::Of {
                node: node_of(path.dlid),
                lid: path.dlid,
            },
            far_lid: judgement::Port::NotAsked,
        }
    }

    /// The passive side says that its port of the alternate is down.
    pub(super) fn wish(&mut self) {
        if let Some(pair) = self.end[PASSIVE].alternate {
            self.post_lap(PASSIVE, (1 << 33) + 1, pair, Kind::DeadStandby);
        }
    }

    pub(super) fn may_wish(&self) -> bool {
        let end = &self.end[PASSIVE];
        let down = |pair: Pair| !self.hw.up[PASSIVE][pair[PASSIVE] as usize];
        let said = self
            .wire
            .iter()
            .any(|(to, mad)| *to == ACTIVE && mad.is_lap());
        end.loaded && end.state.may_migrate() && end.alternate.is_some_and(down) && !said
    }
}
