// SPDX-License-Identifier: GPL-2.0-only
#include <linux/bottom_half.h>
#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/ratelimit.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>
#include "helpers.h"

/* Lets Rust check at load that bindgen and the C compiler agree. */
void rust_helper_vf_layout(struct vf_layout *l)
{
	l->ib_device = sizeof(struct ib_device);
	l->ib_qp = sizeof(struct ib_qp);
}

int rust_helper_vf_thread_start(struct vf_thread *t, int (*fn)(void *data),
				void *data)
{
	struct task_struct *task;

	task = kthread_create(fn, data, "vfabric");
	if (IS_ERR(task))
		return PTR_ERR(task);
	t->task = task;
	wake_up_process(task);
	return 0;
}

void rust_helper_vf_thread_stop(struct vf_thread *t)
{
	kthread_stop(t->task);
	t->task = NULL;
}

/* From any context, until the thread is stopped. */
void rust_helper_vf_thread_kick(struct vf_thread *t)
{
	if (!xchg(&t->kick, 1))
		wake_up_process(t->task);
}

/*
 * Waits for a kick, a request to stop, or @deadline (CLOCK_MONOTONIC, ns;
 * U64_MAX: none). Exact to the timer, not to the tick: ACK timers begin at 4 us.
 * Returns whether the thread is to stop.
 */
bool rust_helper_vf_thread_wait(struct vf_thread *t, u64 deadline)
{
	ktime_t at = ns_to_ktime(deadline);

	set_current_state(TASK_INTERRUPTIBLE);
	if (!READ_ONCE(t->kick) && !kthread_should_stop())
		schedule_hrtimeout(deadline == U64_MAX ? NULL : &at,
				   HRTIMER_MODE_ABS);
	__set_current_state(TASK_RUNNING);
	cond_resched();
	xchg(&t->kick, 0);
	return kthread_should_stop();
}

unsigned int rust_helper_vf_noio_save(void)
{
	return memalloc_noio_save();
}

void rust_helper_vf_noio_restore(unsigned int flags)
{
	memalloc_noio_restore(flags);
}

void rust_helper_vf_bh_disable(void)
{
	local_bh_disable();
}

void rust_helper_vf_bh_enable(void)
{
	local_bh_enable();
}

/* Waits until core's work on @cq, if it is polled by one, is through with what it took. */
void rust_helper_vf_cq_flush(struct ib_cq *cq)
{
	if (cq->poll_ctx == IB_POLL_WORKQUEUE ||
	    cq->poll_ctx == IB_POLL_UNBOUND_WORKQUEUE)
		flush_work(&cq->work);
}

unsigned int rust_helper_vf_cpus(void)
{
	return num_possible_cpus();
}

bool rust_helper_vf_may_log(void)
{
	static DEFINE_RATELIMIT_STATE(rs, 5 * HZ, 50);

	return __ratelimit(&rs);
}

/* A charp parameter takes 1024 characters; a topology may be longer. */
static char *topology;

static int topology_set(const char *val, const struct kernel_param *kp)
{
	char *copy = kstrdup(val, GFP_KERNEL);

	if (!copy)
		return -ENOMEM;
	kfree(topology);
	topology = copy;
	return 0;
}

static int topology_get(char *buf, const struct kernel_param *kp)
{
	return scnprintf(buf, PAGE_SIZE, "%s\n", topology ?: "rails");
}

static void topology_free(void *arg)
{
	kfree(topology);
	topology = NULL;
}

static const struct kernel_param_ops topology_ops = {
	.set = topology_set,
	.get = topology_get,
	.free = topology_free,
};

module_param_cb(topology, &topology_ops, NULL, 0444);
MODULE_PARM_DESC(topology, "rails, or lines of text separated by newline or ';': hca NAME ports=N, switch NAME ports=N, link A/1 B/2");

/* The text given at load, NULL where there was none. */
const char *rust_helper_vf_topology(void)
{
	return topology;
}

static char *knobs;
module_param(knobs, charp, 0444);
MODULE_PARM_DESC(knobs, "How HCAs are set from the start, separated by newline or ';': NODE NAME=VALUE ..., or all NAME=VALUE ...");

/* The text given at load, NULL where there was none. */
const char *rust_helper_vf_knobs(void)
{
	return knobs;
}

/* What an InfiniBand port can do: an expression of macros. */
u32 rust_helper_vf_core_cap(void)
{
	return RDMA_CORE_PORT_IBA_IB;
}

/*
 * memcpy() moves byte by byte where the CPU says that this is as quick; an
 * emulated one says so, too, and it is not. KASAN has to see what is copied.
 */
void rust_helper_vf_copy(void *to, const void *from, size_t n)
{
#if defined(CONFIG_X86_64) && !defined(CONFIG_KASAN)
	size_t words = n / 8;

	asm volatile("rep movsq"
		     : "+D" (to), "+S" (from), "+c" (words) : : "memory");
	n %= 8;
#endif
	memcpy(to, from, n);
}
