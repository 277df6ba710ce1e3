// SPDX-License-Identifier: GPL-2.0

//! The kernel's side of the fabric.

pub(crate) mod bindings;
