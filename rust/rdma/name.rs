// SPDX-License-Identifier: GPL-2.0-only

//! Short names, copied: what they are read from may go away.

use core::fmt;
use kernel::ffi::c_char;

const CAPACITY: usize = 64;

/// A name of up to 63 bytes of ASCII; the rest of a longer one is cut off.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Name {
    /// Copies a C string; empty for a null pointer.
    ///
    /// # Safety
    ///
    /// `s` is null, or readable up to its NUL or for 63 bytes.
    pub(crate) unsafe fn copy(s: *const c_char) -> Self {
        let mut name = Self {
            bytes: [0; CAPACITY],
            len: 0,
        };
        if s.is_null() {
            return name;
        }
        for (n, slot) in name.bytes.iter_mut().take(CAPACITY - 1).enumerate() {
            // SAFETY: No NUL came before and `n` is below 63, so this byte may be read.
            let byte = unsafe { *s.add(n) };
            if byte == 0 {
                break;
            }
            *slot = if byte.is_ascii_graphic() { byte } else { b'?' };
            name.len = n + 1;
        }
        name
    }

    /// Copies a string.
    pub(crate) fn from_str(s: &str) -> Self {
        let mut name = Self {
            bytes: [0; CAPACITY],
            len: 0,
        };
        for (slot, byte) in name.bytes.iter_mut().zip(s.bytes()) {
            *slot = byte;
            name.len += 1;
        }
        name
    }

    /// The name.
    pub(crate) fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len).unwrap_or(&[]);
        core::str::from_utf8(bytes).unwrap_or("?")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
