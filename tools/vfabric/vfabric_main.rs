// SPDX-License-Identifier: GPL-2.0-only

//! A software InfiniBand fabric: HCAs that the kernel's RDMA users run on, switches and links
//! between them, subnet management agents for OpenSM to find.
//!
//! `model` (in `core/`) is what the fabric does, without a kernel; `shell` is the kernel's side.

use kernel::prelude::*;

mod shell;

/// The allocation layer that `model` is written against (see `core/src/mem.rs`).
mod mem {
    pub(crate) use kernel::alloc::flags::{GFP_ATOMIC, GFP_KERNEL};
    #[allow(unused_imports)]
    pub(crate) use kernel::alloc::{AllocError, Flags, KBox, KVVec, KVec};
}

#[allow(unreachable_pub, dead_code)]
#[path = "core/src/model/mod.rs"]
mod model;

module! {
    type: Vfabric,
    name: "vfabric",
    authors: ["The ib_cm_apm authors"],
    description: "Software InfiniBand fabric: HCAs, switches and links",
    license: "GPL",
}

struct Vfabric {
    _shell: shell::Shell,
}

impl kernel::Module for Vfabric {
    fn init(module: &'static ThisModule) -> Result<Self> {
        Ok(Self {
            _shell: shell::Shell::new(module)?,
        })
    }
}
