// SPDX-License-Identifier: GPL-2.0-only

//! What the module decides, without doing any of it.
//!
//! * [`state`]: the life of a connection, one transition function;
//! * [`rearm`]: how its active side gets another alternate, after a migration or without one;
//! * [`lap`]: what the passive side makes of that;
//! * [`failback`]: when a connection returns to the path that it began with;
//! * [`timers`]: how long an HCA tries before it gives a path up;
//! * [`reason`]: why a connection is not protected, in the words shown everywhere;
//! * [`policy`]: which connections are served at all;
//! * [`search`]: which alternate path a connection gets, as questions to subnet administration;
//!   [`lids`] does that between two ports with several LIDs, [`route`] follows a path through the
//!   switches;
//! * [`slots`]: how much room for nudges is reserved, and whose it is;
//! * [`stats`]: the counters and their names.
//!
//! `core` only: no `unsafe`, no bindings, no locks, no clock. Queries, QP changes and timers are
//! actions that `rust/rdma` carries out.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![forbid(unsafe_code)]

pub(crate) mod failback;
pub(crate) mod lap;
pub(crate) mod lids;
pub(crate) mod path;
pub(crate) mod policy;
mod ports;
pub(crate) mod rearm;
pub(crate) mod reason;
pub(crate) mod route;
pub(crate) mod search;
pub(crate) mod slots;
pub(crate) mod state;
pub(crate) mod stats;
pub(crate) mod timers;
pub(crate) mod wishes;

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod model;

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod testbed;
