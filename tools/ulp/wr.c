// SPDX-License-Identifier: GPL-2.0-only
/*
 * Work requests of an end, and what comes of them.
 *
 * Where CQs carry ib_cqe, a completion finds its slot by it; a CQ of the kind "plain"
 * has what and where in wr_id, and whatever else comes out of it is counted as
 * unknown.
 */
#define pr_fmt(fmt) "apm-test-ulp: " fmt

#include "ulp.h"

enum what { WHAT_RECEIVE = 1, WHAT_SEND, WHAT_WRITE, WHAT_READ, WHAT_FILL };

static u64 wr_id(enum what what, u32 slot)
{
	return (u64)what << 32 | slot;
}

/* Whatever ends a work request comes by here. */
static void completed(struct end *end, enum what what, u32 slot, const struct ib_wc *wc)
{
	bool ok = wc->status == IB_WC_SUCCESS, lost;

	spin_lock_bh(&end->lock);
	if (what == WHAT_RECEIVE) {
		end->rx[slot].used = false;
		end->rq_used--;
	} else {
		end->sq_used--;
		if (what == WHAT_SEND)
			end->tx[slot].used = false;
	}
	lost = !ok && end->state == ESTABLISHED && !end->drained;
	if (end->state != ESTABLISHED || end->drained)
		wake_up(&end->wait);
	spin_unlock_bh(&end->lock);

	if (what == WHAT_FILL && ok)
		count(end->side, FILL_DONE);
	if (lost) {
		count(end->side, wc->status == IB_WC_WR_FLUSH_ERR ? WC_FLUSH : WC_ERROR);
		pr_err_ratelimited("%s %u: %s\n", side_names[end->side], end->id,
				   ib_wc_status_msg(wc->status));
		end_kick(end, TODO_DISCONNECT);
	}
	if (!ok)
		return;
	if (what == WHAT_RECEIVE)
		traffic_received(end, slot, wc->byte_len);
	else if (what == WHAT_READ)
		traffic_read(end);
	else
		traffic_sent(end);
}

static void receive_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct end *end = wc->qp->qp_context;

	completed(end, WHAT_RECEIVE, container_of(wc->wr_cqe, struct slot, cqe) - end->rx, wc);
}

static void send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct end *end = wc->qp->qp_context;

	completed(end, WHAT_SEND, container_of(wc->wr_cqe, struct slot, cqe) - end->tx, wc);
}

static void write_done(struct ib_cq *cq, struct ib_wc *wc)
{
	completed(wc->qp->qp_context, WHAT_WRITE, 0, wc);
}

static void read_done(struct ib_cq *cq, struct ib_wc *wc)
{
	completed(wc->qp->qp_context, WHAT_READ, 0, wc);
}

static void fill_done(struct ib_cq *cq, struct ib_wc *wc)
{
	completed(wc->qp->qp_context, WHAT_FILL, 0, wc);
}

void wr_init(struct end *end)
{
	u32 i;

	for (i = 0; i < end->rq_depth; i++) {
		end->rx[i].cqe.done = receive_done;
		end->tx[i].cqe.done = send_done;
	}
	end->write_cqe.done = write_done;
	end->read_cqe.done = read_done;
	end->fill_cqe.done = fill_done;
}

void wr_plain_completed(struct end *end, const struct ib_wc *wc)
{
	u64 what = wc->wr_id >> 32;
	u32 slot = wc->wr_id;

	if (what >= WHAT_RECEIVE && what <= WHAT_FILL && slot < end->rq_depth)
		completed(end, what, slot, wc);
	else
		count(end->side, WC_UNKNOWN);
}

static u64 rx_dma(struct end *end, u32 slot)
{
	return end->dma + (u64)slot * end->size;
}

int wr_receive(struct end *end, u32 slot)
{
	struct ib_sge sge = {
		.addr = rx_dma(end, slot),
		.length = end->size,
		.lkey = end->hca->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };
	int ret;

	lockdep_assert_held(&end->lock);
	if (end->cq == CQ_PLAIN)
		wr.wr_id = wr_id(WHAT_RECEIVE, slot);
	else
		wr.wr_cqe = &end->rx[slot].cqe;
	ib_dma_sync_single_for_device(end->hca->device, sge.addr, sge.length, DMA_BIDIRECTIONAL);
	ret = ib_post_recv(end->qp, &wr, NULL);
	if (ret) {
		count(end->side, POST_ERROR);
		return ret;
	}
	end->rx[slot].used = true;
	end->rq_used++;
	return 0;
}

static int post(struct end *end, struct ib_send_wr *wr, enum what what, u32 slot,
		struct ib_cqe *cqe)
{
	int ret;

	lockdep_assert_held(&end->lock);
	if (end->cq == CQ_PLAIN)
		wr->wr_id = wr_id(what, slot);
	else
		wr->wr_cqe = cqe;
	ret = ib_post_send(end->qp, wr, NULL);
	if (ret) {
		count(end->side, POST_ERROR);
		pr_err_ratelimited("%s %u: a work request is refused: %pe\n",
				   side_names[end->side], end->id, ERR_PTR(ret));
		return ret;
	}
	end->sq_used++;
	return 0;
}

/* Sends what stands in a slot to be sent. */
int wr_send(struct end *end, u32 slot)
{
	struct ib_sge sge = {
		.addr = rx_dma(end, end->rq_depth + slot),
		.length = end->size,
		.lkey = end->hca->pd->local_dma_lkey,
	};
	struct ib_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND };
	int ret;

	ib_dma_sync_single_for_device(end->hca->device, sge.addr, sge.length, DMA_BIDIRECTIONAL);
	ret = post(end, &wr, WHAT_SEND, slot, &end->tx[slot].cqe);
	if (!ret)
		end->tx[slot].used = true;
	return ret;
}

/* RDMA between our private area and the peer's. */
int wr_rdma(struct end *end, enum ib_wr_opcode op)
{
	bool write = op == IB_WR_RDMA_WRITE;
	struct ib_sge sge = {
		.addr = rx_dma(end, 2 * end->rq_depth + 1),
		.length = end->size,
		.lkey = end->hca->pd->local_dma_lkey,
	};
	struct ib_rdma_wr wr = {
		.wr = { .sg_list = &sge, .num_sge = 1, .opcode = op },
		.remote_addr = end->peer_addr,
		.rkey = end->peer_rkey,
	};

	ib_dma_sync_single_for_device(end->hca->device, sge.addr, sge.length, DMA_BIDIRECTIONAL);
	return post(end, &wr.wr, write ? WHAT_WRITE : WHAT_READ, 0,
		    write ? &end->write_cqe : &end->read_cqe);
}

/* Uses every slot of the send queue that is left. Returns how many there were, or an error. */
int wr_fill(struct end *end)
{
	int ret, n = 0;

	lockdep_assert_held(&end->lock);
	while (end->sq_used < end->sq_depth) {
		/* No byte: no key is looked at. */
		struct ib_rdma_wr wr = { .wr = { .opcode = IB_WR_RDMA_WRITE } };

		ret = post(end, &wr.wr, WHAT_FILL, 0, &end->fill_cqe);
		if (ret)
			return ret;
		n++;
		count(end->side, FILLED);
	}
	return n;
}

/* Posts all receives. The QP is in INIT or beyond. */
int wr_receives(struct end *end)
{
	int ret = 0;
	u32 i;

	spin_lock_bh(&end->lock);
	for (i = 0; i < end->rq_depth && !ret; i++)
		ret = wr_receive(end, i);
	spin_unlock_bh(&end->lock);
	return ret;
}
