// SPDX-License-Identifier: GPL-2.0-only

//! Commands that break and mend the fabric.
//!
//! | command | what it does |
//! |---|---|
//! | `cut NODE/PORT` | pulls the cable: both ends are down at once, what is on it is lost |
//! | `join NODE/PORT` | plugs it in again: both ends train to Init |
//! | `blackhole NODE/PORT [in\|out\|both]` | the port stays up and loses, unnoticed, all that arrives, leaves or both (default), subnet management included |
//! | `loss NODE/PORT PERCENT [in\|out\|both]` | loses that many of them by chance, as with bit errors: the receiving end counts PortRcvErrors; decimals are allowed |
//! | `delay NODE/PORT MICROSECONDS [in\|out\|both]` | each takes that much longer to arrive; their order stays |
//! | `clear NODE/PORT` | ends blackhole, loss and delay |
//! | `seed N` | begins the random numbers of all ports' losses anew |
//! | `grh on\|off\|HOPLIMIT` | PathRecords get a HopLimit of at least 1 or HOPLIMIT, so that consumers use a GRH: see `grh.rs` |
//! | `mad …` | loses, changes, doubles or delays single MADs, or shows them: see `madrule.rs` and `madlog.rs` |

use super::impair::{Share, Ways, MAX_DELAY_US};
use super::{Fabric, NodeId, PortRef};
use core::fmt;

/// A command that has been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The cable at this port is cut.
    Cut(PortRef),
    /// The cable at this port is joined.
    Join(PortRef),
    /// The port loses all packets.
    Blackhole(PortRef, Ways),
    /// The port loses some packets.
    Loss(PortRef, Ways, Share),
    /// The port delays packets, by microseconds.
    Delay(PortRef, Ways, u32),
    /// The port loses and delays nothing any more.
    Clear(PortRef),
    /// The random numbers of losses begin anew.
    Seed(u64),
    /// Least HopLimit of PathRecords; 0: they stay as they are.
    Grh(u8),
    /// The rules for MADs are others.
    Mad,
    /// Other MADs are kept, or none any more.
    MadLog,
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
    /// Not a percentage.
    BadPercent,
    /// Not a delay, or too long a one.
    BadDelay,
    /// Not a seed.
    BadSeed,
    /// Not a HopLimit, `on` or `off`.
    BadHopLimit,
    /// More words than the command has.
    TooMuch,
    /// Not a rule for MADs.
    BadMadRule,
    /// Not what `mad log` takes.
    BadMadLog,
    /// No room for another rule.
    TooManyRules,
}

