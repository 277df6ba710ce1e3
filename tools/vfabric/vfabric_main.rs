// SPDX-License-Identifier: GPL-2.0

//! A software InfiniBand fabric.

use kernel::prelude::*;

mod shell;

/// The allocation layer that `model` is written against (see `core/src/mem.rs`).
mod mem {
    pub(crate) use kernel::alloc::flags::{GFP_ATOMIC, GFP_KERNEL};
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

struct Vfabric;

impl kernel::Module for Vfabric {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let mut l = shell::bindings::vf_layout::default();
        // SAFETY: `l` is valid for writing.
        unsafe { shell::bindings::vf_layout(&mut l) };
        pr_info!("loaded {}\n", l.ib_device);
        Ok(Vfabric)
    }
}
