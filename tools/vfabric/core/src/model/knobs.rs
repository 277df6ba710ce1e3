// SPDX-License-Identifier: GPL-2.0-only

//! In what HCAs differ from each other: switches of one HCA that a test can set.
//!
//! `knob NODE NAME=VALUE …` sets them (`all` for every HCA); `profile=` sets all of them at once and
//! stands first where others follow.
//!
//! | name | value | meaning |
//! |---|---|---|
//! | `profile` | `plain`, `mlx5` | `plain`: the defaults; `mlx5`: what is known of that family |
//! | `retransmit` | 0, 1 | outstanding requests go out again at once after a migration |
//! | `path_mig_events` | 0 to 2 | PATH_MIG events after a commanded migration |
//! | `query_swaps` | 0, 1 | after a migration `query_qp` gives the path in use as the primary |
//! | `timer_stretch` | 1 to 4 | ACK timers run this many times as long |
//! | `ack_delay_us` | microseconds | an ACK is held back for this long |
//! | `mig_err` | 0, 1 | no alternate can be used: PATH_MIG_ERR instead of a migration |
//! | `ca_ack_delay` | 0 to 31 | what a new device tells as `local_ca_ack_delay`, in 4.096 us times two to this |
//! | `modify_us` | microseconds | `modify_qp` of an RC queue pair takes effect after this time |
//! | `modified_us` | microseconds | `modify_qp` of an RC queue pair returns this long after it has taken effect |
//! | `fail_modify` | N | the N-th `modify_qp` of an RC queue pair from now on fails; 0: none |
//! | `scrub` | 0, 1 | completions of a destroyed queue pair are taken out of their queues |
//! | `round_depth` | 0, 1 | a send queue holds a power of two, and says so to its consumer |
//! | `max_send_wr` | N | a longer send queue of an RC queue pair is not to be had, whatever `max_qp_wr` says; 0: all are |
//! | `max_cqe` | N | the same for completion queues |
//! | `port_err_on_join` | 0, 1 | a port raises PORT_ERR once more when its cable comes back |
//! | `reorder_events` | 0, 1 | of two port events that are close together the later one comes first |

use super::rc::Quirks;
use core::fmt;

/// The knobs of one HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// What the transport has to know.
    pub rc: Quirks,
    /// `local_ca_ack_delay`, in 4.096 us times two to this.
    pub ca_ack_delay: u8,
    /// Time until `modify_qp` takes effect, in microseconds.
    pub modify_us: u32,
    /// Time from then until it returns, in microseconds.
    pub modified_us: u32,
    /// How many more `modify_qp` until one fails, that one included; 0: none does.
    pub fail_modify: u32,
    /// Completions of a destroyed queue pair are removed.
    pub scrub: bool,
    /// Send queues are rounded up, and the consumer is told.
    pub round_depth: bool,
    /// Longest send queue of an RC queue pair that can be made; 0: no limit.
    pub max_send_wr: u32,
    /// Longest completion queue that can be made; 0: no limit.
    pub max_cqe: u32,
    /// PORT_ERR when a cable comes back.
    pub port_err_on_join: bool,
    /// Port events that are close together change places.
    pub reorder_events: bool,
}

/// Longest delay of any kind, in microseconds.
const MAX_US: u32 = 1_000_000;
/// Longest time from the effect of a command to its return: long enough for a test to do something.
const MAX_MODIFIED_US: u32 = 10_000_000;

/// Why knobs were not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnobError {
    /// There is none of that name.
    UnknownName,
    /// Not `NAME=VALUE`, or no knob at all.
    BadWord,
    /// The value is not one that this knob takes.
    BadValue,
}

impl KnobError {
    /// The reason in words.
    pub fn as_str(self) -> &'static str {
        match self {
            KnobError::UnknownName => "no such knob",
            KnobError::BadWord => "knobs are NAME=VALUE",
            KnobError::BadValue => "not a value of this knob",
        }
    }
}

impl Knobs {
    /// An HCA without peculiarities.
    pub const PLAIN: Knobs = Knobs {
        rc: Quirks::NONE,
        ca_ack_delay: 8,
        modify_us: 0,
        modified_us: 0,
        fail_modify: 0,
        scrub: true,
        round_depth: false,
        max_send_wr: 0,
        max_cqe: 0,
        port_err_on_join: false,
        reorder_events: false,
    };

