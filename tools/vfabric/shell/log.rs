// SPDX-License-Identifier: GPL-2.0-only

//! Lines in the kernel's log, limited in number.

use super::bindings;
use super::qp::Qp;
use super::state::State;
use crate::model::fabric::{NodeId, PortEvent};
use crate::model::host::MigrationCause;
use kernel::prelude::*;

fn may_log() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::vf_may_log() }
}

/// Name of a node.
pub(crate) fn name(st: &State, node: NodeId) -> &str {
    st.fabric.node(node).map_or("?", |n| n.name.as_str())
}

fn hca_name(st: &State, hca: usize) -> &str {
    name(st, st.hca_ref(hca).node)
}

/// A request has been tried for the last time.
pub(crate) fn exhausted(st: &State, qp: &Qp) {
    if may_log() {
        pr_info!(
            "{} qp {:#x}: retries exhausted\n",
            hca_name(st, qp.hca),
            qp.qpn
        );
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
            hca_name(st, qp.hca),
            qp.qpn,
            port,
            dlid,
            cause(why)
        );
    }
}

/// A port has lost its link or become active.
pub(crate) fn port_event(st: &State, node: NodeId, port: u8, kind: PortEvent) {
    let what = match kind {
        PortEvent::PortErr => "down",
        PortEvent::PortActive => "active",
        _ => return,
    };
    if may_log() {
        pr_info!("{}/{}: port {}\n", name(st, node), port, what);
    }
}
