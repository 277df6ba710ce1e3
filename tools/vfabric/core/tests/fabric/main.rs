// SPDX-License-Identifier: GPL-2.0-only

//! Host tests of the fabric: a subnet manager of their own sweeps it, then packets cross it and links
//! break. Everything goes through the public interface, as the kernel module uses it.

mod agents;
mod cables;
mod counters;
mod data;
mod directed;
mod faults;
mod grh;
mod madrules;
mod net;
mod portinfo;
mod random;
mod sm;
mod sweep;
mod topology;
mod traps;
