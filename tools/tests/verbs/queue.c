// SPDX-License-Identifier: GPL-2.0-only
/*
 * Work queues and completions.
 */
#define pr_fmt(fmt) "verbs: " fmt

#include <linux/delay.h>
#include "verbs.h"

static const struct options usual;

static int send(struct pair *p)
{
	struct ib_wc wc;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	strscpy(p->a.buf, "over two links and a switch", 64);
	if (!check(!post_recv(&p->b, 4096, 64)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	if (!check(!expect_wc(&p->a, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!wait_wc(&p->b, &wc)))
		return -EIO;
	if (!check(wc.status == IB_WC_SUCCESS && wc.opcode == IB_WC_RECV))
		return -EIO;
	if (!check(wc.wr_id == 4096 && wc.byte_len == 64 && wc.qp == p->b.qp))
		return -EIO;
	if (!check(!strcmp(p->a.buf, p->b.buf + 4096)))
		return -EIO;
	return 0;
}

static int send_with_imm(struct pair *p)
{
	struct ib_send_wr wr = {
		.opcode = IB_WR_SEND_WITH_IMM,
		.ex.imm_data = cpu_to_be32(0xfeedbeef),
	};
	struct ib_wc wc;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_recv(&p->b, 0, 64)))
		return -EIO;
	if (!check(!ib_post_send(p->a.qp, &wr, NULL)))
		return -EIO;
	if (!check(!expect_wc(&p->a, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!wait_wc(&p->b, &wc)))
		return -EIO;
	if (!check(wc.wc_flags & IB_WC_WITH_IMM))
		return -EIO;
	if (!check(wc.ex.imm_data == cpu_to_be32(0xfeedbeef) && !wc.byte_len))
		return -EIO;
	return 0;
}

/* All that fits may be posted, and not one more: the one refused is named. */
static int depth_and_bad_wr(struct pair *p)
{
	struct ib_send_wr wr[DEPTH + 2] = {};
	const struct ib_send_wr *bad = NULL;
	int i;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	/* No receive: nothing can leave the queue. */
	for (i = 0; i < DEPTH + 2; i++) {
		wr[i].opcode = IB_WR_SEND;
		wr[i].next = i < DEPTH + 1 ? &wr[i + 1] : NULL;
	}
	if (!check(ib_post_send(p->a.qp, wr, &bad) == -ENOMEM))
		return -EIO;
	if (!check(bad == &wr[DEPTH]))
		return -EIO;
	for (i = 0; i < DEPTH; i++)
		if (!check(!post_recv(&p->b, 0, 64)))
			return -EIO;
	for (i = 0; i < DEPTH; i++)
		if (!check(!expect_wc(&p->a, IB_WC_SUCCESS)))
			return -EIO;
	return expect_none(&p->a);
}

static int bad_wr_left_alone(struct pair *p)
{
	struct ib_recv_wr rwr = {};
	struct ib_send_wr wr = { .opcode = IB_WR_SEND };
	const struct ib_recv_wr *rbad = (void *)1;
	const struct ib_send_wr *bad = (void *)1;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!ib_post_recv(p->b.qp, &rwr, &rbad)))
		return -EIO;
	if (!check(!ib_post_send(p->a.qp, &wr, &bad)))
		return -EIO;
	if (!check(rbad == (void *)1 && bad == (void *)1))
		return -EIO;
	return expect_wc(&p->a, IB_WC_SUCCESS);
}

static int too_many_sges(struct pair *p)
{
	struct ib_sge sge[3] = {};
	struct ib_send_wr wr = {
		.opcode = IB_WR_SEND,
		.sg_list = sge,
		.num_sge = 3,
	};

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(ib_post_send(p->a.qp, &wr, NULL) == -EINVAL))
		return -EIO;
	return 0;
}

