// SPDX-License-Identifier: GPL-2.0-only

//! `/sys/kernel/debug/vfabric/`: commands, and what the fabric is like.
//!
//! | file | what |
//! |---|---|
//! | `control` | write one command: those of the fabric (`model/fabric/control.rs`), `knob` and `remove NODE` |
//! | `ports` | a line for each port |
//! | `qps` | a line for each RC queue pair |
//! | `migrations` | counts by cause, in all and for each HCA |
//! | `mads` | what `mad log` keeps |
//! | `knobs` | how each HCA is set; `knob NODE NAME=VALUE …` in `control` changes it, `all` means every HCA |

use super::device::Devices;
use super::engine::Shared;
use super::knobs;
use super::log::name;
use super::modify;
use super::qp::{Kind, Qp};
use super::state::State;
use super::tables::{HcaState, Migrations};
use crate::model::fabric::{Control, Fabric};
use crate::model::rc::MigState;
use kernel::debugfs::{Dir, File};
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::uaccess::UserSliceReader;

/// Longest command.
const MAX_COMMAND: usize = 256;

/// What `control` works on.
pub(crate) struct Controlled {
    shared: Arc<Shared>,
    devices: Arc<Devices>,
}

/// The files; they are removed when this is dropped.
#[pin_data]
pub(crate) struct Files {
    #[pin]
    control: File<Controlled>,
    #[pin]
    ports: File<Arc<Shared>>,
    #[pin]
    qps: File<Arc<Shared>>,
    #[pin]
    migrations: File<Arc<Shared>>,
    #[pin]
    mads: File<Arc<Shared>>,
    #[pin]
    knobs: File<Arc<Shared>>,
    dir: Dir,
}

impl Files {
    /// Makes the files.
    pub(crate) fn new(shared: &Arc<Shared>, devices: &Arc<Devices>) -> Result<Pin<KBox<Self>>> {
        let dir = Dir::new(c"vfabric");
        let controlled = Controlled {
            shared: shared.clone(),
            devices: devices.clone(),
        };
        KBox::pin_init(
            try_pin_init!(Self {
                control <- dir.write_callback_file(c"control", controlled, &control),
                ports <- dir.read_callback_file(c"ports", shared.clone(), &ports),
                qps <- dir.read_callback_file(c"qps", shared.clone(), &qps),
                migrations <- dir.read_callback_file(c"migrations", shared.clone(), &migrations),
                mads <- dir.read_callback_file(c"mads", shared.clone(), &mads),
                knobs <- dir.read_callback_file(c"knobs", shared.clone(), &show_knobs),
                dir: dir.clone(),
            }? Error),
            GFP_KERNEL,
        )
    }
}

fn control(c: &Controlled, reader: &mut UserSliceReader) -> Result {
    let mut buf = [0u8; MAX_COMMAND];
    let len = reader.len();
    let Some(text) = buf.get_mut(..len) else {
        pr_err!("control: a command has at most {} bytes\n", MAX_COMMAND);
        return Err(EINVAL);
    };
    reader.read_slice(text)?;
    let Ok(line) = core::str::from_utf8(text) else {
        pr_err!("control: not text\n");
        return Err(EINVAL);
    };
    let line = line.trim();
    if let Some(node) = line.strip_prefix("remove ") {
        return remove(c, node.trim());
    }
    if let Some(rest) = line.strip_prefix("knob ") {
        return knobs::set(&c.shared, rest.trim());
    }
    let mut st = c.shared.lock();
    let done = st.fabric.control(line, super::state::now());
    let ret = match done {
        Ok(command) => {
            pr_info!("{}\n", Done(&st.fabric, command));
            if let Control::Join(at) = command {
                st.joined(at);
            }
            Ok(())
        }
        Err(e) => {
            pr_err!("control: {}: {}\n", line, e.as_str());
            Err(EINVAL)
        }
    };
    drop(st);
    c.shared.kick();
    ret
}

/// A command that has been carried out, for the log.
struct Done<'a>(&'a Fabric, Control);

impl kernel::fmt::Display for Done<'_> {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.write_control(f, self.1)
    }
}

