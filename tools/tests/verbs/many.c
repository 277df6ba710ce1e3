// SPDX-License-Identifier: GPL-2.0-only
/*
 * Very many connections at once: what they take, and that each of them works.
 */
#define pr_fmt(fmt) "verbs: " fmt

#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include "verbs.h"

/* The queue pairs of one connection. */
struct qps {
	struct ib_qp *a, *b;
};

static void choose(struct pair *p, const struct qps *q)
{
	p->a.qp = q->a;
	p->b.qp = q->b;
}

static int connect_another(struct pair *p, struct qps *q)
{
	int ret = side_make_qp(&p->a);

	if (ret)
		return ret;
	q->a = p->a.qp;
	ret = side_make_qp(&p->b);
	if (ret)
		return ret;
	q->b = p->b.qp;
	ret = side_connect(&p->b, &p->a, 0, 14);
	return ret ?: side_connect(&p->a, &p->b, 0, 14);
}

/* One message over each, all of them under way at the same time. */
static int talk(struct pair *p, const struct qps *q, unsigned int n)
{
	unsigned int i;
	int ret = 0;

	for (i = 0; i < n && !ret; i++) {
		choose(p, &q[i]);
		ret = post_recv(&p->b, 0, 64);
		if (!ret)
			ret = post_send(&p->a, 0, 64, 0);
		cond_resched();
	}
	for (i = 0; i < n && !ret; i++) {
		ret = expect_wc(&p->a, IB_WC_SUCCESS);
		if (!ret)
			ret = expect_wc(&p->b, IB_WC_SUCCESS);
	}
	return ret;
}

int run_many(unsigned int pairs)
{
	struct options o = { .cqe = pairs };
	ktime_t start = ktime_get();
	struct pair *p;
	struct qps *q, own;
	long before, taken;
	unsigned int i = 0;
	int ret;

	p = kzalloc_obj(*p);
	q = kvcalloc(pairs, sizeof(*q), GFP_KERNEL);
	if (!p || !q) {
		ret = -ENOMEM;
		goto free;
	}
	ret = pair_open(p, &o);
	own = (struct qps){ p->a.qp, p->b.qp };
	before = si_mem_available();
	for (; i < pairs && !ret; i++) {
		ret = connect_another(p, &q[i]);
		cond_resched();
	}
	taken = before - si_mem_available();
	pr_info("%u queue pairs take %ld MiB, made in %lld ms\n", 2 * i,
		taken >> (20 - PAGE_SHIFT), ktime_ms_delta(ktime_get(), start));
	start = ktime_get();
	if (!ret)
		ret = talk(p, q, pairs);
	pr_info("a message over each in %lld ms: %d\n",
		ktime_ms_delta(ktime_get(), start), ret);
	while (i--) {
		if (q[i].a)
			ib_destroy_qp(q[i].a);
		if (q[i].b)
			ib_destroy_qp(q[i].b);
		cond_resched();
	}
	choose(p, &own);
	pair_close(p);
free:
	kvfree(q);
	kfree(p);
	return ret;
}
