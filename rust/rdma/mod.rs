// SPDX-License-Identifier: GPL-2.0-only

//! What touches the kernel. All `unsafe` is here, and only here are the bindings named.
//!
//! From the bottom:
//!
//! * `name`, `sync`, `work`, `stats`, `params`; `hook`, `gid`, `path`, `qp`, `cm`, `mad`, `sa`;
//! * `facts`, `device`; `nudge`, `room`, `slots`; `inbox`, `conn`, `table`, `pacer`;
//! * `lookup`, `resolve`, `requests`; `events`, `handlers`, `older`;
//! * what is done for a connection: `attend` first of all, and `follow`, `rearm`, `lap`, `failback`;
//! * what comes from outside: `connect`, `accept`, `cm_events`, `recv`; `entry`, `entry_qp`;
//! * `service`, which starts and stops it all, and `show`.

mod accept;
mod attend;
pub(crate) mod bindings;
mod cm;
mod cm_events;
mod conn;
mod connect;
mod device;
mod entry;
mod entry_qp;
mod events;
mod facts;
mod failback;
mod follow;
mod gid;
mod handlers;
mod hook;
mod inbox;
mod lap;
mod lookup;
mod mad;
mod name;
mod nudge;
mod older;
mod pacer;
mod params;
mod path;
mod qp;
mod rearm;
mod recv;
mod requests;
mod resolve;
mod room;
mod sa;
mod service;
mod show;
mod slots;
mod stats;
mod sync;
mod table;
mod work;

pub(crate) use service::Running;
