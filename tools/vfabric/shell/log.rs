// SPDX-License-Identifier: GPL-2.0

//! Lines in the kernel's log, limited in number.

use super::bindings;
use super::hca::Hca;
use super::qp::Qp;
use super::state::State;
use crate::model::fabric::PortEvent;
use crate::model::host::MigrationCause;
use kernel::prelude::*;

fn may_log() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::vf_may_log() }
}

fn name(st: &State, hca: usize) -> &str {
    st.fabric
        .node(st.hca_ref(hca).node)
        .map_or("?", |n| n.name.as_str())
}

/// A request has been tried for the last time.
pub(crate) fn exhausted(st: &State, qp: &Qp) {
    if may_log() {
        pr_info!("{} qp {:#x}: retries exhausted\n", name(st, qp.hca), qp.qpn);
    }
}

/// The cause of a migration, as in debugfs.
pub(crate) fn cause(cause: MigrationCause) -> &'static str {
    match cause {
        MigrationCause::Exhaustion => "exhaustion",
        MigrationCause::Peer => "peer",
        MigrationCause::Command => "command",
    }
}

/// A queue pair has moved to its alternate path.
pub(crate) fn migrated(st: &State, qp: &Qp, why: MigrationCause, port: u8, dlid: u16) {
    if may_log() {
        pr_info!(
            "{} qp {:#x}: migrated to port {} dlid {} ({})\n",
            name(st, qp.hca),
            qp.qpn,
            port,
            dlid,
            cause(why)
        );
    }
}

/// A port has lost its link or become active.
pub(crate) fn port_event(hca: &Hca, port: u8, kind: PortEvent) {
    let what = match kind {
        PortEvent::PortErr => "down",
        PortEvent::PortActive => "active",
        _ => return,
    };
    if may_log() {
        // SAFETY: The device exists as long as its HCA is in the engine's tables; its name ends
        // with a zero.
        let name = unsafe { CStr::from_char_ptr((*hca.ib()).name.as_ptr()) };
        pr_info!("{name}/{port}: port {what}\n");
    }
}