static int receive_too_small(struct pair *p)
{
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_recv(&p->b, 0, 63)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	if (!check(!expect_wc(&p->b, IB_WC_LOC_LEN_ERR)))
		return -EIO;
	return expect_wc(&p->a, IB_WC_REM_INV_REQ_ERR);
}

static int receiver_not_ready(struct pair *p)
{
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	return expect_wc(&p->a, IB_WC_RNR_RETRY_EXC_ERR);
}

static int receiver_ready_late(struct pair *p)
{
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	if (!check(!post_recv(&p->b, 0, 64)))
		return -EIO;
	if (!check(!expect_wc(&p->a, IB_WC_SUCCESS)))
		return -EIO;
	return expect_wc(&p->b, IB_WC_SUCCESS);
}

static int peer_gone(struct pair *p)
{
	struct options o = { .timeout = 8 };	/* 1 ms */

	if (!check(!pair_open(p, &o)))
		return -EIO;
	ib_destroy_qp(p->b.qp);
	p->b.qp = NULL;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	return expect_wc(&p->a, IB_WC_RETRY_EXC_ERR);
}

/* In ERR everything comes back, the newly posted too, in order. */
static int flush(struct pair *p)
{
	struct ib_wc wc;
	int i;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	for (i = 0; i < 4; i++)
		if (!check(!post_recv(&p->b, i, 64)))
			return -EIO;
	if (!check(!side_to_error(&p->b)))
		return -EIO;
	for (i = 4; i < 8; i++)
		if (!check(!post_recv(&p->b, i, 64)))
			return -EIO;
	for (i = 0; i < 8; i++) {
		if (!check(!wait_wc(&p->b, &wc)))
			return -EIO;
		if (!check(wc.status == IB_WC_WR_FLUSH_ERR && wc.wr_id == i))
			return -EIO;
	}
	if (!check(!post_send(&p->b, 5, 64, 0)))
		return -EIO;
	if (!check(!wait_wc(&p->b, &wc)))
		return -EIO;
	if (!check(wc.status == IB_WC_WR_FLUSH_ERR && wc.wr_id == 5))
		return -EIO;
	return expect_none(&p->b);
}

static int not_before_rts(struct pair *p)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_RESET };

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!ib_modify_qp(p->a.qp, &attr, IB_QP_STATE)))
		return -EIO;
	if (!check(post_send(&p->a, 0, 64, 0) == -EINVAL))
		return -EIO;
	if (!check(post_recv(&p->a, 0, 64) == -EINVAL))
		return -EIO;
	return 0;
}

/* A number that was just given back must not come again at once. */
static int numbers_are_cyclic(struct pair *p)
{
	u32 before;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	before = p->a.qp->qp_num;
	pair_close(p);
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(p->a.qp->qp_num != before))
		return -EIO;
	return 0;
}

static int completions_scrubbed(struct pair *p)
{
	int i;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	for (i = 0; i < 4; i++)
		if (!check(!post_recv(&p->b, 0, 64)))
			return -EIO;
	if (!check(!side_to_error(&p->b)))
		return -EIO;
	ib_destroy_qp(p->b.qp);
	p->b.qp = NULL;
	return expect_none(&p->b);
}

static bool told(struct side *s, int times)
{
	unsigned long end = jiffies + msecs_to_jiffies(WAIT_MS);

	while (atomic_read(&s->told) < times && time_before(jiffies, end))
		usleep_range(50, 100);
	return atomic_read(&s->told) == times;
}

