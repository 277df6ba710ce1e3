// SPDX-License-Identifier: GPL-2.0-only

//! Records of subnet administration (IBA volume 1, chapter 15): NodeRecord, PortInfoRecord, LinkRecord,
//! LinearForwardingTableRecord and PathRecord.

use super::{be16, be64, bytes, Gid};

/// NodeRecord: one port of a node, with the node it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeRecord {
    /// Base LID of the port.
    pub(crate) lid: u16,
    /// 1: channel adapter, 2: switch, 3: router.
    pub(crate) node_type: u8,
    /// The same for all ports of a node; host byte order.
    pub(crate) node_guid: u64,
    /// Host byte order.
    pub(crate) port_guid: u64,
}

impl NodeRecord {
    /// `node_type` of a channel adapter.
    pub(crate) const CHANNEL_ADAPTER: u8 = 1;

    /// Reads one record; `None` when it is too short to be one.
    pub(crate) fn parse(rec: &[u8]) -> Option<Self> {
        Some(Self {
            lid: be16(rec, 0)?,
            node_type: *rec.get(6)?,
            node_guid: be64(rec, 16)?,
            port_guid: be64(rec, 24)?,
        })
    }
}

/// PortInfoRecord: which LIDs an end port has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortInfoRecord {
    /// Base LID of the port.
    pub(crate) lid: u16,
    /// It has 2^lmc LIDs (0 to 7).
    pub(crate) lmc: u8,
}

impl PortInfoRecord {
    /// Reads one record; `None` when it is too short to be one.
    pub(crate) fn parse(rec: &[u8]) -> Option<Self> {
        // Four bytes of RID before PortInfo.
        Some(Self {
            lid: be16(rec, 20)?,
            lmc: rec.get(38)? & 7,
        })
    }
}

/// LinkRecord: one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkRecord {
    /// Base LID of the port (HCA) or node (switch) at this end.
    pub(crate) from_lid: u16,
    /// Port number at this end.
    pub(crate) from_port: u8,
    /// Port number at the other end.
    pub(crate) to_port: u8,
    /// Base LID at the other end.
    pub(crate) to_lid: u16,
}

impl LinkRecord {
    /// Reads one record; `None` when it is too short to be one.
    pub(crate) fn parse(rec: &[u8]) -> Option<Self> {
        Some(Self {
            from_lid: be16(rec, 0)?,
            from_port: *rec.get(2)?,
            to_port: *rec.get(3)?,
            to_lid: be16(rec, 4)?,
        })
    }
}

/// LinearForwardingTableRecord: by which port a switch sends to 64 LIDs in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForwardingRecord {
    /// Base LID of the switch.
    pub(crate) switch: u16,
    /// Number of the block.
    pub(crate) block: u16,
    /// Port number for each LID; 255 for none.
    pub(crate) ports: [u8; Self::LIDS],
}

impl ForwardingRecord {
    /// LIDs in a block.
    pub(crate) const LIDS: usize = 64;

    /// Reads one record; `None` when it is too short to be one.
    pub(crate) fn parse(rec: &[u8]) -> Option<Self> {
        Some(Self {
            switch: be16(rec, 0)?,
            block: be16(rec, 2)?,
            ports: bytes(rec, 8)?,
        })
    }
}

/// PathRecord: a way from one port to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PathRecord {
    /// GID of the far port.
    pub(crate) dgid: Gid,
    /// GID of the near port.
    pub(crate) sgid: Gid,
    /// LID of the far port, LMC bits included.
    pub(crate) dlid: u16,
    /// LID of the near port, LMC bits included.
    pub(crate) slid: u16,
    /// For the GRH: 20 bits.
    pub(crate) flow_label: u32,
    /// For the GRH; 0 where none is needed.
    pub(crate) hop_limit: u8,
    /// For the GRH.
    pub(crate) traffic_class: u8,
    /// Whether the same path leads back.
    pub(crate) reversible: bool,
    /// Partition key, membership bit included.
    pub(crate) pkey: u16,
    /// Service level, 4 bits.
    pub(crate) sl: u8,
    /// Path MTU as `enum ib_mtu` codes it: 1 for 256 bytes to 5 for 4096.
    pub(crate) mtu: u8,
    /// Packet rate as `enum ib_rate` codes it.
    pub(crate) rate: u8,
    /// 4.096 us x 2^n.
    pub(crate) packet_life_time: u8,
}

