// SPDX-License-Identifier: GPL-2.0-only

//! The state of the ports as text, for debugfs.

use super::port::Port;
use super::Fabric;
use core::fmt;

impl Fabric {
    /// Writes one line of `key=value` pairs for each port.
    pub fn write_ports(&self, out: &mut impl fmt::Write) -> fmt::Result {
        for port in self.nodes.iter().flat_map(|n| n.ports()) {
            self.write_port(out, port)?;
        }
        Ok(())
    }

    fn write_port(&self, out: &mut impl fmt::Write, port: &Port) -> fmt::Result {
        let name = |id| self.node(id).map_or("?", |n| n.name.as_str());
        write!(
            out,
            "{}/{} state={} phys={} lid={} peer=",
            name(port.node),
            port.number,
            port.state.as_str(),
            port.phys.as_str(),
            port.lid
        )?;
        match port.peer {
            Some(peer) => write!(out, "{}/{}", name(peer.node), peer.port)?,
            None => out.write_str("-")?,
        }
        write!(
            out,
            " cut={} blackhole={}",
            u8::from(port.cut),
            port.blackhole.as_str(),
        )?;
        // Losses in percent, delays in microseconds.
        write!(
            out,
            " loss_in={} loss_out={} delay_in={} delay_out={}",
            port.inward.loss, port.outward.loss, port.inward.delay_us, port.outward.delay_us,
        )?;
        writeln!(
            out,
            " tx_pkts={} rx_pkts={} dropped={}",
            port.counters.total.xmit_packets,
            port.counters.total.rcv_packets,
            port.counters.dropped
        )
    }
}