/* Told once for each time it was asked, of what comes after. */
static int notify(struct pair *p)
{
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_recv(&p->b, 0, 64)))
		return -EIO;
	if (!check(!post_recv(&p->b, 0, 64)))
		return -EIO;
	if (!check(!ib_req_notify_cq(p->b.cq, IB_CQ_NEXT_COMP)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	if (!check(told(&p->b, 1)))
		return -EIO;
	if (!check(!expect_wc(&p->b, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!expect_wc(&p->b, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(atomic_read(&p->b.told) == 1))
		return -EIO;
	if (!check(!post_recv(&p->b, 0, 64)))
		return -EIO;
	if (!check(!ib_req_notify_cq(p->b.cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	if (!check(told(&p->b, 2)))
		return -EIO;
	/* It lies there unread: whoever asks is told that at once. */
	if (!check(ib_req_notify_cq(p->b.cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) > 0))
		return -EIO;
	return 0;
}

static int notify_solicited(struct pair *p)
{
	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!post_recv(&p->b, 0, 64)))
		return -EIO;
	if (!check(!post_recv(&p->b, 0, 64)))
		return -EIO;
	if (!check(!ib_req_notify_cq(p->b.cq, IB_CQ_SOLICITED)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	if (!check(!expect_wc(&p->b, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!atomic_read(&p->b.told)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, IB_SEND_SOLICITED)))
		return -EIO;
	if (!check(told(&p->b, 1)))
		return -EIO;
	return 0;
}

static int query(struct pair *p)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!ib_query_qp(p->a.qp, &attr, IB_QP_STATE, &init)))
		return -EIO;
	if (!check(attr.qp_state == IB_QPS_RTS && attr.path_mtu == IB_MTU_1024))
		return -EIO;
	if (!check(attr.dest_qp_num == p->b.qp->qp_num))
		return -EIO;
	if (!check(rdma_ah_get_dlid(&attr.ah_attr) == p->b.lid))
		return -EIO;
	if (!check(attr.port_num == 1 && attr.timeout == 14 && attr.retry_cnt == 7))
		return -EIO;
	if (!check(attr.rnr_retry == 2 && attr.min_rnr_timer == 12))
		return -EIO;
	if (!check(attr.max_rd_atomic == 4 && attr.max_dest_rd_atomic == 4))
		return -EIO;
	if (!check(attr.path_mig_state == IB_MIG_MIGRATED))
		return -EIO;
	if (!check(attr.cap.max_send_wr >= DEPTH && attr.cap.max_send_sge == 2))
		return -EIO;
	if (!check(init.send_cq == p->a.cq && init.qp_type == IB_QPT_RC))
		return -EIO;
	if (!check(init.sq_sig_type == IB_SIGNAL_ALL_WR))
		return -EIO;
	return 0;
}

static int events_on_first_packet(struct pair *p)
{
	struct ib_qp_attr attr = {};
	struct ib_qp_init_attr init;

	if (!check(!pair_open(p, &usual)))
		return -EIO;
	if (!check(!ib_query_qp(p->b.qp, &attr, IB_QP_STATE, &init)))
		return -EIO;
	/* Already RTS: there is nothing left to be established. */
	if (!check(!post_recv(&p->b, 0, 64)))
		return -EIO;
	if (!check(!post_send(&p->a, 0, 64, 0)))
		return -EIO;
	if (!check(!expect_wc(&p->b, IB_WC_SUCCESS)))
		return -EIO;
	if (!check(!test_bit(IB_EVENT_COMM_EST, &p->b.events)))
		return -EIO;
	return 0;
}

const struct test queue_tests[] = {
	{ "send", send },
	{ "send-with-imm", send_with_imm },
	{ "depth-and-bad-wr", depth_and_bad_wr },
	{ "bad-wr-left-alone", bad_wr_left_alone },
	{ "too-many-sges", too_many_sges },
	{ "receive-too-small", receive_too_small },
	{ "receiver-not-ready", receiver_not_ready },
	{ "receiver-ready-late", receiver_ready_late },
	{ "peer-gone", peer_gone },
	{ "flush", flush },
	{ "not-before-rts", not_before_rts },
	{ "numbers-are-cyclic", numbers_are_cyclic },
	{ "completions-scrubbed", completions_scrubbed },
	{ "notify", notify },
	{ "notify-solicited", notify_solicited },
	{ "query", query },
	{ "no-comm-est-in-rts", events_on_first_packet },
	{}
};
