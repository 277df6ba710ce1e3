// SPDX-License-Identifier: GPL-2.0

//! Automatic Path Migration for the connections of in-kernel RDMA users.

use kernel::prelude::*;

#[path = "rust/rdma/mod.rs"]
mod rdma;

module! {
    type: Apm,
    name: "ib_cm_apm",
    authors: ["The ib_cm_apm authors"],
    description: "InfiniBand Automatic Path Migration for kernel RC connections",
    license: "GPL",
}

struct Apm;

impl kernel::Module for Apm {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        pr_info!("loaded\n");
        Ok(Apm)
    }
}

impl Drop for Apm {
    fn drop(&mut self) {
        // SAFETY: Process context, may sleep.
        unsafe { rdma::bindings::apm_synchronize_rcu_tasks() };
        pr_info!("unloaded\n");
    }
}
