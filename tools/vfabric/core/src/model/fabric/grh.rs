// SPDX-License-Identifier: GPL-2.0-only

//! `grh on`: paths with a GRH in a subnet where they need none.
//!
//! A consumer puts a GRH on its packets where the PathRecord has a HopLimit above 0. Subnet managers
//! that want one everywhere say so there; OpenSM does not inside a subnet. So the answers of the
//! subnet administration are changed as they leave its HCA: every PathRecord in them, in each
//! segment of an RMPP transfer, gets at least the HopLimit asked for.

use super::mad::{get16, get32, MAD_SIZE};

const CLASS_SA: u8 = 0x03;
const ATTR_PATH_RECORD: u16 = 0x0035;
const GET_RESP: u8 = 0x81;
const GET_TABLE_RESP: u8 = 0x92;

// MAD and RMPP header (IBA 13.4.3, 13.6.2.1).
const CLASS: usize = 1;
const METHOD: usize = 3;
const ATTR_ID: usize = 16;
const RMPP_TYPE: usize = 25;
const RMPP_FLAGS: usize = 26;
const RMPP_SEGMENT: usize = 28;
const RMPP_PAYLOAD: usize = 32;
const RMPP_ACTIVE: u8 = 1;
const RMPP_LAST: u8 = 4;
const RMPP_DATA: u8 = 1;
/// AttributeOffset of the SA header, in units of 8 bytes (IBA 15.2.1.1).
const ATTR_OFFSET: usize = 44;
/// Where the records begin.
const DATA: usize = 56;
/// What of a segment's payload length is the header in front of the records.
const SA_HEADER: usize = DATA - 36;
/// HopLimit in a PathRecord (IBA 15.2.5.16).
const HOP_LIMIT: usize = 47;
const RECORD: usize = 64;

/// Gives the PathRecords in `mad`, if it is an answer with such, at least this HopLimit.
pub(super) fn force(mad: &mut [u8], hop_limit: u8) {
    let byte = |at: usize| mad.get(at).copied().unwrap_or(0);
    let answer = matches!(byte(METHOD), GET_RESP | GET_TABLE_RESP);
    if mad.len() != MAD_SIZE
        || byte(CLASS) != CLASS_SA
        || !answer
        || get16(mad, ATTR_ID) != ATTR_PATH_RECORD
    {
        return;
    }
    let flags = byte(RMPP_FLAGS);
    let segment = MAD_SIZE - DATA;
    let (before, here) = if flags & RMPP_ACTIVE == 0 {
        (0, RECORD)
    } else if byte(RMPP_TYPE) == RMPP_DATA {
        let number = get32(mad, RMPP_SEGMENT) as usize;
        let payload = get32(mad, RMPP_PAYLOAD) as usize;
        let here = if flags & RMPP_LAST == 0 {
            segment
        } else {
            payload.saturating_sub(SA_HEADER).min(segment)
        };
        (number.saturating_sub(1).saturating_mul(segment), here)
    } else {
        return;
    };
    let stride = match usize::from(get16(mad, ATTR_OFFSET)) * 8 {
        n if n < RECORD => RECORD,
        n => n,
    };
    let records = mad.iter_mut().skip(DATA).take(here);
    for (at, byte) in (before..).zip(records) {
        if at % stride == HOP_LIMIT {
            *byte = (*byte).max(hop_limit);
        }
    }
}
