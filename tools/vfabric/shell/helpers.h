/* SPDX-License-Identifier: GPL-2.0 */
/* C shims for what Rust cannot call: static inlines and macros. */
#ifndef VFABRIC_HELPERS_H
#define VFABRIC_HELPERS_H

#include <linux/types.h>

/* Sizes as the C compiler sees them. */
struct vf_layout {
	size_t ib_device;
	size_t ib_qp;
};

void rust_helper_vf_layout(struct vf_layout *l);

#endif
