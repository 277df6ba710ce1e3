// SPDX-License-Identifier: GPL-2.0-only

//! MADs of subnet administration (IBA volume 1, chapters 13.6 and 15.2): requests, headers, RMPP data.

use super::{be16, put, Gid};

/// Bytes of a MAD.
pub(crate) const MAD_LEN: usize = 256;
/// Bytes before the data of each segment: common MAD, RMPP and SA header.
pub(crate) const HEADER_LEN: usize = 56;
/// Bytes of data that one segment carries.
pub(crate) const SEGMENT_LEN: usize = 200;

const CLASS_SUBN_ADM: u8 = 3;
const CLASS_VERSION: u8 = 2;
const METHOD_GET_TABLE: u8 = 0x12;
const METHOD_GET_TABLE_RESP: u8 = 0x92;
const ATTR_NODE: u16 = 0x11;
const ATTR_PORT_INFO: u16 = 0x12;
const ATTR_FORWARDING: u16 = 0x15;
const ATTR_LINK: u16 = 0x20;
const ATTR_PATH: u16 = 0x35;

// Component masks: one bit for each field of the record, in its order.
const NODE_LID: u64 = 1 << 0;
const NODE_NODE_GUID: u64 = 1 << 7;
const NODE_PORT_GUID: u64 = 1 << 8;
const PORT_INFO_LID: u64 = 1 << 0;
const FORWARDING_LID: u64 = 1 << 0;
const FORWARDING_BLOCK: u64 = 1 << 1;
const LINK_FROM_LID: u64 = 1 << 0;
const LINK_FROM_PORT: u64 = 1 << 1;
const PATH_DGID: u64 = 1 << 2;
const PATH_SGID: u64 = 1 << 3;
const PATH_REVERSIBLE: u64 = 1 << 11;
const PATH_NUMB_PATH: u64 = 1 << 12;
const PATH_PKEY: u64 = 1 << 13;
const PATH_SL: u64 = 1 << 15;

/// A question to subnet administration, always asked as a table (SubnAdmGetTable).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    /// The NodeRecord of the port with this GUID.
    NodeOfPort(u64),
    /// The NodeRecord of the port with this LID.
    NodeOfLid(u16),
    /// The NodeRecords of all ports of the node with this NodeGUID.
    PortsOfNode(u64),
    /// The PortInfoRecords of the end port that has this LID, or of the node it belongs to.
    PortOfLid(u16),
    /// The LinkRecords of all links that begin at the node (switch) or port (HCA) with this base LID.
    LinksFrom(u16),
    /// The LinkRecords of all links that begin at a port with this number, of whichever node.
    LinksByPort(u8),
    /// A block of the linear forwarding table of the switch with this LID.
    Forwarding {
        /// Base LID of the switch.
        switch: u16,
        /// Block `n` is about the LIDs from 64n to 64n + 63.
        block: u16,
    },
    /// Reversible PathRecords between two ports.
    Paths {
        /// Near port.
        sgid: Gid,
        /// Far port.
        dgid: Gid,
        /// Partition key that both must have.
        pkey: u16,
        /// Service level that the path must have.
        sl: u8,
    },
}

impl Query {
    /// Attribute id, host byte order.
    fn attribute(&self) -> u16 {
        match self {
            Self::NodeOfPort(_) | Self::NodeOfLid(_) | Self::PortsOfNode(_) => ATTR_NODE,
            Self::PortOfLid(_) => ATTR_PORT_INFO,
            Self::LinksFrom(_) | Self::LinksByPort(_) => ATTR_LINK,
            Self::Forwarding { .. } => ATTR_FORWARDING,
            Self::Paths { .. } => ATTR_PATH,
        }
    }

