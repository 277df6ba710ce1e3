// SPDX-License-Identifier: GPL-2.0-only

//! What has happened to a connection since it was last attended to: noted in any order, by anybody in
//! process context, and taken all at once.
//!
//! Room is bounded: what a peer, or somebody who claims to be it, can send in the meantime does not
//! pile up. What finds no room is lost like any MAD, and sent again by a peer that means it.
//!
//! Locks: `Inbox`, a leaf.

use super::lap::Arrived;
use super::stats;
use crate::apm::stats::Stat;
use crate::wire::cm::lap::{Apr, Mra};
use kernel::prelude::*;

/// Messages kept.
const MESSAGES: usize = 4;

/// A message of the peer's CM.
pub(crate) enum Message {
    /// It has sent its REP again.
    Rep,
    /// An answer to a LAP.
    Apr(Apr),
    /// A LAP.
    Lap(Arrived),
    /// The answer to a LAP takes longer.
    Mra(Mra),
}

/// What has happened.
#[derive(Default)]
pub(crate) struct News {
    /// IB_EVENT_PATH_MIG.
    pub(crate) path_mig: bool,
    /// IB_EVENT_PATH_MIG_ERR.
    pub(crate) path_mig_err: bool,
    /// A port or the subnet has changed.
    pub(crate) kick: bool,
    /// An operator wants it to return to its first path.
    pub(crate) failback: bool,
    messages: KVec<Message>,
}

impl News {
    /// None.
    pub(crate) const fn none() -> Self {
        Self {
            path_mig: false,
            path_mig_err: false,
            kick: false,
            failback: false,
            messages: KVec::new(),
        }
    }

    /// Adds a message, where there is room. Of LAPs that may be forged there is one at a time.
    pub(crate) fn add(&mut self, message: Message) {
        let stranger = |m: &Message| matches!(m, Message::Lap(lap) if !lap.from_peer);
        let full = stranger(&message) && self.messages.iter().any(stranger);
        if full {
            stats::count(Stat::LapsLimited);
        } else if self.messages.len() < MESSAGES {
            let _ = self.messages.push(message, GFP_KERNEL);
        }
    }

    /// The messages, in the order in which they came.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Message> {
        self.messages.iter()
    }
}