impl ControlError {
    /// The reason in words.
    pub fn as_str(self) -> &'static str {
        match self {
            ControlError::Empty => "no command",
            ControlError::UnknownCommand => {
                "the commands are cut, join, blackhole, loss, delay, clear, seed, grh, mad, knob and remove"
            }
            ControlError::BadPort => "a port is NODE/PORT",
            ControlError::UnknownNode => "no such node",
            ControlError::NoSuchPort => "the node has no such port",
            ControlError::NoLink => "there is no link at this port",
            ControlError::BadDirection => "a direction is in, out or both",
            ControlError::BadPercent => "a loss is a percentage from 0 to 100, with up to four decimals",
            ControlError::BadDelay => "a delay is a number of microseconds up to 10000000",
            ControlError::BadSeed => "a seed is a number",
            ControlError::BadHopLimit => "grh is on, off or a HopLimit from 1 to 255",
            ControlError::TooMuch => "too many words",
            ControlError::BadMadRule => {
                "a rule is drop, delay, duplicate or rewrite, class=, attr=, for delay us=, for rewrite offset= and value=, perhaps method=, count="
            }
            ControlError::BadMadLog => "mad log takes class= or off",
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
            let mut rest = words.clone();
            if rest.next() == Some("log") {
                return self.mad_log.command(rest).map(|()| Control::MadLog);
            }
            return self.mad_rules.command(words).map(|()| Control::Mad);
        }
        let more = match command {
            "seed" | "grh" | "cut" | "join" | "clear" => 1,
            "blackhole" => 2,
            "loss" | "delay" => 3,
            _ => return Err(ControlError::UnknownCommand),
        };
        if words.clone().count() > more {
            return Err(ControlError::TooMuch);
        }
        let first = words.next();
        let done = match command {
            "seed" => Control::Seed(
                first
                    .and_then(|n| n.parse().ok())
                    .ok_or(ControlError::BadSeed)?,
            ),
            "grh" => Control::Grh(hop_limit(first).ok_or(ControlError::BadHopLimit)?),
            _ => {
                let port = self.port_named(first.ok_or(ControlError::BadPort)?)?;
                match command {
                    "cut" => Control::Cut(port),
                    "join" => Control::Join(port),
                    "clear" => Control::Clear(port),
                    "blackhole" => Control::Blackhole(port, Ways::parse(words.next())?),
                    "loss" => {
                        let share = words.next().and_then(Share::parse);
                        let share = share.ok_or(ControlError::BadPercent)?;
                        Control::Loss(port, Ways::parse(words.next())?, share)
                    }
                    _ => {
                        let us = words.next().and_then(|n| n.parse().ok());
                        let us = us.filter(|us| *us <= MAX_DELAY_US);
                        let us = us.ok_or(ControlError::BadDelay)?;
                        Control::Delay(port, Ways::parse(words.next())?, us)
                    }
                }
            }
        };
        self.carry_out(done, now_ns);
        Ok(done)
    }

    fn carry_out(&mut self, command: Control, now_ns: u64) {
        match command {
            Control::Cut(port) => {
                self.set_cut(port, true);
                self.link_down(port, None, now_ns);
            }
            Control::Join(port) => {
                self.set_cut(port, false);
                self.link_up(port, now_ns);
            }
            Control::Blackhole(port, ways) => {
                if let Some(p) = self.port_mut(port) {
                    p.blackhole = ways;
                }
            }
            Control::Loss(port, ways, share) => {
                let seed = self.seed;
                if let Some(p) = self.port_mut(port) {
                    // The other direction is as it was.
                    if ways.inward {
                        p.inward.loss = share;
                        p.inward.seed(seed, port, false);
                    }
                    if ways.outward {
                        p.outward.loss = share;
                        p.outward.seed(seed, port, true);
                    }
                }
            }
            Control::Delay(port, ways, us) => {
                if let Some(p) = self.port_mut(port) {
                    if ways.inward {
                        p.inward.delay_us = us;
                    }
                    if ways.outward {
                        p.outward.delay_us = us;
                    }
                }
            }
            Control::Clear(port) => {
                if let Some(p) = self.port_mut(port) {
                    p.mend();
                }
            }
            Control::Seed(seed) => {
                self.seed = seed;
                for node in self.nodes.iter_mut() {
                    for p in node.ports.iter_mut() {
                        let (node, port) = (p.node, p.number);
                        p.inward.seed(seed, PortRef { node, port }, false);
                        p.outward.seed(seed, PortRef { node, port }, true);
                    }
                }
            }
            Control::Grh(hop_limit) => self.grh = hop_limit,
            // Done by rules and log themselves.
            Control::Mad | Control::MadLog => {}
        }
    }

    /// Writes what a command has done, for the log.
    pub fn write_control(&self, out: &mut impl fmt::Write, command: Control) -> fmt::Result {
        let name = |id: NodeId| self.node(id).map_or("?", |n| n.name.as_str());
        let mut port =
            |what: &str, at: PortRef| write!(out, "{what} {}/{}", name(at.node), at.port);
        match command {
            Control::Cut(at) => port("cut", at),
            Control::Join(at) => port("join", at),
            Control::Clear(at) => port("clear", at),
            Control::Blackhole(at, ways) => {
                port("blackhole", at)?;
                write!(out, " {}", ways.as_str())
            }
            Control::Loss(at, ways, share) => {
                port("loss", at)?;
                write!(out, " {share}% {}", ways.as_str())
            }
            Control::Delay(at, ways, us) => {
                port("delay", at)?;
                write!(out, " {us} us {}", ways.as_str())
            }
            Control::Seed(seed) => write!(out, "seed {seed}"),
            Control::Grh(0) => out.write_str("grh off"),
            Control::Grh(limit) => write!(out, "grh with HopLimit {limit}"),
            Control::Mad => out.write_str("the rules for MADs are others now"),
            Control::MadLog => out.write_str("mad log"),
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
}

/// The least HopLimit that `grh` asks for.
fn hop_limit(word: Option<&str>) -> Option<u8> {
    match word? {
        "on" => Some(1),
        "off" => Some(0),
        n => n.parse().ok().filter(|n| *n > 0),
    }
}