fn remove(c: &Controlled, node: &str) -> Result {
    let found = c.shared.lock().fabric.find(node).map(|n| n.id);
    let Some(id) = found else {
        pr_err!("control: remove {}: no such node\n", node);
        return Err(EINVAL);
    };
    match c.devices.remove(id) {
        Ok(()) => {
            pr_info!("remove {}\n", node);
            Ok(())
        }
        Err(_) => {
            pr_err!("control: remove {}: no device\n", node);
            Err(EINVAL)
        }
    }
}

fn ports(shared: &Arc<Shared>, f: &mut kernel::fmt::Formatter<'_>) -> core::fmt::Result {
    shared.lock().fabric.write_ports(f)
}

fn mads(shared: &Arc<Shared>, f: &mut kernel::fmt::Formatter<'_>) -> core::fmt::Result {
    shared.lock().fabric.write_mads(f)
}

fn qps(shared: &Arc<Shared>, f: &mut kernel::fmt::Formatter<'_>) -> core::fmt::Result {
    let st = shared.lock();
    for h in st.hcas() {
        for qp in h.qps().filter(|qp| qp.kind == Kind::Rc) {
            qp_line(&st, h, qp, f)?;
        }
    }
    Ok(())
}

fn qp_line(
    st: &State,
    h: &HcaState,
    qp: &Qp,
    f: &mut kernel::fmt::Formatter<'_>,
) -> core::fmt::Result {
    let Some(rc) = qp.rc(st) else {
        return Ok(());
    };
    let a = rc.query();
    let (path, alt) = rc.paths();
    let port = path.map_or(0, |p| p.port);
    let slid = st
        .fabric
        .port(h.node, port)
        .map_or(0, |p| p.lid | u16::from(path.map_or(0, |q| q.path_bits)));
    let mig = match a.mig {
        MigState::Migrated => "MIGRATED",
        MigState::Rearm => "REARM",
        MigState::Armed => "ARMED",
    };
    write!(
        f,
        "dev={} qpn={:#x} state={} port={} slid={} dlid={} dqpn={:#x} mig={}",
        name(st, h.node),
        qp.qpn,
        modify::state_name(rc.state()),
        port,
        slid,
        path.map_or(0, |p| p.dlid),
        a.dest_qpn,
        mig,
    )?;
    let (alt_port, alt_dlid) = alt.map_or((0, 0), |p| (p.port, p.dlid));
    let sq = qp.sq.lock().len();
    let rq = qp.rq.lock().len();
    writeln!(
        f,
        " alt_port={} alt_dlid={} migrations={} retries={} sq={} rq={}",
        alt_port,
        alt_dlid,
        qp.attr(st).migrations,
        rc.counters().retries,
        sq,
        rq,
    )
}

fn show_knobs(shared: &Arc<Shared>, f: &mut kernel::fmt::Formatter<'_>) -> core::fmt::Result {
    let st = shared.lock();
    for h in st.hcas() {
        writeln!(f, "dev={} {}", name(&st, h.node), h.knobs)?;
    }
    Ok(())
}

fn migrations(shared: &Arc<Shared>, f: &mut kernel::fmt::Formatter<'_>) -> core::fmt::Result {
    let st = shared.lock();
    let mut sum = Migrations::default();
    for h in st.hcas() {
        let m = &h.migrations;
        sum.exhaustion = sum.exhaustion.wrapping_add(m.exhaustion);
        sum.peer = sum.peer.wrapping_add(m.peer);
        sum.command = sum.command.wrapping_add(m.command);
    }
    count_line(f, &sum)?;
    for h in st.hcas() {
        write!(f, "dev={} ", name(&st, h.node))?;
        count_line(f, &h.migrations)?;
    }
    Ok(())
}

fn count_line(f: &mut kernel::fmt::Formatter<'_>, m: &Migrations) -> core::fmt::Result {
    let total = m.exhaustion.wrapping_add(m.peer).wrapping_add(m.command);
    writeln!(
        f,
        "total={} by_exhaustion={} by_peer={} by_command={}",
        total, m.exhaustion, m.peer, m.command
    )
}
