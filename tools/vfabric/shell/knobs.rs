// SPDX-License-Identifier: GPL-2.0-only

//! `knob NODE NAME=VALUE …`: how HCAs are set, at load by the parameter `knobs`, later by `control`.

use super::bindings;
use super::engine::Shared;
use super::log::name;
use super::parameter;
use kernel::prelude::*;

/// Sets what `line`, without the word `knob`, says; `all` means every HCA.
///
/// -EINVAL with a line in the log where it is wrong; nothing has changed then.
pub(crate) fn set(shared: &Shared, line: &str) -> Result {
    let (node, words) = line.split_once(' ').unwrap_or((line, ""));
    let mut st = shared.lock();
    let mut found = false;
    for index in 0..st.hcas().len() {
        let id = st.hca_ref(index).node;
        if node != "all" && name(&st, id) != node {
            continue;
        }
        found = true;
        if let Err(e) = st.set_knobs(index, words) {
            pr_err!("knob {}: {}\n", line, e.as_str());
            return Err(EINVAL);
        }
    }
    if found {
        pr_info!("knob {}\n", line);
        Ok(())
    } else {
        pr_err!("knob {}: no such HCA\n", line);
        Err(EINVAL)
    }
}

/// Sets what the parameter says, before there are devices: consumers keep what a new one tells them.
pub(crate) fn from_parameter(shared: &Shared) -> Result {
    // SAFETY: The parameter is freed with the module.
    let text = unsafe { parameter("knobs", bindings::vf_knobs()) }?.unwrap_or("");
    for line in text.split([';', '\n']).map(str::trim) {
        if !line.is_empty() {
            set(shared, line)?;
        }
    }
    Ok(())
}
