// SPDX-License-Identifier: GPL-2.0-only

//! Layouts of management datagrams (MADs), as the InfiniBand Architecture puts them on the wire.
//!
//! To ask subnet administration for something and to read the answer, do the following:
//!
//! * describe it by a [`sa::Query`] and let [`sa::Query::write`] lay out the 256 bytes of the MAD;
//! * check the answer's header with [`sa::Header::parse`];
//! * put the data of all RMPP segments one behind the other and walk [`sa::Records`], each of which
//!   a `parse` function of [`records`] turns into fields.
//!
//! Everything read here comes from outside: nothing panics, and what is too short is `None`.
//! `core` only, so that the same files are tested on the host.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

pub(crate) mod cm;
pub(crate) mod records;
pub(crate) mod sa;

/// A GID: subnet prefix and GUID of a port, in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

impl Gid {
    /// The GID of the port `guid` in the subnet `prefix`, both in host byte order.
    pub(crate) fn new(prefix: u64, guid: u64) -> Self {
        Self(((u128::from(prefix) << 64) | u128::from(guid)).to_be_bytes())
    }

    /// The subnet prefix, in host byte order.
    pub(crate) fn prefix(&self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The GUID part, in host byte order.
    pub(crate) fn guid(&self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }
}

/// `N` bytes at `offset`, where the buffer has them.
fn bytes<const N: usize>(buf: &[u8], offset: usize) -> Option<[u8; N]> {
    buf.get(offset..)?.first_chunk::<N>().copied()
}

fn be16(buf: &[u8], offset: usize) -> Option<u16> {
    bytes(buf, offset).map(u16::from_be_bytes)
}

fn be64(buf: &[u8], offset: usize) -> Option<u64> {
    bytes(buf, offset).map(u64::from_be_bytes)
}

/// Writes `value` at `offset`; `None`, and nothing written, where the buffer is too short.
fn put<const N: usize>(buf: &mut [u8], offset: usize, value: [u8; N]) -> Option<()> {
    *buf.get_mut(offset..)?.first_chunk_mut::<N>()? = value;
    Some(())
}
