// SPDX-License-Identifier: GPL-2.0
#include <linux/rcupdate.h>
#include <rdma/ib_verbs.h>
#include <rdma/ib_cm.h>
#include "helpers.h"

/*
 * A module that adds no type of its own to the kernel's BTF cannot be linked
 * (resolve_btfids of 7.3 refuses an empty set); this one is ours, and lets Rust
 * check at load that bindgen and the C compiler agree on the layouts.
 */
void rust_helper_apm_layout(struct apm_layout *l)
{
	l->ib_cm_id = sizeof(struct ib_cm_id);
	l->ib_qp = sizeof(struct ib_qp);
}

void rust_helper_apm_synchronize_rcu_tasks(void)
{
	synchronize_rcu_tasks();
}