    /// Lays out the request with this transaction id (host byte order) in a MAD.
    ///
    /// `None` only where the buffer is shorter than [`MAD_LEN`].
    pub(crate) fn write(&self, tid: u64, mad: &mut [u8]) -> Option<()> {
        mad.get_mut(..MAD_LEN)?.fill(0);
        put(mad, 0, [1, CLASS_SUBN_ADM, CLASS_VERSION, METHOD_GET_TABLE])?;
        put(mad, 8, tid.to_be_bytes())?;
        put(mad, 16, self.attribute().to_be_bytes())?;
        let mask: u64 = match *self {
            Self::NodeOfLid(lid) => {
                put(mad, HEADER_LEN, lid.to_be_bytes())?;
                NODE_LID
            }
            Self::PortsOfNode(guid) => {
                put(mad, HEADER_LEN.checked_add(16)?, guid.to_be_bytes())?;
                NODE_NODE_GUID
            }
            Self::NodeOfPort(guid) => {
                put(mad, HEADER_LEN.checked_add(24)?, guid.to_be_bytes())?;
                NODE_PORT_GUID
            }
            Self::PortOfLid(lid) => {
                put(mad, HEADER_LEN, lid.to_be_bytes())?;
                PORT_INFO_LID
            }
            Self::LinksFrom(lid) => {
                put(mad, HEADER_LEN, lid.to_be_bytes())?;
                LINK_FROM_LID
            }
            Self::LinksByPort(port) => {
                put(mad, HEADER_LEN.checked_add(2)?, [port])?;
                LINK_FROM_PORT
            }
            Self::Forwarding { switch, block } => {
                put(mad, HEADER_LEN, switch.to_be_bytes())?;
                put(mad, HEADER_LEN.checked_add(2)?, block.to_be_bytes())?;
                FORWARDING_LID | FORWARDING_BLOCK
            }
            Self::Paths {
                sgid,
                dgid,
                pkey,
                sl,
            } => {
                let rec = mad.get_mut(HEADER_LEN..)?;
                put(rec, 8, dgid.0)?;
                put(rec, 24, sgid.0)?;
                // Reversible, and at most 16 records.
                put(rec, 49, [0x80 | 16])?;
                put(rec, 50, pkey.to_be_bytes())?;
                put(rec, 53, [sl & 0xf])?;
                PATH_DGID | PATH_SGID | PATH_REVERSIBLE | PATH_NUMB_PATH | PATH_PKEY | PATH_SL
            }
        };
        put(mad, 48, mask.to_be_bytes())
    }
}

/// Why an answer cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nobody answered in time.
    Timeout,
    /// No record fits the question.
    NoRecords,
    /// Subnet administration is there, but did not answer the question (status in host byte order).
    Status(u16),
    /// The answer is not one to this question, or is cut short.
    Malformed,
    /// The question was withdrawn: device or module go, or no memory.
    Cancelled,
}

/// What the header of an answer says about the records that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes from one record to the next; 0 when there is none.
    pub(crate) record_len: usize,
}

impl Header {
    /// Checks the header (at least [`HEADER_LEN`] bytes of the first segment) of an answer to `query`.
    pub(crate) fn parse(mad: &[u8], query: &Query) -> Result<Self, Failure> {
        let field = |offset| be16(mad, offset).ok_or(Failure::Malformed);
        let status = field(4)?;
        match status {
            0 => {}
            // Class-specific status 3: ERR_NO_RECORDS.
            0x0300 => return Err(Failure::NoRecords),
            _ => return Err(Failure::Status(status)),
        }
        if mad.get(1) != Some(&CLASS_SUBN_ADM)
            || mad.get(3) != Some(&METHOD_GET_TABLE_RESP)
            || field(16)? != query.attribute()
        {
            return Err(Failure::Malformed);
        }
        // AttributeOffset counts in units of eight bytes.
        let record_len = usize::from(field(44)?).saturating_mul(8);
        Ok(Self { record_len })
    }
}

/// Bytes of records in an answer of `mad_len` bytes (`ib_mad_recv_wc`, one header included), of which
/// `received` bytes of data are at hand. The smaller wins: neither is to be believed alone.
pub(crate) fn data_len(mad_len: usize, received: usize) -> usize {
    mad_len.saturating_sub(HEADER_LEN).min(received)
}

/// The records in the joined data of all segments; one may have begun in one segment and ended in the next.
#[derive(Clone, Debug)]
pub(crate) struct Records<'a> {
    data: &'a [u8],
    record_len: usize,
}

