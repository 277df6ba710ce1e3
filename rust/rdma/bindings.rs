// SPDX-License-Identifier: GPL-2.0-only

//! Bindings of the RDMA headers, generated at build time (see `scripts/Makefile.bindgen`).
//!
//! Nobody outside `rust/rdma` names this module.

#![allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code,
    unsafe_op_in_unsafe_fn,
    improper_ctypes,
    unreachable_pub,
    clippy::all,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ptr_cast_constness,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    clippy::unnecessary_safety_comment
)]

use kernel::bindings::*;

include!(concat!(env!("BINDGEN_OUT"), "/rust/bindings_generated.rs"));
