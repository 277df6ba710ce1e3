// SPDX-License-Identifier: GPL-2.0-only

//! What the fabric is made of, as a text.
//!
//! ```text
//! hca NAME ports=N        # an HCA; NAME becomes the name of its ib_device
//! switch NAME ports=N     # a switch with N external ports and a base port 0
//! link A/1 B/2            # a cable between port 1 of A and port 2 of B
//! ```
//!
//! Lines end with a newline or with `;`, `#` begins a comment that ends with the line, and a node is
//! named before its links. Ports without a link stay down.

use super::super::mem::{AllocError, KVec, GFP_KERNEL};
use core::fmt;

/// Most ports of an HCA.
pub const MAX_HCA_PORTS: u8 = 8;
/// Most external ports of a switch: with port 0 they fit one 64-bit mask of a multicast table.
pub const MAX_SWITCH_PORTS: u8 = 63;
/// Most nodes in a topology.
pub const MAX_NODES: usize = 1024;
/// Longest name of a node, in bytes.
pub const MAX_NAME: usize = 31;

/// The text of the topology `rails`: two two-port HCAs on two switches that know each other, and a
/// third HCA for the subnet manager.
const RAILS: &str = "\
hca vhca0 ports=2
hca vhca1 ports=2
hca vhca2 ports=1
switch sw0 ports=4
switch sw1 ports=4
link vhca0/1 sw0/1
link vhca1/1 sw0/2
link vhca0/2 sw1/1
link vhca1/2 sw1/2
link sw0/3 sw1/3
link vhca2/1 sw0/4
";

/// The text of the topology `spine`: every leaf reaches every other by way of either spine; HCAs 0
/// and 1 have a port on each leaf, 3 and 4 one port only, 2 is for the subnet manager.
const SPINE: &str = "\
hca vhca0 ports=2
hca vhca1 ports=2
hca vhca2 ports=1
hca vhca3 ports=1
hca vhca4 ports=1
switch leaf0 ports=8
switch leaf1 ports=8
switch spine0 ports=4
switch spine1 ports=4
link vhca0/1 leaf0/1
link vhca1/1 leaf0/2
link vhca0/2 leaf1/1
link vhca1/2 leaf1/2
link vhca2/1 leaf0/3
link vhca3/1 leaf0/4
link vhca4/1 leaf1/4
link leaf0/7 spine0/1
link leaf0/8 spine1/1
link leaf1/7 spine0/2
link leaf1/8 spine1/2
";

/// What kind of node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Host channel adapter.
    Hca,
    /// Switch.
    Switch,
}

/// Name of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; MAX_NAME],
    len: u8,
}

impl Name {
    /// A name of letters, digits, `_`, `-` and `.`, the first of them a letter or a digit (the name
    /// becomes that of a folder in sysfs), at most [`MAX_NAME`] bytes long.
    pub fn new(text: &str) -> Option<Name> {
        let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        let first = text.bytes().next();
        if !first.is_some_and(|b| b.is_ascii_alphanumeric()) || !text.bytes().all(ok) {
            return None;
        }
        let mut bytes = [0; MAX_NAME];
        bytes
            .get_mut(..text.len())?
            .copy_from_slice(text.as_bytes());
        let len = u8::try_from(text.len()).ok()?;
        Some(Name { bytes, len })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        let used = self.bytes.get(..usize::from(self.len)).unwrap_or(&[]);
        core::str::from_utf8(used).unwrap_or("")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A node of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeDef {
    /// Name, unique in the topology.
    pub name: Name,
    /// Kind.
    pub kind: Kind,
    /// Number of (external) ports; they count from 1.
    pub ports: u8,
}

/// A link of the text: two ends, each the index of a node and a port number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkDef {
    /// One end.
    pub a: (usize, u8),
    /// The other end.
    pub b: (usize, u8),
}

/// Why a text is not a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// The line begins with none of `hca`, `switch` and `link`.
    UnknownWord,
    /// A word is missing.
    Incomplete,
    /// There is more in the line than belongs there.
    TooMuch,
    /// The name is too long, does not begin with a letter or a digit, or has other characters than
    /// these, `_`, `-` and `.`.
    BadName,
    /// The name is in use already.
    DuplicateName,
    /// Not `ports=N`, or N is out of range.
    BadPorts,
    /// More nodes than [`MAX_NODES`].
    TooManyNodes,
    /// An end of a link is not `NODE/PORT`.
    BadEnd,
    /// No node of that name before this line.
    UnknownNode,
    /// The node has no such port.
    NoSuchPort,
    /// The port has a link already.
    PortInUse,
    /// Both ends are the same port.
    SelfLink,
    /// There is no HCA in the whole text.
    NoHca,
    /// Memory has run out.
    NoMemory,
}

