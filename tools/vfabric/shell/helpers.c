// SPDX-License-Identifier: GPL-2.0
#include <rdma/ib_verbs.h>
#include "helpers.h"

/* Lets Rust check at load that bindgen and the C compiler agree. */
void rust_helper_vf_layout(struct vf_layout *l)
{
	l->ib_device = sizeof(struct ib_device);
	l->ib_qp = sizeof(struct ib_qp);
}
