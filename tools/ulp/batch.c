// SPDX-License-Identifier: GPL-2.0-only
/*
 * `listen` and `connect`.
 */
#define pr_fmt(fmt) "apm-test-ulp: " fmt

#include <linux/slab.h>
#include "ulp.h"

static LIST_HEAD(listeners);
static DEFINE_MUTEX(listeners_lock);

int listen(const struct options *opt)
{
	struct listener *l = kzalloc_obj(*l);
	int ret;

	if (!l)
		return -ENOMEM;
	l->opt = *opt;
	/* Under the lock, so that a device that is removed now finds it. */
	mutex_lock(&listeners_lock);
	ret = opt->cm == CM_RDMA ? cm_rdma_listen(l) : cm_ib_listen(l);
	if (!ret)
		list_add_tail(&l->list, &listeners);
	mutex_unlock(&listeners_lock);
	if (ret)
		kfree(l);
	return ret;
}

/* Ends those of an HCA, or all. Waits until none of their handlers runs. */
void unlisten(struct hca *hca)
{
	struct listener *l, *next;
	LIST_HEAD(gone);

	mutex_lock(&listeners_lock);
	list_for_each_entry_safe(l, next, &listeners, list)
		if (!hca || l->opt.hca == hca)
			list_move(&l->list, &gone);
	mutex_unlock(&listeners_lock);
	list_for_each_entry_safe(l, next, &gone, list) {
		if (l->rdma)
			rdma_destroy_id(l->rdma);
		if (l->ib)
			ib_destroy_cm_id(l->ib);
		hca_put(l->opt.hca);
		kfree(l);
	}
}

static void release(struct kref *ref)
{
	struct batch *b = container_of(ref, struct batch, ref);

	hca_put(b->opt.hca);
	kfree(b);
}

static void kick(struct batch *b)
{
	kref_get(&b->ref);
	if (!queue_work(ulp_wq, &b->work))
		kref_put(&b->ref, release);
}

static bool may_go_on(struct batch *b)
{
	return b->next < b->count && !READ_ONCE(stopping) &&
	       !(b->opt.hca && READ_ONCE(b->opt.hca->gone));
}

/* Has as many connects under way as may be. */
static void batch_work(struct work_struct *work)
{
	struct batch *b = container_of(work, struct batch, work);

	while (may_go_on(b) && atomic_read(&b->in_flight) < b->opt.parallel) {
		u32 id = b->first + b->next++;
		struct end *end = end_new(ACTIVE, id, &b->opt, b->opt.window, b->opt.size);

		if (IS_ERR(end)) {
			count(ACTIVE, CONNECT_FAILED);
			continue;
		}
		kref_get(&b->ref);
		end->batch = b;
		atomic_inc(&b->in_flight);
		if (end_publish(end)) {
			pr_err_ratelimited("connection %u is there already\n", id);
			end_abandon(end);
			continue;
		}
		end_kick(end, TODO_START);
	}
	kref_put(&b->ref, release);
}

int connect(u32 first, u32 count, const struct options *opt)
{
	struct batch *b = kzalloc_obj(*b);

	if (!b)
		return -ENOMEM;
	kref_init(&b->ref);
	INIT_WORK(&b->work, batch_work);
	b->opt = *opt;
	b->first = first;
	b->count = count;
	kick(b);
	kref_put(&b->ref, release);
	return 0;
}

/* A connect is over, one way or the other: time for the next. */
void batch_done(struct end *end)
{
	struct batch *b = xchg(&end->batch, NULL);

	if (!b)
		return;
	atomic_dec(&b->in_flight);
	kick(b);
	kref_put(&b->ref, release);
}