impl ParseErrorKind {
    /// The reason in words.
    pub fn as_str(self) -> &'static str {
        match self {
            ParseErrorKind::UnknownWord => "a line begins with hca, switch or link",
            ParseErrorKind::Incomplete => "a word is missing",
            ParseErrorKind::TooMuch => "too many words",
            ParseErrorKind::BadName => {
                "not a name (a letter or digit, then letters, digits, _ - . and at most 31 in all)"
            }
            ParseErrorKind::DuplicateName => "the name is in use",
            ParseErrorKind::BadPorts => "expected ports=N, N from 1 to 8 (hca) or 63 (switch)",
            ParseErrorKind::TooManyNodes => "too many nodes",
            ParseErrorKind::BadEnd => "an end of a link is NODE/PORT",
            ParseErrorKind::UnknownNode => "no node of that name before this line",
            ParseErrorKind::NoSuchPort => "the node has no such port",
            ParseErrorKind::PortInUse => "the port has a link already",
            ParseErrorKind::SelfLink => "a link needs two ports",
            ParseErrorKind::NoHca => "a fabric needs an HCA",
            ParseErrorKind::NoMemory => "out of memory",
        }
    }
}

/// A line that is wrong, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Number of the line, counting from 1; `;` ends a line too.
    pub line: usize,
    /// What is wrong with it.
    pub what: ParseErrorKind,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what.as_str())
    }
}

impl From<AllocError> for ParseErrorKind {
    fn from(_: AllocError) -> Self {
        ParseErrorKind::NoMemory
    }
}

/// A topology.
#[derive(Debug)]
pub struct Topology {
    nodes: KVec<NodeDef>,
    links: KVec<LinkDef>,
}

impl Topology {
    /// The text of a topology that comes with the fabric: `rails` or `spine`.
    pub fn named(name: &str) -> Option<&'static str> {
        match name {
            "rails" => Some(RAILS),
            "spine" => Some(SPINE),
            _ => None,
        }
    }

    /// Reads a text (see the head of this file).
    pub fn parse(text: &str) -> Result<Topology, ParseError> {
        let mut t = Topology {
            nodes: KVec::new(),
            links: KVec::new(),
        };
        let mut last = 0;
        for (line, content) in (1..).zip(text.split(['\n', ';'])) {
            last = line;
            let content = content.split('#').next().unwrap_or("");
            t.line(content).map_err(|what| ParseError { line, what })?;
        }
        if !t.nodes.iter().any(|n| n.kind == Kind::Hca) {
            let what = ParseErrorKind::NoHca;
            return Err(ParseError { line: last, what });
        }
        Ok(t)
    }

    /// The nodes, in the order of the text.
    pub fn nodes(&self) -> &[NodeDef] {
        &self.nodes
    }

    /// The links, in the order of the text.
    pub fn links(&self) -> &[LinkDef] {
        &self.links
    }

    fn line(&mut self, content: &str) -> Result<(), ParseErrorKind> {
        let mut words = content.split_ascii_whitespace();
        let Some(word) = words.next() else {
            return Ok(());
        };
        if !matches!(word, "hca" | "switch" | "link") {
            return Err(ParseErrorKind::UnknownWord);
        }
        let (Some(first), Some(second)) = (words.next(), words.next()) else {
            return Err(ParseErrorKind::Incomplete);
        };
        if words.next().is_some() {
            return Err(ParseErrorKind::TooMuch);
        }
        match word {
            "hca" => self.node(Kind::Hca, first, second),
            "switch" => self.node(Kind::Switch, first, second),
            _ => self.link(first, second),
        }
    }

    fn node(&mut self, kind: Kind, name: &str, ports: &str) -> Result<(), ParseErrorKind> {
        let name = Name::new(name).ok_or(ParseErrorKind::BadName)?;
        if self.nodes.iter().any(|n| n.name == name) {
            return Err(ParseErrorKind::DuplicateName);
        }
        let max = match kind {
            Kind::Hca => MAX_HCA_PORTS,
            Kind::Switch => MAX_SWITCH_PORTS,
        };
        let ports = ports
            .strip_prefix("ports=")
            .and_then(|n| n.parse::<u8>().ok())
            .filter(|n| (1..=max).contains(n))
            .ok_or(ParseErrorKind::BadPorts)?;
        if self.nodes.len() >= MAX_NODES {
            return Err(ParseErrorKind::TooManyNodes);
        }
        self.nodes.push(NodeDef { name, kind, ports }, GFP_KERNEL)?;
        Ok(())
    }

    fn link(&mut self, a: &str, b: &str) -> Result<(), ParseErrorKind> {
        let (a, b) = (self.end(a)?, self.end(b)?);
        if a == b {
            return Err(ParseErrorKind::SelfLink);
        }
        let taken = |e| self.links.iter().any(|l| l.a == e || l.b == e);
        if taken(a) || taken(b) {
            return Err(ParseErrorKind::PortInUse);
        }
        self.links.push(LinkDef { a, b }, GFP_KERNEL)?;
        Ok(())
    }

    fn end(&self, text: &str) -> Result<(usize, u8), ParseErrorKind> {
        let (name, port) = text.split_once('/').ok_or(ParseErrorKind::BadEnd)?;
        let port: u8 = port.parse().map_err(|_| ParseErrorKind::BadEnd)?;
        let (index, node) = self
            .nodes
            .iter()
            .enumerate()
            .find(|(_, n)| n.name.as_str() == name)
            .ok_or(ParseErrorKind::UnknownNode)?;
        if port == 0 || port > node.ports {
            return Err(ParseErrorKind::NoSuchPort);
        }
        Ok((index, port))
    }
}
