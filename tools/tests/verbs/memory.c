// SPDX-License-Identifier: GPL-2.0-only
/*
 * What keys open, and what they do not.
 */
#define pr_fmt(fmt) "verbs: " fmt

#include <linux/slab.h>
#include "verbs.h"

#define REMOTE	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | \
		 IB_ACCESS_REMOTE_WRITE)

static const struct options usual;

static void fill(char *buf, size_t len, u8 seed)
{
	size_t i;

	for (i = 0; i < len; i++)
		buf[i] = (u8)(i * 7 + i / 251 + seed);
}

/* A refused access: the requester is told, and its QP is dead. */
static int refused(struct pair *p)
{
	int ret = expect_wc(&p->a, IB_WC_REM_ACCESS_ERR);

	if (ret)
		return ret;
	if (!check(!post_send(&p->a, 0, 8, 0)))
		return -EIO;
	return expect_wc(&p->a, IB_WC_WR_FLUSH_ERR);
}

static int rdma_write(struct pair *p)
{
	u32 key;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!register_buf(&p->b, REMOTE, &key)))
		return -EIO;
	fill(p->a.buf, BUF_SIZE, 1);
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_WRITE, p->b.mr->iova, key, BUF_SIZE)))
		return -EIO;
	if (!check(!expect_wc(&p->a, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!memcmp(p->a.buf, p->b.buf, BUF_SIZE)))
		return -EIO;
	/* The responder's consumer notices nothing of it. */
	return expect_none(&p->b);
}

static int rdma_read(struct pair *p)
{
	u32 key;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!register_buf(&p->b, REMOTE, &key)))
		return -EIO;
	fill(p->b.buf, BUF_SIZE, 2);
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_READ, p->b.mr->iova + 3, key, BUF_SIZE - 3)))
		return -EIO;
	if (!check(!expect_wc(&p->a, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!memcmp(p->a.buf, p->b.buf + 3, BUF_SIZE - 3)))
		return -EIO;
	return expect_none(&p->b);
}

static int rdma_write_of_nothing(struct pair *p)
{
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	/* No byte is touched, so no key is looked at. */
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_WRITE, 0, 0x12345678, 0)))
		return -EIO;
	return expect_wc(&p->a, IB_WC_SUCCESS);
}

static int rkey_unknown(struct pair *p)
{
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_WRITE, 0, 0x12345678, 64)))
		return -EIO;
	return refused(p);
}

static int rkey_before_registration(struct pair *p)
{
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_READ, 0, p->b.mr->rkey, 64)))
		return -EIO;
	return refused(p);
}

static int rkey_of_old_registration(struct pair *p)
{
	u32 old, key;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!register_buf(&p->b, REMOTE, &old)))
		return -EIO;
	if (!check(!post_inv(&p->b, IB_WR_LOCAL_INV, old)))
		return -EIO;
	if (!check(!expect_wc(&p->b, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!register_buf(&p->b, REMOTE, &key)))
		return -EIO;
	if (!check(old != key))
		return -EIO;
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_WRITE, p->b.mr->iova, key, 64)))
		return -EIO;
	if (!check(!expect_wc(&p->a, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_WRITE, p->b.mr->iova, old, 64)))
		return -EIO;
	return refused(p);
}

static int rkey_after_local_invalidate(struct pair *p)
{
	u32 key;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!register_buf(&p->b, REMOTE, &key)))
		return -EIO;
	if (!check(!post_inv(&p->b, IB_WR_LOCAL_INV, key)))
		return -EIO;
	if (!check(!expect_wc(&p->b, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_WRITE, p->b.mr->iova, key, 64)))
		return -EIO;
	return refused(p);
}

static int rkey_after_remote_invalidate(struct pair *p)
{
	struct ib_wc wc;
	u32 key;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!register_buf(&p->b, REMOTE, &key)))
		return -EIO;
	if (!check(!post_recv(&p->b, 0, 64)))
		return -EIO;
	if (!check(!post_inv(&p->a, IB_WR_SEND_WITH_INV, key)))
		return -EIO;
	if (!check(!expect_wc(&p->a, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!wait_wc(&p->b, &wc)))
		return -EIO;
	if (!check(wc.status == IB_WC_SUCCESS))
		return -EIO;
	if (!check(wc.wc_flags & IB_WC_WITH_INVALIDATE))
		return -EIO;
	if (!check(wc.ex.invalidate_rkey == key))
		return -EIO;
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_WRITE, p->b.mr->iova, key, 64)))
		return -EIO;
	return refused(p);
}

