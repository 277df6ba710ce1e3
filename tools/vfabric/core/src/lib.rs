// SPDX-License-Identifier: GPL-2.0-only

//! Host build of the fabric's pure part.
//!
//! `model/` is compiled twice from the same files: here, for `cargo test`, and in `vfabric.rs` for
//! the kernel. Each of the two roots brings its own [`mem`], the allocation layer that `model/` is
//! written against.

pub mod mem;
pub mod model;
