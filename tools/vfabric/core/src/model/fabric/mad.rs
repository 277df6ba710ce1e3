// SPDX-License-Identifier: GPL-2.0-only

//! Where things lie in a MAD (IBA 13.4.3, 14.2.1, 16.1.1), and big-endian access to them.

/// Size of a MAD.
pub(super) const MAD_SIZE: usize = 256;
/// MgmtClass.
pub(super) const CLASS: usize = 1;

const BASE_VERSION: usize = 0;
const CLASS_VERSION: usize = 2;
const METHOD: usize = 3;
const STATUS: usize = 4;
const HOP_PTR: usize = 6;
const HOP_CNT: usize = 7;
const TID: usize = 8;
const ATTR_ID: usize = 16;
const ATTR_MOD: usize = 20;
const MKEY: usize = 24;
const DR_SLID: usize = 32;
const DR_DLID: usize = 34;
const DATA: usize = 64;
const INITIAL_PATH: usize = 128;
const RETURN_PATH: usize = 192;
/// Most hops of a directed route.
pub(super) const MAX_HOPS: u8 = 63;

/// LID-routed subnet management.
pub(super) const CLASS_SMP: u8 = 0x01;
/// Performance management.
pub(super) const CLASS_PERF: u8 = 0x04;
/// Directed-route subnet management.
pub(super) const CLASS_SMP_DIRECTED: u8 = 0x81;

pub(super) const METHOD_GET: u8 = 0x01;
pub(super) const METHOD_SET: u8 = 0x02;
pub(super) const METHOD_TRAP: u8 = 0x05;
pub(super) const METHOD_TRAP_REPRESS: u8 = 0x07;
pub(super) const METHOD_GET_RESP: u8 = 0x81;

/// Direction bit in the status of a directed-route SMP: on its way back.
pub(super) const STATUS_DIRECTION: u16 = 0x8000;
pub(super) const STATUS_OK: u16 = 0;
/// Class or base version not supported.
pub(super) const STATUS_BAD_VERSION: u16 = 0x0004;
/// Method/attribute combination not supported.
pub(super) const STATUS_UNSUPPORTED: u16 = 0x000c;
/// A field of the attribute, or the modifier, is invalid.
pub(super) const STATUS_INVALID: u16 = 0x001c;

/// Notice, of either management class.
pub(super) const ATTR_NOTICE: u16 = 0x0002;

/// A MAD.
#[derive(Debug)]
pub(super) struct Mad<'a>(&'a mut [u8; MAD_SIZE]);

impl<'a> Mad<'a> {
    pub(super) fn new(bytes: &'a mut [u8; MAD_SIZE]) -> Self {
        Mad(bytes)
    }

    /// The MAD in a payload, if it has the size of one.
    pub(super) fn from_payload(payload: &'a mut [u8]) -> Option<Self> {
        payload.try_into().ok().map(Mad)
    }

    /// A request of class version 1 in an empty buffer.
    pub(super) fn request(
        bytes: &'a mut [u8; MAD_SIZE],
        class: u8,
        method: u8,
        attr: u16,
        tid: u64,
    ) -> Self {
        *bytes = [0; MAD_SIZE];
        bytes[BASE_VERSION] = 1;
        bytes[CLASS] = class;
        bytes[CLASS_VERSION] = 1;
        bytes[METHOD] = method;
        put64(bytes, TID, tid);
        put16(bytes, ATTR_ID, attr);
        Mad(bytes)
    }

    pub(super) fn class(&self) -> u8 {
        self.0[CLASS]
    }

    pub(super) fn method(&self) -> u8 {
        self.0[METHOD]
    }

    pub(super) fn versions_ok(&self) -> bool {
        self.0[BASE_VERSION] == 1 && self.0[CLASS_VERSION] == 1
    }

    pub(super) fn attr(&self) -> u16 {
        get16(self.0, ATTR_ID)
    }

    pub(super) fn modifier(&self) -> u32 {
        get32(self.0, ATTR_MOD)
    }

    pub(super) fn tid(&self) -> u64 {
        get64(self.0, TID)
    }

    pub(super) fn mkey(&self) -> u64 {
        get64(self.0, MKEY)
    }

    /// Whether a directed-route SMP is on its way back.
    pub(super) fn returning(&self) -> bool {
        get16(self.0, STATUS) & STATUS_DIRECTION != 0
    }

    /// Turns a request into its response.
    pub(super) fn respond(&mut self, status: u16) {
        let direction = match self.class() {
            CLASS_SMP_DIRECTED => STATUS_DIRECTION,
            _ => 0,
        };
        self.0[METHOD] = METHOD_GET_RESP;
        put16(self.0, STATUS, status | direction);
    }

    pub(super) fn hop_ptr(&self) -> u8 {
        self.0[HOP_PTR]
    }

    pub(super) fn set_hop_ptr(&mut self, hop: u8) {
        self.0[HOP_PTR] = hop;
    }

    pub(super) fn hop_cnt(&self) -> u8 {
        self.0[HOP_CNT]
    }

    pub(super) fn dr_slid(&self) -> u16 {
        get16(self.0, DR_SLID)
    }

    pub(super) fn dr_dlid(&self) -> u16 {
        get16(self.0, DR_DLID)
    }

    /// Port `hop` of the way out; 0, which is none, past the end.
    pub(super) fn initial_path(&self, hop: u8) -> u8 {
        self.0[INITIAL_PATH + usize::from(hop.min(MAX_HOPS))]
    }

    /// Port `hop` of the way back.
    pub(super) fn return_path(&self, hop: u8) -> u8 {
        self.0[RETURN_PATH + usize::from(hop.min(MAX_HOPS))]
    }

    pub(super) fn set_return_path(&mut self, hop: u8, port: u8) {
        self.0[RETURN_PATH + usize::from(hop.min(MAX_HOPS))] = port;
    }

    /// The attribute of an SMP, 64 bytes.
    pub(super) fn smp_data(&mut self) -> &mut [u8] {
        &mut self.0[DATA..INITIAL_PATH]
    }

    /// The attribute of a performance MAD, 192 bytes.
    pub(super) fn perf_data(&mut self) -> &mut [u8] {
        &mut self.0[DATA..]
    }
}

/// The two bytes at `at`; 0 past the end.
pub(super) fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(chunk(bytes, at))
}

/// The four bytes at `at`; 0 past the end.
pub(super) fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(chunk(bytes, at))
}

/// The eight bytes at `at`; 0 past the end.
pub(super) fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(chunk(bytes, at))
}

pub(super) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    put(bytes, at, value.to_be_bytes());
}

pub(super) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, value.to_be_bytes());
}

pub(super) fn put64(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, value.to_be_bytes());
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    match bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(chunk) => *chunk,
        None => [0; N],
    }
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = value;
    }
}
