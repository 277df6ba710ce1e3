/* SPDX-License-Identifier: GPL-2.0 */
/* C shims for what Rust cannot call: static inlines and macros. */
#ifndef IB_CM_APM_HELPERS_H
#define IB_CM_APM_HELPERS_H

#include <linux/types.h>

/* Sizes as the C compiler sees them. */
struct apm_layout {
	size_t ib_cm_id;
	size_t ib_qp;
};

void rust_helper_apm_layout(struct apm_layout *l);
void rust_helper_apm_synchronize_rcu_tasks(void);

#endif
