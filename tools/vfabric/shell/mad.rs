// SPDX-License-Identifier: GPL-2.0-only

//! MADs that core hands to the HCA's own agents.

use super::bindings;
use super::hca;
use super::state;
use crate::model::fabric::{MadRequest, MadResult};

/// `process_mad`
///
/// # Safety
///
/// For core alone, with what it gives to this operation of a registered device.
pub(super) unsafe extern "C" fn process(
    ib: *mut bindings::ib_device,
    flags: i32,
    port: u32,
    _wc: *const bindings::ib_wc,
    _grh: *const bindings::ib_grh,
    input: *const bindings::ib_mad,
    output: *mut bindings::ib_mad,
    _size: *mut usize,
    _pkey_index: *mut u16,
) -> i32 {
    // SAFETY: A live device; core gives two MADs, of which the second is to be filled.
    let (hca, mad) = unsafe {
        core::ptr::copy_nonoverlapping(input, output, 1);
        (hca::from_ib(ib), &mut *output.cast::<[u8; 256]>())
    };
    let request = MadRequest {
        ignore_mkey: flags as u32 & bindings::ib_process_mad_flags_IB_MAD_IGNORE_MKEY != 0,
    };
    let number = u8::try_from(port).unwrap_or(0);
    let result = {
        let mut st = hca.shared.lock();
        let result = st
            .fabric
            .process_mad(hca.node, number, mad, request, state::now());
        drop(st);
        // The MAD may have caused port events or traps.
        hca.shared.kick();
        result
    };
    (match result {
        MadResult::Reply => {
            bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS
                | bindings::ib_mad_result_IB_MAD_RESULT_REPLY
        }
        MadResult::Consumed => {
            bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS
                | bindings::ib_mad_result_IB_MAD_RESULT_CONSUMED
        }
        MadResult::PassToAgents => bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS,
    }) as i32
}
