// SPDX-License-Identifier: GPL-2.0-only

//! The RC queue pair: two of them, and a network that does what a test tells it.

mod apm;
mod errors;
mod junk;
mod loss;
mod migration;
mod ops;
mod packets;
mod random;
mod reads;
mod rnr;
mod states;
mod support;
mod timers;
mod work;