impl PathRecord {
    /// Reads one record; `None` when it is too short to be one.
    pub(crate) fn parse(rec: &[u8]) -> Option<Self> {
        let label = u32::from_be_bytes(bytes(rec, 44)?);
        Some(Self {
            dgid: Gid(bytes(rec, 8)?),
            sgid: Gid(bytes(rec, 24)?),
            dlid: be16(rec, 40)?,
            slid: be16(rec, 42)?,
            flow_label: (label >> 8) & 0xf_ffff,
            hop_limit: label as u8,
            traffic_class: *rec.get(48)?,
            reversible: rec.get(49)? & 0x80 != 0,
            pkey: be16(rec, 50)?,
            sl: rec.get(53)? & 0xf,
            mtu: rec.get(54)? & 0x3f,
            rate: rec.get(55)? & 0x3f,
            packet_life_time: rec.get(56)? & 0x3f,
        })
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn node_record_fields() {
        let mut rec = [0u8; 108];
        rec[0..2].copy_from_slice(&[0x12, 0x34]);
        rec[6] = 1;
        rec[16..24].copy_from_slice(&0x0002_c903_0000_0100u64.to_be_bytes());
        rec[24..32].copy_from_slice(&0x0002_c903_0000_0102u64.to_be_bytes());
        let node = NodeRecord::parse(&rec).unwrap();
        assert_eq!(node.lid, 0x1234);
        assert_eq!(node.node_type, NodeRecord::CHANNEL_ADAPTER);
        assert_eq!(node.node_guid, 0x0002_c903_0000_0100);
        assert_eq!(node.port_guid, 0x0002_c903_0000_0102);
        assert_eq!(NodeRecord::parse(&rec[..31]), None);
    }

    #[test]
    fn topology_record_fields() {
        let mut rec = [0u8; 72];
        rec[0..8].copy_from_slice(&[0, 9, 7, 8, 0x12, 0x34, 0, 0]);
        let link = LinkRecord::parse(&rec).unwrap();
        assert_eq!((link.from_lid, link.from_port), (9, 7));
        assert_eq!((link.to_lid, link.to_port), (0x1234, 8));
        assert_eq!(LinkRecord::parse(&rec[..5]), None);

        rec[2..4].copy_from_slice(&[0, 3]);
        rec[8] = 5;
        rec[71] = 6;
        let block = ForwardingRecord::parse(&rec).unwrap();
        assert_eq!((block.switch, block.block), (9, 3));
        assert_eq!((block.ports[0], block.ports[63]), (5, 6));
        assert_eq!(ForwardingRecord::parse(&rec[..71]), None);

        rec[20..22].copy_from_slice(&[0x12, 0x34]);
        rec[38] = 0xfa;
        let port = PortInfoRecord::parse(&rec).unwrap();
        assert_eq!((port.lid, port.lmc), (0x1234, 2));
        assert_eq!(PortInfoRecord::parse(&rec[..38]), None);
    }

    #[test]
    fn path_record_fields() {
        let mut rec = [0u8; 64];
        let dgid = Gid::new(0xfe80_0000_0000_0000, 7);
        rec[8..24].copy_from_slice(&dgid.0);
        rec[40..44].copy_from_slice(&[0, 5, 0, 4]);
        rec[44..48].copy_from_slice(&0x0abc_de03u32.to_be_bytes());
        rec[49] = 0x81;
        rec[50..52].copy_from_slice(&[0xff, 0xff]);
        rec[53] = 0xf3;
        rec[54] = 0x84;
        rec[55] = 0x83;
        rec[56] = 0x92;
        let path = PathRecord::parse(&rec).unwrap();
        assert_eq!(path.dgid, dgid);
        assert_eq!((path.dlid, path.slid), (5, 4));
        assert_eq!((path.flow_label, path.hop_limit), (0xabcde, 3));
        assert!(path.reversible);
        assert_eq!((path.pkey, path.sl, path.mtu), (0xffff, 3, 4));
        assert_eq!((path.rate, path.packet_life_time), (3, 18));
        assert_eq!(PathRecord::parse(&rec[..56]), None);
    }
}
