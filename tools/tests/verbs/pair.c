// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two queue pairs connected by hand, and short forms of what is done with them.
 */
#define pr_fmt(fmt) "verbs: " fmt

#include <linux/delay.h>
#include <linux/slab.h>
#include "verbs.h"

static void on_event(struct ib_event *event, void *context)
{
	struct side *s = context;

	set_bit(event->event, &s->events);
}

static void on_completion(struct ib_cq *cq, void *context)
{
	struct side *s = context;

	atomic_inc(&s->told);
}

/* Makes a queue pair of a side that has all else. */
int side_make_qp(struct side *s)
{
	struct ib_qp_init_attr init = {
		.event_handler = on_event,
		.qp_context = s,
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.srq = s->srq,
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.cap = {
			.max_send_wr = DEPTH,
			.max_recv_wr = DEPTH,
			.max_send_sge = 2,
			.max_recv_sge = 2,
		},
	};

	s->qp = ib_create_qp(s->pd, &init);
	return PTR_ERR_OR_ZERO(s->qp);
}

static int side_open(struct side *s, struct ib_device *device, bool srq,
		     unsigned int cqe)
{
	struct ib_srq_init_attr srq_init = {
		.event_handler = on_event,
		.srq_context = s,
		.attr = { .max_wr = 4, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};
	struct ib_cq_init_attr cq_attr = { .cqe = cqe ?: 4 * DEPTH };
	struct ib_port_attr port;
	int ret;

	s->device = device;
	ret = ib_query_port(device, 1, &port);
	if (ret)
		return ret;
	s->lid = port.lid;
	s->buf = (void *)__get_free_pages(GFP_KERNEL | __GFP_ZERO,
					  get_order(BUF_SIZE));
	if (!s->buf)
		return -ENOMEM;
	s->pd = ib_alloc_pd(device, 0);
	if (IS_ERR(s->pd))
		return PTR_ERR(s->pd);
	s->cq = ib_create_cq(device, on_completion, NULL, s, &cq_attr);
	if (IS_ERR(s->cq))
		return PTR_ERR(s->cq);
	s->mr = ib_alloc_mr(s->pd, IB_MR_TYPE_MEM_REG, BUF_SIZE / PAGE_SIZE);
	if (IS_ERR(s->mr))
		return PTR_ERR(s->mr);
	if (srq) {
		s->srq = ib_create_srq(s->pd, &srq_init);
		if (IS_ERR(s->srq))
			return PTR_ERR(s->srq);
	}
	return side_make_qp(s);
}

int side_connect(struct side *s, const struct side *peer, int access, u8 timeout)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = access,
	};
	int ret;

	ret = ib_modify_qp(s->qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX |
			   IB_QP_PORT | IB_QP_ACCESS_FLAGS);
	if (ret)
		return ret;

	attr.qp_state = IB_QPS_RTR;
	attr.path_mtu = IB_MTU_1024;
	attr.dest_qp_num = peer->qp->qp_num;
	attr.rq_psn = 100;
	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 12;
	attr.ah_attr.type = RDMA_AH_ATTR_TYPE_IB;
	rdma_ah_set_dlid(&attr.ah_attr, peer->lid);
	rdma_ah_set_port_num(&attr.ah_attr, 1);
	ret = ib_modify_qp(s->qp, &attr, IB_QP_STATE | IB_QP_AV |
			   IB_QP_PATH_MTU | IB_QP_DEST_QPN | IB_QP_RQ_PSN |
			   IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
	if (ret)
		return ret;

	attr.qp_state = IB_QPS_RTS;
	attr.timeout = timeout;
	attr.retry_cnt = 7;
	attr.rnr_retry = 2;
	attr.sq_psn = 100;
	attr.max_rd_atomic = 4;
	return ib_modify_qp(s->qp, &attr, IB_QP_STATE | IB_QP_TIMEOUT |
			    IB_QP_RETRY_CNT | IB_QP_RNR_RETRY | IB_QP_SQ_PSN |
			    IB_QP_MAX_QP_RD_ATOMIC);
}

static void side_close(struct side *s)
{
	if (!IS_ERR_OR_NULL(s->qp))
		ib_destroy_qp(s->qp);
	if (!IS_ERR_OR_NULL(s->srq))
		ib_destroy_srq(s->srq);
	if (!IS_ERR_OR_NULL(s->mr))
		ib_dereg_mr(s->mr);
	if (!IS_ERR_OR_NULL(s->cq))
		ib_destroy_cq(s->cq);
	if (!IS_ERR_OR_NULL(s->pd))
		ib_dealloc_pd(s->pd);
	free_pages((unsigned long)s->buf, get_order(BUF_SIZE));
}