    /// As far as one knows, an HCA of the mlx5 family.
    pub const MLX5: Knobs = Knobs {
        rc: Quirks {
            retransmit_on_migration: true,
            path_mig_events: 1,
            query_swaps_paths: false,
            timer_stretch: 4,
            ack_delay: 0,
            alternate_unusable: false,
        },
        ca_ack_delay: 16,
        modify_us: 100,
        modified_us: 0,
        fail_modify: 0,
        scrub: true,
        round_depth: true,
        max_send_wr: 0,
        max_cqe: 0,
        port_err_on_join: true,
        reorder_events: true,
    };

    /// Sets what `text` says: words `NAME=VALUE`. With an error nothing has changed.
    pub fn set(&mut self, text: &str) -> Result<(), KnobError> {
        let mut knobs = *self;
        let mut words = text.split_ascii_whitespace().peekable();
        words.peek().ok_or(KnobError::BadWord)?;
        for word in words {
            let (name, value) = word.split_once('=').ok_or(KnobError::BadWord)?;
            knobs.set_one(name, value)?;
        }
        *self = knobs;
        Ok(())
    }

    fn set_one(&mut self, name: &str, value: &str) -> Result<(), KnobError> {
        let number = |most: u32| match value.parse::<u32>() {
            Ok(n) if n <= most => Ok(n),
            _ => Err(KnobError::BadValue),
        };
        let switch = || Ok(number(1)? == 1);
        match name {
            "profile" => {
                *self = match value {
                    "plain" => Self::PLAIN,
                    "mlx5" => Self::MLX5,
                    _ => return Err(KnobError::BadValue),
                }
            }
            "retransmit" => self.rc.retransmit_on_migration = switch()?,
            "path_mig_events" => self.rc.path_mig_events = number(2)? as u8,
            "query_swaps" => self.rc.query_swaps_paths = switch()?,
            "timer_stretch" => match number(4)? {
                0 => return Err(KnobError::BadValue),
                n => self.rc.timer_stretch = n as u8,
            },
            "ack_delay_us" => self.rc.ack_delay = number(MAX_US)?.saturating_mul(1000),
            "mig_err" => self.rc.alternate_unusable = switch()?,
            "ca_ack_delay" => self.ca_ack_delay = number(31)? as u8,
            "modify_us" => self.modify_us = number(MAX_US)?,
            "modified_us" => self.modified_us = number(MAX_MODIFIED_US)?,
            "fail_modify" => self.fail_modify = number(u32::MAX)?,
            "scrub" => self.scrub = switch()?,
            "round_depth" => self.round_depth = switch()?,
            "max_send_wr" => self.max_send_wr = number(u32::MAX)?,
            "max_cqe" => self.max_cqe = number(u32::MAX)?,
            "port_err_on_join" => self.port_err_on_join = switch()?,
            "reorder_events" => self.reorder_events = switch()?,
            _ => return Err(KnobError::UnknownName),
        }
        Ok(())
    }

    /// Whether a queue of this length can be made.
    pub fn allows(limit: u32, length: u32) -> bool {
        limit == 0 || length <= limit
    }

    /// Counts a `modify_qp`; whether it is the one that has to fail.
    pub fn modify_fails(&mut self) -> bool {
        let fails = self.fail_modify == 1;
        self.fail_modify = self.fail_modify.saturating_sub(1);
        fails
    }
}

impl Default for Knobs {
    fn default() -> Self {
        Self::PLAIN
    }
}

impl fmt::Display for Knobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "retransmit={} path_mig_events={} query_swaps={} timer_stretch={} ack_delay_us={}",
            u8::from(self.rc.retransmit_on_migration),
            self.rc.path_mig_events,
            u8::from(self.rc.query_swaps_paths),
            self.rc.timer_stretch,
            self.rc.ack_delay / 1000,
        )?;
        write!(
            f,
            " modify_us={} fail_modify={} scrub={} round_depth={} port_err_on_join={} reorder_events={}",
            self.modify_us,
            self.fail_modify,
            u8::from(self.scrub),
            u8::from(self.round_depth),
            u8::from(self.port_err_on_join),
            u8::from(self.reorder_events),
        )?;
        write!(
            f,
            " modified_us={} max_send_wr={} max_cqe={} ca_ack_delay={} mig_err={}",
            self.modified_us,
            self.max_send_wr,
            self.max_cqe,
            self.ca_ack_delay,
            u8::from(self.rc.alternate_unusable),
        )
    }
}
