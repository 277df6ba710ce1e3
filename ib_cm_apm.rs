// SPDX-License-Identifier: GPL-2.0-only

//! Automatic Path Migration for the connections of in-kernel RDMA users.
//!
//! * `rust/apm` decides, `rust/wire` knows the layouts of management datagrams: `core` only, tested on
//!   the host;
//! * `rust/rdma` touches the kernel.

use kernel::prelude::*;

#[path = "rust/apm/mod.rs"]
mod apm;
#[path = "rust/rdma/mod.rs"]
mod rdma;
#[path = "rust/wire/mod.rs"]
mod wire;

module! {
    type: Apm,
    name: "ib_cm_apm",
    authors: ["The ib_cm_apm authors"],
    description: "InfiniBand Automatic Path Migration for kernel RC connections",
    license: "GPL",
}

struct Apm {
    running: Option<rdma::Running>,
}

impl kernel::Module for Apm {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let running = rdma::Running::new()?;
        pr_info!("loaded\n");
        Ok(Apm {
            running: Some(running),
        })
    }
}

impl Drop for Apm {
    fn drop(&mut self) {
        drop(self.running.take());
        pr_info!("unloaded\n");
    }
}
