// SPDX-License-Identifier: GPL-2.0-only

//! Plants a use after free in Rust code, which KASAN must find as it does in C. For a throwaway guest only.

use kernel::prelude::*;

module! {
    type: Splat,
    name: "splat_rust",
    authors: ["The ib_cm_apm authors"],
    description: "Plants a use after free in Rust for the test of the dmesg gate",
    license: "GPL",
}

struct Splat;

impl kernel::Module for Splat {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let object = KBox::into_raw(KBox::new([0x5a_u8; 64], GFP_KERNEL)?);
        // SAFETY: `object` comes from `KBox::into_raw`, and nothing else owns it.
        drop(unsafe { KBox::from_raw(object) });
        // SAFETY: None: the object is freed, which is what this module is for.
        let byte = unsafe { object.cast::<u8>().read_volatile() };
        pr_info!("read {byte:#x} out of freed memory\n");
        Ok(Splat)
    }
}
