// SPDX-License-Identifier: GPL-2.0

//! Host build of what the module decides.
