// SPDX-License-Identifier: GPL-2.0-only

//! A small subnet manager: it learns the fabric by directed-route SMPs alone, gives LIDs, fills
//! forwarding tables and brings all ports to Active.

use crate::net::{
    bytes, datagram, directed, send_directed, status, Net, GET, GET_RESP, PERMISSIVE, SET,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use vfabric_core::model::fabric::MadRequest;

pub const NODE_DESC: u16 = 0x10;
pub const NODE_INFO: u16 = 0x11;
pub const SWITCH_INFO: u16 = 0x12;
pub const PORT_INFO: u16 = 0x15;
pub const LFT: u16 = 0x19;
pub const MFT: u16 = 0x1b;

#[derive(Debug, Clone)]
pub struct Seen {
    pub name: String,
    pub switch: bool,
    pub ports: u8,
    /// Way there, the first port being the SM's own; by the port of an HCA that it leads to.
    pub paths: BTreeMap<u8, Vec<u8>>,
    pub lids: BTreeMap<u8, u16>,
}

pub struct Sm {
    /// `NODE/PORT` where it lives.
    pub at: String,
    pub nodes: BTreeMap<u64, Seen>,
    /// Links by both of their ends.
    pub links: BTreeMap<(u64, u8), (u64, u8)>,
    pub lmc: u8,
    pub subnet_timeout: u8,
    lids: BTreeMap<(u64, u8), u16>,
}

fn be64(b: &[u8]) -> u64 {
    u64::from_be_bytes(b[..8].try_into().unwrap())
}

impl Sm {
    pub fn new(at: &str) -> Sm {
        Sm {
            at: at.to_string(),
            nodes: BTreeMap::new(),
            links: BTreeMap::new(),
            lmc: 0,
            subnet_timeout: 12,
            lids: BTreeMap::new(),
        }
    }

    /// Sends a directed-route SMP and gives the answer, if there is one.
    pub fn ask(
        &self,
        net: &mut Net,
        path: &[u8],
        method: u8,
        attr: u16,
        modifier: u32,
        data: &[u8],
    ) -> Option<[u8; 256]> {
        let mut smp = directed(path, method, attr, modifier);
        smp[64..64 + data.len()].copy_from_slice(data);
        self.ask_raw(net, smp)
    }

    pub fn ask_raw(&self, net: &mut Net, mut smp: [u8; 256]) -> Option<[u8; 256]> {
        let (node, port) = net.end(&self.at);
        if smp[7] == 0 {
            net.fabric
                .process_mad(node, port, &mut smp, MadRequest::default(), net.now);
            net.run();
            return (smp[3] == GET_RESP).then_some(smp);
        }
        assert!(send_directed(&mut smp, port), "a way that begins here");
        net.send(
            &self.at.clone(),
            datagram(PERMISSIVE, PERMISSIVE, 0, 0, &smp),
        );
        let at = net.arrived.iter().position(|a| {
            a.node == node && a.packet.payload[3] == GET_RESP && a.packet.bth.dest_qp == 0
        })?;
        let answer = net.arrived.remove(at)?;
        Some((*answer.packet.payload).try_into().unwrap())
    }

    fn expect(
        &self,
        net: &mut Net,
        path: &[u8],
        method: u8,
        attr: u16,
        modifier: u32,
        data: &[u8],
    ) -> [u8; 256] {
        let answer = self
            .ask(net, path, method, attr, modifier, data)
            .unwrap_or_else(|| panic!("no answer to {attr:#x} along {path:?}"));
        assert_eq!(
            status(&answer),
            0,
            "attribute {attr:#x} modifier {modifier:#x} along {path:?}"
        );
        answer
    }

    /// One full sweep: afterwards every port that has a link is Active.
    pub fn sweep(&mut self, net: &mut Net) {
        self.discover(net);
        self.assign(net);
        self.route(net);
        for state in [3, 4] {
            self.set_states(net, state);
        }
    }

    pub fn discover(&mut self, net: &mut Net) {
        self.nodes.clear();
        self.links.clear();
        let mut todo = VecDeque::from([(Vec::new(), None)]);
        while let Some((path, from)) = todo.pop_front() {
            let info = self.expect(net, &path, GET, NODE_INFO, 0, &[]);
            let guid = be64(&info[64 + 12..]);
            let (kind, ports, local) = (info[66], info[67], info[64 + 36]);
            if let Some(from) = from {
                self.links.insert(from, (guid, local));
                self.links.insert((guid, local), from);
            }
            let switch = kind == 2;
            let key = if switch { 0 } else { local };
            if self
                .nodes
                .get(&guid)
                .is_some_and(|n| n.paths.contains_key(&key))
            {
                continue;
            }
            let desc = self.expect(net, &path, GET, NODE_DESC, 0, &[]);
            let name = String::from_utf8_lossy(&desc[64..128])
                .trim_end_matches('\0')
                .to_string();
            let entry = self.nodes.entry(guid).or_insert_with(|| Seen {
                name,
                switch,
                ports,
                paths: BTreeMap::new(),
                lids: BTreeMap::new(),
            });
            entry.paths.insert(key, path.clone());
            // An HCA forwards nothing; from its own, the SM sees the port it lives on.
            let exits: Vec<u8> = match (switch, path.is_empty()) {
                (true, _) => (1..=ports).collect(),
                (false, true) => vec![local],
                (false, false) => vec![],
            };
            for exit in exits {
                let pi = self.expect(net, &path, GET, PORT_INFO, u32::from(exit), &[]);
                if pi[64 + 32] & 0xf >= 2 && pi[64 + 33] >> 4 == 5 {
                    let mut next = path.clone();
                    next.push(exit);
                    todo.push_back((next, Some((guid, exit))));
                }
            }
        }
    }

    fn assign(&mut self, net: &mut Net) {
        let step = 1u16 << self.lmc;
        for (guid, node) in &self.nodes {
            for port in node.paths.keys() {
                let next = self.lids.values().max().map_or(step, |l| l + step);
                self.lids.entry((*guid, *port)).or_insert(next);
            }
        }
        let (sm_node, sm_port) = net.end(&self.at);
        let sm_guid = net.fabric.node(sm_node).unwrap().guid;
        let sm_lid = self.lids[&(sm_guid, sm_port)];
        for guid in self.nodes.keys().copied().collect::<Vec<_>>() {
            let node = self.nodes[&guid].clone();
            for (port, path) in &node.paths {
                let lid = self.lids[&(guid, *port)];
                self.nodes.get_mut(&guid).unwrap().lids.insert(*port, lid);
                let old = self.expect(net, path, GET, PORT_INFO, u32::from(*port), &[]);
                let mut pi = old[64..128].to_vec();
                pi[16..18].copy_from_slice(&lid.to_be_bytes());
                pi[18..20].copy_from_slice(&sm_lid.to_be_bytes());
                pi[32] &= 0xf0;
                pi[33] &= 0x0f;
                pi[34] = self.lmc;
                pi[51] = self.subnet_timeout;
                self.expect(net, path, SET, PORT_INFO, u32::from(*port), &pi);
            }
        }
    }

    /// Shortest ways by breadth-first search from each destination.
    fn route(&mut self, net: &mut Net) {
        let switches: Vec<u64> = self
            .nodes
            .iter()
            .filter(|(_, n)| n.switch)
            .map(|(g, _)| *g)
            .collect();
        let top = *self.lids.values().max().unwrap() + (1 << self.lmc) - 1;
        for s in switches {
            let mut table = vec![0xffu8; 64 * (usize::from(top) / 64 + 1)];
            for ((guid, port), lid) in &self.lids {
                for offset in 0..1 << self.lmc {
                    if let Some(exit) = self.exit(s, (*guid, *port), offset) {
                        table[usize::from(lid + offset)] = exit;
                    }
                }
            }
            let path = self.nodes[&s].paths[&0].clone();
            let mut info = self.expect(net, &path, GET, SWITCH_INFO, 0, &[])[64..128].to_vec();
            info[6..8].copy_from_slice(&top.to_be_bytes());
            info[11] |= 4;
            self.expect(net, &path, SET, SWITCH_INFO, 0, &info);
            for (block, entries) in (0..).zip(table.chunks(64)) {
                self.expect(net, &path, SET, LFT, block, entries);
            }
        }
    }

    /// The port by which switch `s` reaches a port, by the `offset`-th of equally short ways.
    fn exit(&self, s: u64, to: (u64, u8), offset: u16) -> Option<u8> {
        if s == to.0 {
            return Some(0);
        }
        let mut distance = BTreeMap::from([(to.0, 0)]);
        let mut todo = VecDeque::from([to.0]);
        while let Some(here) = todo.pop_front() {
            for ((guid, port), (next, _)) in self.links.range((here, 0)..=(here, u8::MAX)) {
                // Into an HCA only by the port that is meant, out of it not at all.
                let forward = if *guid == to.0 && !self.nodes[guid].switch {
                    *port == to.1
                } else {
                    self.nodes[guid].switch
                };
                if forward && !distance.contains_key(next) {
                    distance.insert(*next, distance[&here] + 1);
                    todo.push_back(*next);
                }
            }
        }
        let here = *distance.get(&s)?;
        let ways: Vec<u8> = self
            .links
            .range((s, 0)..=(s, u8::MAX))
            .filter(|(_, (next, port))| {
                let nearer = distance.get(next).is_some_and(|d| *d + 1 == here);
                nearer && (self.nodes[next].switch || (*next, *port) == to)
            })
            .map(|((_, port), _)| *port)
            .collect();
        ways.get(usize::from(offset) % ways.len().max(1)).copied()
    }

    /// Sets the state of all ports with a link that are not there yet.
    pub fn set_states(&mut self, net: &mut Net, state: u8) {
        let ends: BTreeSet<(u64, u8)> = self.links.keys().copied().collect();
        for (guid, port) in ends {
            let node = self.nodes[&guid].clone();
            let path = node
                .paths
                .get(&if node.switch { 0 } else { port })
                .expect("a way");
            let mut pi =
                self.expect(net, path, GET, PORT_INFO, u32::from(port), &[])[64..128].to_vec();
            if pi[32] & 0xf >= state {
                continue;
            }
            pi[32] = pi[32] & 0xf0 | state;
            pi[33] &= 0x0f;
            self.expect(net, path, SET, PORT_INFO, u32::from(port), &pi);
        }
    }

    /// Lets a multicast LID lead to `members`, by the union of the shortest ways between them.
    pub fn set_multicast(&self, net: &mut Net, mlid: u16, members: &[&str]) {
        let mut masks: BTreeMap<u64, u64> = BTreeMap::new();
        let ends: Vec<(u64, u8)> = members
            .iter()
            .map(|m| {
                let (node, port) = net.end(m);
                (net.fabric.node(node).unwrap().guid, port)
            })
            .collect();
        for from in &ends {
            for to in &ends {
                let mut here = *self.links.get(from).expect("a link");
                while self.nodes[&here.0].switch {
                    let exit = self.exit(here.0, *to, 0).expect("a way");
                    *masks.entry(here.0).or_default() |= (1 << here.1) | (1 << exit);
                    here = self.links[&(here.0, exit)];
                }
            }
        }
        for (guid, node) in self.nodes.iter().filter(|(_, n)| n.switch) {
            let mask = masks.get(guid).copied().unwrap_or(0);
            let block = u32::from(mlid - 0xc000) / 32;
            let path = &node.paths[&0];
            for position in 0..=u32::from(node.ports) / 16 {
                let modifier = (position << 28) | block;
                let mut entries = self.expect(net, path, GET, MFT, modifier, &[])[64..128].to_vec();
                let at = usize::from(mlid - 0xc000) % 32 * 2;
                let part = (mask >> (16 * position)) as u16;
                entries[at..at + 2].copy_from_slice(&part.to_be_bytes());
                self.expect(net, path, SET, MFT, modifier, &entries);
            }
        }
    }

    /// The way to a node by its name.
    pub fn path_to(&self, name: &str) -> &[u8] {
        let node = self
            .nodes
            .values()
            .find(|n| n.name == name)
            .expect("a node");
        node.paths.values().next().expect("a way")
    }

    /// Represses a trap that has arrived, LID-routed, as an SM does.
    pub fn repress(&self, net: &mut Net) -> Option<[u8; 256]> {
        let at = net.arrived.iter().position(|a| a.packet.payload[3] == 5)?;
        let trap = net.arrived.remove(at)?;
        let mut m: [u8; 256] = (*trap.packet.payload).try_into().unwrap();
        let received = m;
        m[3] = 7;
        let mut packet = datagram(trap.packet.lrh.dlid, trap.packet.lrh.slid, 0, 0, &m);
        packet.payload = bytes(&m);
        net.send(&self.at.clone(), packet);
        Some(received)
    }
}

/// `rails` after a sweep.
pub fn rails() -> (Net, Sm) {
    swept("rails", "vhca2/1")
}

pub fn swept(name: &str, at: &str) -> (Net, Sm) {
    let mut net = Net::named(name);
    let mut sm = Sm::new(at);
    sm.sweep(&mut net);
    net.run();
    net.events.clear();
    net.arrived.clear();
    (net, sm)
}
