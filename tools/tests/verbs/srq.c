// SPDX-License-Identifier: GPL-2.0-only
/*
 * Shared receive queues.
 */
#define pr_fmt(fmt) "verbs: " fmt

#include <linux/delay.h>
#include <linux/slab.h>
#include "verbs.h"

#define SRQ_DEPTH	4

static const struct options usual = { .srq = true };

static int post_srq(struct pair *p, u64 id)
{
	struct ib_sge sge = {
		.addr = (uintptr_t)p->b.buf,
		.length = 4096,
		.lkey = p->b.pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	return ib_post_srq_recv(p->b.srq, &wr, NULL);
}

static int srq_in_order(struct pair *p)
{
	struct ib_wc wc;
	int i;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	for (i = 0; i < SRQ_DEPTH; i++)
		if (!check(!post_srq(p, i)))
			return -EIO;
	if (!check(post_srq(p, i) == -ENOMEM))
		return -EIO;
	/* More than one packet each. */
	for (i = 0; i < SRQ_DEPTH; i++)
		if (!check(!post_send(&p->a, 0, 4096, 0)))
			return -EIO;
	for (i = 0; i < SRQ_DEPTH; i++) {
		if (!check(!wait_wc(&p->b, &wc)))
			return -EIO;
		if (!check(wc.status == IB_WC_SUCCESS && wc.wr_id == i))
			return -EIO;
		if (!check(wc.qp == p->b.qp && wc.byte_len == 4096))
			return -EIO;
	}
	return expect_none(&p->b);
}

static int srq_empty(struct pair *p)
{
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	return expect_wc(&p->a, IB_WC_RNR_RETRY_EXC_ERR);
}

/* Told once when fewer than the limit are left, and then not until it is armed again. */
static int srq_limit(struct pair *p)
{
	struct ib_srq_attr attr = { .srq_limit = 3 };
	int i;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	for (i = 0; i < SRQ_DEPTH; i++)
		if (!check(!post_srq(p, i)))
			return -EIO;
	if (!check(!ib_modify_srq(p->b.srq, &attr, IB_SRQ_LIMIT)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	if (!check(!expect_wc(&p->b, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!test_bit(IB_EVENT_SRQ_LIMIT_REACHED, &p->b.events)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	if (!check(await_event(&p->b, IB_EVENT_SRQ_LIMIT_REACHED)))
		return -EIO;
	if (!check(!ib_query_srq(p->b.srq, &attr)))
		return -EIO;
	if (!check(!attr.srq_limit && attr.max_wr == SRQ_DEPTH))
		return -EIO;
	return 0;
}

/* Receives of a shared queue outlive a QP; its consumer learns that it takes no more. */
static int srq_last_wqe(struct pair *p)
{
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_srq(p, 1)))
		return -EIO;
	if (!check(!side_to_error(&p->b)))
		return -EIO;
	if (!check(await_event(&p->b, IB_EVENT_QP_LAST_WQE_REACHED)))
		return -EIO;
	return expect_none(&p->b);
}

const struct test srq_tests[] = {
	{ "srq-in-order", srq_in_order },
	{ "srq-empty", srq_empty },
	{ "srq-limit", srq_limit },
	{ "srq-last-wqe", srq_last_wqe },
	{}
};
