// SPDX-License-Identifier: GPL-2.0

//! What touches the kernel.

pub(crate) mod bindings;