int pair_open(struct pair *p, const struct options *o)
{
	int all = IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE;
	u8 timeout = o->timeout ?: 14;
	int ret;

	memset(p, 0, sizeof(*p));
	ret = side_open(&p->a, verbs_device[0], false, o->cqe);
	if (!ret)
		ret = side_open(&p->b, verbs_device[1], o->srq, o->cqe);
	if (!ret)
		ret = side_connect(&p->b, &p->a,
				   o->no_access ? 0 : o->access ?: all, timeout);
	if (!ret)
		ret = side_connect(&p->a, &p->b, all, timeout);
	return ret;
}

void pair_close(struct pair *p)
{
	side_close(&p->a);
	side_close(&p->b);
}

int side_to_error(struct side *s)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	return ib_modify_qp(s->qp, &attr, IB_QP_STATE);
}

int post_recv(struct side *s, size_t offset, size_t len)
{
	struct ib_sge sge = {
		.addr = (uintptr_t)s->buf + offset,
		.length = len,
		.lkey = s->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_id = offset, .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(s->qp, &wr, NULL);
}

int post_send(struct side *s, size_t offset, size_t len, int flags)
{
	struct ib_sge sge = {
		.addr = (uintptr_t)s->buf + offset,
		.length = len,
		.lkey = s->pd->local_dma_lkey,
	};
	struct ib_send_wr wr = {
		.wr_id = offset,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IB_WR_SEND,
		.send_flags = flags,
	};

	return ib_post_send(s->qp, &wr, NULL);
}

int post_rdma(struct side *s, enum ib_wr_opcode op, u64 va, u32 rkey, size_t len)
{
	struct ib_sge sge = {
		.addr = (uintptr_t)s->buf,
		.length = len,
		.lkey = s->pd->local_dma_lkey,
	};
	struct ib_rdma_wr wr = {
		.wr = { .sg_list = &sge, .num_sge = !!len, .opcode = op },
		.remote_addr = va,
		.rkey = rkey,
	};

	return ib_post_send(s->qp, &wr.wr, NULL);
}

int post_inv(struct side *s, enum ib_wr_opcode op, u32 rkey)
{
	struct ib_send_wr wr = { .opcode = op, .ex.invalidate_rkey = rkey };

	return ib_post_send(s->qp, &wr, NULL);
}

int wait_wc(struct side *s, struct ib_wc *wc)
{
	unsigned long end = jiffies + msecs_to_jiffies(WAIT_MS);

	do {
		if (ib_poll_cq(s->cq, 1, wc) == 1)
			return 0;
		usleep_range(50, 100);
	} while (time_before(jiffies, end));
	pr_err("no completion at %s\n", s->device->name);
	return -ETIMEDOUT;
}

int expect_wc(struct side *s, enum ib_wc_status status)
{
	struct ib_wc wc;
	int ret = wait_wc(s, &wc);

	if (ret)
		return ret;
	if (wc.status != status) {
		pr_err("%s: got \"%s\" instead of \"%s\"\n", s->device->name,
		       ib_wc_status_msg(wc.status), ib_wc_status_msg(status));
		return -EIO;
	}
	return 0;
}

int expect_none(struct side *s)
{
	struct ib_wc wc;

	if (ib_poll_cq(s->cq, 1, &wc) == 0)
		return 0;
	pr_err("%s: a completion (%s) that should not be there\n",
	       s->device->name, ib_wc_status_msg(wc.status));
	return -EIO;
}

/* Registers the whole buffer with a new key, which is to end so. */
int register_as(struct side *s, int access, u32 *key, enum ib_wc_status status)
{
	unsigned int i, n = BUF_SIZE / PAGE_SIZE;
	struct ib_reg_wr wr = {};
	int ret;

	sg_init_table(s->sg, n);
	for (i = 0; i < n; i++)
		sg_set_buf(&s->sg[i], s->buf + i * PAGE_SIZE, PAGE_SIZE);
	ret = ib_dma_map_sg(s->device, s->sg, n, DMA_BIDIRECTIONAL);
	if (ret != n)
		return -EIO;
	ret = ib_map_mr_sg(s->mr, s->sg, n, NULL, PAGE_SIZE);
	if (ret != n)
		return ret < 0 ? ret : -EIO;
	ib_update_fast_reg_key(s->mr, ib_inc_rkey(s->mr->rkey));
	wr.wr.opcode = IB_WR_REG_MR;
	wr.mr = s->mr;
	wr.key = s->mr->rkey;
	wr.access = access;
	*key = s->mr->rkey;
	ret = ib_post_send(s->qp, &wr.wr, NULL);
	return ret ?: expect_wc(s, status);
}

int register_buf(struct side *s, int access, u32 *key)
{
	return register_as(s, access, key, IB_WC_SUCCESS);
}

bool await_event(struct side *s, enum ib_event_type event)
{
	unsigned long end = jiffies + msecs_to_jiffies(WAIT_MS);

	while (!test_bit(event, &s->events) && time_before(jiffies, end))
		usleep_range(50, 100);
	return test_bit(event, &s->events);
}
