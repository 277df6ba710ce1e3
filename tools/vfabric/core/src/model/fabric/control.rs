// SPDX-License-Identifier: GPL-2.0-only

//! Commands that break and mend the fabric.
//!
//! | command | what it does |
//! |---|---|
//! | `cut NODE/PORT` | pulls the cable: both ends are down at once |
//! | `join NODE/PORT` | plugs it in again: both ends train to Init |
//! | `blackhole NODE/PORT [in\|out\|both]` | the port stays up and loses, unnoticed, all that arrives, leaves or both (default), subnet management included |
//! | `clear NODE/PORT` | ends a blackhole |
//! | `mad …` | loses or changes single MADs: see `madrule.rs` |

use super::{Fabric, PortRef};
use core::fmt;

/// A command that has been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The cable at this port is cut.
    Cut(PortRef),
    /// The cable at this port is joined.
    Join(PortRef),
    /// The port loses packets.
    Blackhole {
        /// Which port.
        port: PortRef,
        /// What arrives.
        inward: bool,
        /// What leaves.
        outward: bool,
    },
    /// The port loses nothing any more.
    Clear(PortRef),
    /// The rules for MADs are others.
    Mad,
}

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// Nothing in it.
    Empty,
    /// Not one of the commands.
    UnknownCommand,
    /// The port is missing or not `NODE/PORT`.
    BadPort,
    /// No node of that name.
    UnknownNode,
    /// The node has no such port, or it is a switch's port 0.
    NoSuchPort,
    /// No cable was ever plugged in there.
    NoLink,
    /// Not `in`, `out` or `both`.
    BadDirection,
    /// More words than the command has.
    TooMuch,
    /// Not a rule for MADs.
    BadMadRule,
    /// No room for another rule.
    TooManyRules,
}

impl ControlError {
    /// The reason in words.
    pub fn as_str(self) -> &'static str {
        match self {
            ControlError::Empty => "no command",
            ControlError::UnknownCommand => "the commands are cut, join, blackhole, clear and mad",
            ControlError::BadPort => "a port is NODE/PORT",
            ControlError::UnknownNode => "no such node",
            ControlError::NoSuchPort => "the node has no such port",
            ControlError::NoLink => "there is no link at this port",
            ControlError::BadDirection => "a direction is in, out or both",
            ControlError::TooMuch => "too many words",
            ControlError::BadMadRule => {
                "a rule is drop or rewrite, class=, attr=, for rewrite offset= and value=, perhaps method=, count="
            }
            ControlError::TooManyRules => "too many rules for MADs are in force",
        }
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Fabric {
    /// Carries out one command (see the head of this file); a command refused changes nothing.
    pub fn control(&mut self, line: &str, now_ns: u64) -> Result<Control, ControlError> {
        let mut words = line.split_ascii_whitespace();
        let command = words.next().ok_or(ControlError::Empty)?;
        if command == "mad" {
            return self.mad_rules.command(words).map(|()| Control::Mad);
        }
        if !matches!(command, "cut" | "join" | "blackhole" | "clear") {
            return Err(ControlError::UnknownCommand);
        }
        let port = self.port_named(words.next().ok_or(ControlError::BadPort)?)?;
        let direction = words.next();
        if words.next().is_some() || (command != "blackhole" && direction.is_some()) {
            return Err(ControlError::TooMuch);
        }
        match command {
            "cut" => {
                self.set_cut(port, true);
                self.link_down(port, None, now_ns);
                Ok(Control::Cut(port))
            }
            "join" => {
                self.set_cut(port, false);
                self.link_up(port, now_ns);
                Ok(Control::Join(port))
            }
            "blackhole" => {
                let (inward, outward) = match direction {
                    None | Some("both") => (true, true),
                    Some("in") => (true, false),
                    Some("out") => (false, true),
                    Some(_) => return Err(ControlError::BadDirection),
                };
                self.set_blackhole(port, inward, outward);
                Ok(Control::Blackhole {
                    port,
                    inward,
                    outward,
                })
            }
            _ => {
                self.set_blackhole(port, false, false);
                Ok(Control::Clear(port))
            }
        }
    }

    fn port_named(&self, text: &str) -> Result<PortRef, ControlError> {
        let (name, port) = text.split_once('/').ok_or(ControlError::BadPort)?;
        let port: u8 = port.parse().map_err(|_| ControlError::BadPort)?;
        let node = self.find(name).ok_or(ControlError::UnknownNode)?;
        let at = PortRef {
            node: node.id,
            port,
        };
        let p = self.port_at(at).filter(|_| port != 0);
        p.ok_or(ControlError::NoSuchPort)?
            .peer
            .ok_or(ControlError::NoLink)?;
        Ok(at)
    }

    fn set_cut(&mut self, at: PortRef, cut: bool) {
        let peer = self.port_at(at).and_then(|p| p.peer);
        for end in [Some(at), peer].into_iter().flatten() {
            if let Some(p) = self.port_mut(end) {
                p.cut = cut;
            }
        }
    }

    fn set_blackhole(&mut self, at: PortRef, inward: bool, outward: bool) {
        if let Some(p) = self.port_mut(at) {
            p.blackhole_in = inward;
            p.blackhole_out = outward;
        }
    }
}
