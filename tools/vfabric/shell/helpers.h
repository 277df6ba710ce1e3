/* SPDX-License-Identifier: GPL-2.0-only */
/* C shims for what Rust cannot call: static inlines and macros. */
#ifndef VFABRIC_HELPERS_H
#define VFABRIC_HELPERS_H

#include <linux/types.h>

struct ib_cq;
struct task_struct;

/* Sizes as the C compiler sees them. */
struct vf_layout {
	size_t ib_device;
	size_t ib_qp;
};

/*
 * The engine's thread. @kick says that there is work: set by whoever makes
 * some, taken back by the thread before it looks for it.
 */
struct vf_thread {
	struct task_struct *task;
	int kick;
};

void rust_helper_vf_layout(struct vf_layout *l);

int rust_helper_vf_thread_start(struct vf_thread *t, int (*fn)(void *data),
				void *data);
void rust_helper_vf_thread_stop(struct vf_thread *t);
void rust_helper_vf_thread_kick(struct vf_thread *t);
bool rust_helper_vf_thread_wait(struct vf_thread *t, u64 deadline);

unsigned int rust_helper_vf_noio_save(void);
void rust_helper_vf_noio_restore(unsigned int flags);
void rust_helper_vf_bh_disable(void);
void rust_helper_vf_bh_enable(void);
void rust_helper_vf_cq_flush(struct ib_cq *cq);
unsigned int rust_helper_vf_cpus(void);
u32 rust_helper_vf_core_cap(void);
void rust_helper_vf_copy(void *to, const void *from, size_t n);
bool rust_helper_vf_may_log(void);
const char *rust_helper_vf_topology(void);
const char *rust_helper_vf_knobs(void);

#endif
