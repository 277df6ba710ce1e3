// SPDX-License-Identifier: GPL-2.0-only

//! The switches and links that packets to a LID pass, read from subnet administration hop by hop.
//!
//! Subnet administration says between which ports there is a path, not which way it takes. That lies in
//! the forwarding tables of the switches, which it gives as records, too.

use crate::wire::records::{ForwardingRecord, LinkRecord};
use crate::wire::sa::Query;

/// Switches that a way may pass; a longer one counts as not known.
const MAX_HOPS: usize = 6;
/// Two ways of a path, each with a link more than switches.
const MAX_ELEMENTS: usize = 4 * MAX_HOPS + 2;
/// Elements at either end that all paths between two ports have: the port's link and its switch.
const END: usize = 2;
/// Names of links lie above it, LIDs of switches below.
const LINK: u32 = 1 << 24;

/// What is passed on a way: switches by LID, and links.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Elements {
    list: [u32; MAX_ELEMENTS],
    count: usize,
}

impl Elements {
    fn add(&mut self, element: u32) {
        if self.iter().any(|e| e == element) {
            return;
        }
        if let Some(slot) = self.list.get_mut(self.count) {
            *slot = element;
            self.count = self.count.saturating_add(1);
        }
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.list.iter().take(self.count).copied()
    }

    /// What is passed in either.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut all = *self;
        for element in other.iter() {
            all.add(element);
        }
        all
    }

    /// What both have.
    pub(crate) fn shared(&self, other: &Self) -> Self {
        let mut both = Self::default();
        for element in self.iter().filter(|e| other.iter().any(|o| o == *e)) {
            both.add(element);
        }
        both
    }

    /// Number of switches and links.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether there is a switch among them.
    pub(crate) fn has_switch(&self) -> bool {
        self.iter().any(|e| e < LINK)
    }

    /// Whether there is a link among them.
    pub(crate) fn has_link(&self) -> bool {
        self.iter().any(|e| e >= LINK)
    }
}

/// One link has one name, from whichever end it is looked at: LID and port of the lower end.
fn link_name(link: &LinkRecord) -> u32 {
    let end = |lid: u16, port: u8| LINK | (u32::from(lid) << 8) | u32::from(port);
    end(link.from_lid, link.from_port).min(end(link.to_lid, link.to_port))
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// The link that leaves an HCA port.
    Start,
    /// A switch whose forwarding table is to say by which port to leave.
    Switch(u16),
    /// The link at a port of a switch.
    Port(u16, u8),
    /// The same, when it was not found by the LID of the switch: with an LMC, OpenSM takes the low bits
    /// off the LID asked for, also where it is that of a switch and has them.
    PortByNumber(u16, u8),
    Arrived,
    Lost,
}

/// The way from one HCA port to a LID of another, being followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    from: u16,
    to: u16,
    dlid: u16,
    at: At,
    hops: usize,
    elements: Elements,
}

impl Route {
    /// From the port with base LID `from` to the LID `dlid` of the one with base LID `to`.
    pub(crate) fn new(from: u16, to: u16, dlid: u16) -> Self {
        Self {
            from,
            to,
            dlid,
            at: At::Start,
            hops: 0,
            elements: Elements::default(),
        }
    }

    /// The LID at its end.
    pub(crate) fn dlid(&self) -> u16 {
        self.dlid
    }

    /// What has to be asked to follow it further; `None` at its end, or where it cannot be followed.
    pub(crate) fn next(&self) -> Option<Query> {
        match self.at {
            At::Start => Some(Query::LinksFrom(self.from)),
            At::Port(lid, _) => Some(Query::LinksFrom(lid)),
            At::PortByNumber(_, port) => Some(Query::LinksByPort(port)),
            At::Switch(switch) => Some(Query::Forwarding {
                switch,
                block: self.block(),
            }),
            At::Arrived | At::Lost => None,
        }
    }

    fn block(&self) -> u16 {
        self.dlid >> 6
    }

    /// Takes the LinkRecords asked for.
    pub(crate) fn links(&mut self, mut records: impl Iterator<Item = LinkRecord>) {
        let link = match self.at {
            At::Start => records.find(|r| r.from_lid == self.from),
            At::Port(lid, port) | At::PortByNumber(lid, port) => {
                records.find(|r| r.from_lid == lid && r.from_port == port)
            }
            _ => return,
        };
        let Some(link) = link else {
            return self.failed();
        };
        self.elements.add(link_name(&link));
        if link.to_lid == self.to {
            self.at = At::Arrived;
            return;
        }
        self.hops = self.hops.saturating_add(1);
        if self.hops > MAX_HOPS {
            return self.failed();
        }
        self.elements.add(u32::from(link.to_lid));
        self.at = At::Switch(link.to_lid);
    }

    /// Takes the forwarding table asked for.
    pub(crate) fn forwarding(&mut self, mut records: impl Iterator<Item = ForwardingRecord>) {
        let At::Switch(switch) = self.at else { return };
        let port = records
            .find(|r| r.switch == switch && r.block == self.block())
            .and_then(|r| r.ports.get(usize::from(self.dlid & 63)).copied());
        match port {
            // 0 is the switch itself.
            Some(port) if port != 0 && port != 255 => self.at = At::Port(switch, port),
            _ => self.failed(),
        }
    }

    /// What was asked for could not be had.
    pub(crate) fn failed(&mut self) {
        self.at = match self.at {
            At::Port(lid, port) => At::PortByNumber(lid, port),
            _ => At::Lost,
        };
    }

    /// What is passed between the switches that the two ports are connected to, where all of it is known.
    pub(crate) fn between(&self) -> Option<Elements> {
        if !matches!(self.at, At::Arrived) {
            return None;
        }
        let mut between = Elements::default();
        let inner = self.elements.count.saturating_sub(2 * END);
        for element in self.elements.iter().skip(END).take(inner) {
            between.add(element);
        }
        Some(between)
    }
}