static int bounds(struct pair *p, s64 offset, size_t len)
{
	u32 key;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!register_buf(&p->b, REMOTE, &key)))
		return -EIO;
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_READ, p->b.mr->iova + offset, key, len)))
		return -EIO;
	return refused(p);
}

static int bounds_before(struct pair *p)
{
	return bounds(p, -1, 64);
}

static int bounds_behind(struct pair *p)
{
	return bounds(p, 1, BUF_SIZE);
}

/* The end of the range wraps around and lies before its beginning. */
static int bounds_wrapped(struct pair *p)
{
	u32 key;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!register_buf(&p->b, REMOTE, &key)))
		return -EIO;
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_READ, -16ULL, key, 64)))
		return -EIO;
	return refused(p);
}

/* The region allows reading only, the QP everything. */
static int access_of_region(struct pair *p)
{
	u32 key;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!register_buf(&p->b, IB_ACCESS_REMOTE_READ, &key)))
		return -EIO;
	fill(p->b.buf, 64, 3);
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_READ, p->b.mr->iova, key, 64)))
		return -EIO;
	if (!check(!expect_wc(&p->a, IB_WC_SUCCESS)))
		return -EIO;
	memset(p->a.buf, 0, 64);
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_WRITE, p->b.mr->iova, key, 64)))
		return -EIO;
	if (!check(!refused(p)))
		return -EIO;
	if (!check(p->b.buf[1]))
		return -EIO;
	return 0;
}

/* The region allows everything, the QP nothing. */
static int access_of_qp(struct pair *p)
{
	struct options o = { .no_access = true };
	u32 key;

	if (!check(!pair_open(p, &o)))
		return -EIO;
	if (!check(!register_buf(&p->b, REMOTE, &key)))
		return -EIO;
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_READ, p->b.mr->iova, key, 64)))
		return -EIO;
	return refused(p);
}

/* The key is good, in another protection domain of the same HCA. */
static int protection_domain(struct pair *p)
{
	struct pair *q = kzalloc_obj(*q);
	int ret = -ENOMEM;
	u32 key;

	if (!q)
		return ret;
	ret = pair_open(p, &usual) ?: pair_open(q, &usual) ?:
	      register_buf(&q->b, REMOTE, &key) ?:
	      post_rdma(&p->a, IB_WR_RDMA_READ, q->b.mr->iova, key, 64) ?:
	      refused(p) ?:
	      post_rdma(&q->a, IB_WR_RDMA_READ, q->b.mr->iova, key, 64) ?:
	      expect_wc(&q->a, IB_WC_SUCCESS);
	pair_close(q);
	kfree(q);
	return ret;
}

static int lkey_unknown(struct pair *p)
{
	struct ib_sge sge = { .length = 64, .lkey = 0x12345678 };
	struct ib_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IB_WR_SEND,
	};

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_recv(&p->b, 0, 64)))
		return -EIO;
	sge.addr = (uintptr_t)p->a.buf;
	if (!check(!ib_post_send(p->a.qp, &wr, NULL)))
		return -EIO;
	return expect_wc(&p->a, IB_WC_LOC_PROT_ERR);
}

static int register_twice(struct pair *p)
{
	u32 key;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!register_buf(&p->b, REMOTE, &key)))
		return -EIO;
	/* It has to be invalidated first. */
	return register_as(&p->b, REMOTE, &key, IB_WC_MW_BIND_ERR);
}

static int event_of_refused_access(struct pair *p)
{
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_rdma(&p->a, IB_WR_RDMA_WRITE, 0, 0x12345678, 64)))
		return -EIO;
	if (!check(!refused(p)))
		return -EIO;
	if (!check(await_event(&p->b, IB_EVENT_QP_ACCESS_ERR)))
		return -EIO;
	return 0;
}

const struct test memory_tests[] = {
	{ "rdma-write", rdma_write },
	{ "rdma-read", rdma_read },
	{ "rdma-write-of-nothing", rdma_write_of_nothing },
	{ "rkey-unknown", rkey_unknown },
	{ "rkey-before-registration", rkey_before_registration },
	{ "rkey-of-old-registration", rkey_of_old_registration },
	{ "rkey-after-local-invalidate", rkey_after_local_invalidate },
	{ "rkey-after-remote-invalidate", rkey_after_remote_invalidate },
	{ "bounds-before", bounds_before },
	{ "bounds-behind", bounds_behind },
	{ "bounds-wrapped", bounds_wrapped },
	{ "access-of-region", access_of_region },
	{ "access-of-qp", access_of_qp },
	{ "protection-domain", protection_domain },
	{ "lkey-unknown", lkey_unknown },
	{ "register-twice", register_twice },
	{ "event-of-refused-access", event_of_refused_access },
	{}
};
