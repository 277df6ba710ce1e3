// SPDX-License-Identifier: GPL-2.0-only

//! The kernel's side of the fabric: verbs, threads, files.
//!
//! `engine` says how it works and in which order locks are taken.

mod attr;
pub(crate) mod bindings;
mod cq;
mod debugfs;
mod device;
mod engine;
mod event;
mod hca;
mod knobs;
mod life;
mod log;
mod mad;
mod modify;
mod mr;
mod pd;
mod post;
mod qp;
mod query;
mod rc_host;
mod region;
mod srq;
mod state;
mod tables;
mod ud;
mod wq;

use crate::model::fabric::Fabric;
use crate::model::topology::Topology;
use kernel::ffi::c_char;
use kernel::prelude::*;
use kernel::sync::Arc;

/// A fabric with its devices. Fields are dropped in this order: no commands, then no devices, then
/// no engine.
pub(crate) struct Shell {
    _files: Pin<KBox<debugfs::Files>>,
    _devices: Arc<device::Devices>,
    _engine: engine::Engine,
}

impl Shell {
    /// Builds the fabric that the `topology` parameter names and registers its HCAs, set as `knobs` says.
    pub(crate) fn new(module: &'static ThisModule) -> Result<Self> {
        check_layout()?;
        let topology = topology()?;
        let state = state::State::new(Fabric::new(&topology)?)?;
        let shared = engine::Shared::new(state)?;
        knobs::from_parameter(&shared)?;
        let engine = engine::Engine::start(shared.clone())?;
        let devices = Arc::pin_init(device::Devices::new(shared.clone()), GFP_KERNEL)?;
        devices.add_all(module)?;
        let files = debugfs::Files::new(&shared, &devices)?;
        Ok(Self {
            _files: files,
            _devices: devices,
            _engine: engine,
        })
    }
}

/// bindgen's clang and the kernel's compiler must see the same structures.
fn check_layout() -> Result {
    let mut l = bindings::vf_layout::default();
    // SAFETY: `l` is valid for writing.
    unsafe { bindings::vf_layout(&mut l) };
    if l.ib_device == core::mem::size_of::<bindings::ib_device>()
        && l.ib_qp == core::mem::size_of::<bindings::ib_qp>()
    {
        return Ok(());
    }
    pr_err!("the bindings do not fit this kernel's RDMA headers\n");
    Err(EINVAL)
}

/// The text of a module parameter, as C keeps it; `None` where it was not given.
///
/// # Safety
///
/// `given` is null, or a string that lives as long as the module.
unsafe fn parameter(name: &str, given: *const c_char) -> Result<Option<&'static str>> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: By the function's contract.
    let text = unsafe { CStr::from_char_ptr(given) };
    text.to_str().map(Some).map_err(|_| {
        pr_err!("{}: not text\n", name);
        EINVAL
    })
}

fn topology() -> Result<Topology> {
    // SAFETY: The parameter is freed with the module.
    let given = unsafe { parameter("topology", bindings::vf_topology()) }?.unwrap_or("rails");
    let text = Topology::named(given.trim()).unwrap_or(given);
    Topology::parse(text).map_err(|e| {
        pr_err!("topology: line {}: {}\n", e.line, e.what.as_str());
        EINVAL
    })
}