impl<'a> Records<'a> {
    /// Records of `header.record_len` bytes each; what is left over at the end is no record.
    pub(crate) fn new(header: &Header, data: &'a [u8]) -> Self {
        Self {
            data,
            record_len: header.record_len,
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.record_len == 0 {
            return None;
        }
        let (record, rest) = self.data.split_at_checked(self.record_len)?;
        self.data = rest;
        Some(record)
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::super::records::{NodeRecord, PathRecord};
    use super::*;
    use proptest::prelude::*;

    fn answer(query: &Query, status: u16, offset: u16) -> [u8; MAD_LEN] {
        let mut mad = [0u8; MAD_LEN];
        query.write(1, &mut mad).unwrap();
        mad[3] = METHOD_GET_TABLE_RESP;
        mad[4..6].copy_from_slice(&status.to_be_bytes());
        mad[44..46].copy_from_slice(&offset.to_be_bytes());
        mad
    }

    #[test]
    fn node_request() {
        let mut mad = [0xaau8; MAD_LEN];
        Query::NodeOfPort(0x0102_0304_0506_0708)
            .write(0x1122_3344_5566_7788, &mut mad)
            .unwrap();
        assert_eq!(mad[..4], [1, 3, 2, 0x12]);
        assert_eq!(mad[8..16], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(mad[16..18], [0, 0x11]);
        assert_eq!(mad[48..56], (1u64 << 8).to_be_bytes());
        let rec = NodeRecord::parse(&mad[HEADER_LEN..]).unwrap();
        assert_eq!(rec.port_guid, 0x0102_0304_0506_0708);
        assert_eq!(rec.node_guid, 0);
    }

    #[test]
    fn path_request() {
        let query = Query::Paths {
            sgid: Gid::new(0xfe80 << 48, 1),
            dgid: Gid::new(0xfe80 << 48, 2),
            pkey: 0x8001,
            sl: 3,
        };
        let mut mad = [0u8; MAD_LEN];
        query.write(9, &mut mad).unwrap();
        let rec = PathRecord::parse(&mad[HEADER_LEN..]).unwrap();
        assert_eq!(rec.sgid, Gid::new(0xfe80 << 48, 1));
        assert_eq!(rec.dgid, Gid::new(0xfe80 << 48, 2));
        assert_eq!((rec.pkey, rec.sl, rec.reversible), (0x8001, 3, true));
        // DGID, SGID, reversible, number of paths, P_Key, SL: ib_sa.h, IB_SA_PATH_REC_*.
        assert_eq!(mad[48..56], 0xb80cu64.to_be_bytes());
    }

    #[test]
    fn topology_requests() {
        let mut mad = [0u8; MAD_LEN];
        let cases = [
            (Query::PortOfLid(0x0102), 0x12, [1, 2, 0, 0], 1),
            (Query::LinksFrom(0x0102), 0x20, [1, 2, 0, 0], 1),
            (Query::LinksByPort(3), 0x20, [0, 0, 3, 0], 2),
            (
                Query::Forwarding {
                    switch: 0x0102,
                    block: 0x0304,
                },
                0x15,
                [1, 2, 3, 4],
                3u64,
            ),
        ];
        for (query, attribute, data, mask) in cases {
            query.write(1, &mut mad).unwrap();
            assert_eq!(mad[16..18], [0, attribute]);
            assert_eq!(mad[48..56], mask.to_be_bytes());
            assert_eq!(mad[HEADER_LEN..HEADER_LEN + 4], data);
        }
    }

    #[test]
    fn short_buffer_is_refused() {
        assert_eq!(Query::NodeOfLid(1).write(1, &mut [0u8; 255]), None);
    }

    #[test]
    fn header_is_checked() {
        let query = Query::PortsOfNode(5);
        let good = answer(&query, 0, 14);
        assert_eq!(Header::parse(&good, &query), Ok(Header { record_len: 112 }));
        assert_eq!(
            Header::parse(&answer(&query, 0x0300, 14), &query),
            Err(Failure::NoRecords)
        );
        assert_eq!(
            Header::parse(&answer(&query, 0x000c, 14), &query),
            Err(Failure::Status(0x0c))
        );
        let other = Query::Paths {
            sgid: Gid::default(),
            dgid: Gid::default(),
            pkey: 0,
            sl: 0,
        };
        assert_eq!(Header::parse(&good, &other), Err(Failure::Malformed));
        assert_eq!(Header::parse(&good[..20], &query), Err(Failure::Malformed));
    }

    #[test]
    fn no_records_without_a_length() {
        let data = [0u8; 64];
        assert_eq!(Records::new(&Header { record_len: 0 }, &data).count(), 0);
    }

    proptest! {
        /// However the data is cut into segments, every record comes out whole.
        #[test]
        fn records_straddle_segments(count in 0usize..12, extra in 0usize..100, units in 4u16..16) {
            let record_len = usize::from(units) * 8;
            let mut data = Vec::new();
            for n in 0..count {
                let mut rec = vec![0u8; record_len];
                rec[0..2].copy_from_slice(&(n as u16).to_be_bytes());
                data.extend(rec);
            }
            let total = data.len();
            data.resize((total + extra).div_ceil(SEGMENT_LEN) * SEGMENT_LEN, 0xee);
            let len = data_len(HEADER_LEN + total, data.len());
            let lids: Vec<_> = Records::new(&Header { record_len }, &data[..len])
                .map(|r| NodeRecord::parse(r).unwrap().lid)
                .collect();
            prop_assert_eq!(lids, (0..count as u16).collect::<Vec<_>>());
        }

        /// Whatever arrives, reading it doesn't panic.
        #[test]
        fn anything_is_survived(mad in prop::collection::vec(any::<u8>(), 0..600), len in any::<usize>()) {
            let query = Query::NodeOfLid(3);
            let _ = Header::parse(&mad, &query);
            let header = Header { record_len: usize::from(be16(&mad, 0).unwrap_or(0)) };
            for rec in Records::new(&header, &mad[..data_len(len, mad.len())]) {
                let _ = NodeRecord::parse(rec);
                let _ = PathRecord::parse(rec);
            }
        }
    }
}
