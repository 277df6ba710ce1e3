// SPDX-License-Identifier: GPL-2.0-only

//! Runs the unit and property tests of `rust/apm` and `rust/wire` on the host.

// What only the kernel side calls is unused here.
#![allow(dead_code)]

#[path = "../../../rust/apm/mod.rs"]
mod apm;
#[path = "../../../rust/wire/mod.rs"]
mod wire;
