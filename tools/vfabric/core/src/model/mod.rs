// SPDX-License-Identifier: GPL-2.0-only

//! What the fabric does, without a kernel: packets, links, switches, subnet management agents,
//! queue pairs and their path migration.
//!
//! No `unsafe`, no bindings, no clock: memory, time and completions belong to whoever hosts this.

pub mod fabric;
pub mod host;
pub mod knobs;
pub mod packet;
pub mod rc;
pub mod topology;
