// SPDX-License-Identifier: GPL-2.0-only
/*
 * QP and CQs of an end.
 */
#define pr_fmt(fmt) "apm-test-ulp: " fmt

#include <linux/slab.h>
#include "ulp.h"

#define DRAIN_TIMEOUT	(30 * HZ)

static void plain_poll(struct work_struct *work)
{
	struct end *end = container_of(work, struct end, poll);
	struct ib_wc wc;

	do {
		while (ib_poll_cq(end->scq, 1, &wc) > 0)
			wr_plain_completed(end, &wc);
	} while (ib_req_notify_cq(end->scq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) > 0);
}

static void plain_told(struct ib_cq *cq, void *context)
{
	struct end *end = context;

	queue_work(poll_wq, &end->poll);
}

/* What the ULP wants to know about its QP, and what it tells the CM. */
static void on_event(struct ib_event *event, void *context)
{
	struct end *end = context;

	switch (event->event) {
	case IB_EVENT_COMM_EST:
		count(end->side, QP_COMM_EST);
		if (end->cm == CM_RDMA)
			rdma_notify(end->rdma_id, event->event);
		else
			ib_cm_notify(end->ib_id, event->event);
		break;
	case IB_EVENT_PATH_MIG:
		count(end->side, QP_PATH_MIG);
		break;
	case IB_EVENT_PATH_MIG_ERR:
		count(end->side, QP_PATH_MIG_ERR);
		break;
	case IB_EVENT_SQ_DRAINED:
	case IB_EVENT_QP_LAST_WQE_REACHED:
		break;
	default:
		count(end->side, QP_OTHER);
		pr_err_ratelimited("%s %u: QP event \"%s\"\n", side_names[end->side], end->id,
				   ib_event_msg(event->event));
	}
}

static struct ib_cq *get_cq(struct end *end, u32 nr, enum cq_kind kind)
{
	struct ib_device *device = end->hca->device;
	struct ib_cq_init_attr attr = { .cqe = nr };
	struct ib_cq *cq;

	switch (kind) {
	case CQ_POOL:
		return ib_cq_pool_get(device, nr, end->id, IB_POLL_WORKQUEUE);
	case CQ_PLAIN:
		cq = ib_create_cq(device, plain_told, NULL, end, &attr);
		if (!IS_ERR(cq))
			ib_req_notify_cq(cq, IB_CQ_NEXT_COMP);
		return cq;
	default:
		return ib_alloc_cq(device, end, nr, end->id % max(device->num_comp_vectors, 1),
				   kind == CQ_SOFTIRQ ? IB_POLL_SOFTIRQ :
				   kind == CQ_DIRECT ? IB_POLL_DIRECT : IB_POLL_WORKQUEUE);
	}
}

static void put_cq(struct end *end, struct ib_cq *cq)
{
	if (end->cq == CQ_POOL)
		ib_cq_pool_put(cq, end->nr_cqe);
	else if (end->cq == CQ_PLAIN)
		ib_destroy_cq(cq);
	else
		ib_free_cq(cq);
}

static int get_cqs(struct end *end)
{
	/* A driver may make the send queue deeper, up to a power of two. */
	u32 nr_send = 2 * (end->sq_depth + 1), nr_recv = end->rq_depth + 1;
	struct ib_cq *cq;

	if (end->cq == CQ_DIRECT) {
		/* In the way of ib_srp: who sends looks what has been sent. */
		cq = get_cq(end, nr_send, CQ_DIRECT);
		if (IS_ERR(cq))
			return PTR_ERR(cq);
		end->scq = cq;
		cq = get_cq(end, nr_recv, CQ_SOFTIRQ);
		if (IS_ERR(cq))
			return PTR_ERR(cq);
		end->rcq = cq;
		return 0;
	}
	end->nr_cqe = nr_send + nr_recv;
	cq = get_cq(end, end->nr_cqe, end->cq);
	if (IS_ERR(cq))
		return PTR_ERR(cq);
	end->scq = cq;
	end->rcq = cq;
	return 0;
}

static int map_buf(struct end *end)
{
	size_t len = (2 * (size_t)end->rq_depth + 2) * end->size;

	end->buf = kzalloc(len, GFP_KERNEL);
	if (!end->buf)
		return -ENOMEM;
	end->dma = ib_dma_map_single(end->hca->device, end->buf, len, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(end->hca->device, end->dma)) {
		kfree(end->buf);
		end->buf = NULL;
		return -ENOMEM;
	}
	end->buf_len = len;
	end->rkey = end->hca->pd->unsafe_global_rkey;
	return 0;
}

/* Makes QP and CQs; takes the HCA over even when it fails. @id: that of an rdma_cm connection. */
int queue_open(struct end *end, struct hca *hca, struct rdma_cm_id *id)
{
	struct ib_qp_init_attr init = {
		.event_handler = on_event,
		.qp_context = end,
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.cap = {
			.max_send_wr = end->sq_depth,
			/* One to drain it with. */
			.max_recv_wr = end->rq_depth + 1,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};
	int ret;

	lockdep_assert_held(&end->mutex);
	end->hca = hca;
	INIT_WORK(&end->poll, plain_poll);
	wr_init(end);
	ret = map_buf(end);
	if (!ret)
		ret = get_cqs(end);
	if (ret)
		return ret;
	init.send_cq = end->scq;
	init.recv_cq = end->rcq;
	if (id) {
		ret = rdma_create_qp(id, hca->pd, &init);
		if (!ret)
			end->qp = id->qp;
	} else {
		struct ib_qp *qp = ib_create_qp(hca->pd, &init);

		ret = PTR_ERR_OR_ZERO(qp);
		if (!ret)
			end->qp = qp;
	}
	if (ret)
		return ret;
	/* As deep as the driver says, and every one of them is used. */
	end->sq_depth = init.cap.max_send_wr;
	return 0;
}

void queue_poll_direct(struct end *end)
{
	bool may;

	if (end->cq != CQ_DIRECT)
		return;
	spin_lock_bh(&end->poll_lock);
	spin_lock(&end->lock);
	may = end->state == ESTABLISHED && !end->drained;
	spin_unlock(&end->lock);
	if (may)
		ib_process_cq_direct(end->scq, -1);
	spin_unlock_bh(&end->poll_lock);
}

/* Has what is in the queues come back? For ib_drain_qp() it is enough that there is a place for its own. */
static bool drained(struct end *end)
{
	guard(spinlock_bh)(&end->lock);
	if (end->cq == CQ_PLAIN)
		return !end->sq_used && !end->rq_used;
	return end->sq_used < end->sq_depth;
}

/* Nothing more is posted, and all that was has come back. */
void queue_drain(struct end *end)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };
	unsigned long until = jiffies + DRAIN_TIMEOUT;

	spin_lock_bh(&end->poll_lock);
	spin_lock(&end->lock);
	end->drained = true;
	spin_unlock(&end->lock);
	spin_unlock_bh(&end->poll_lock);
	if (ib_modify_qp(end->qp, &attr, IB_QP_STATE)) {
		pr_err("%s %u: the QP does not go into error\n", side_names[end->side], end->id);
		return;
	}
	while (!drained(end) && time_before(jiffies, until)) {
		if (end->cq == CQ_DIRECT)
			ib_process_cq_direct(end->scq, -1);
		wait_event_timeout(end->wait, drained(end),
				   end->cq == CQ_DIRECT ? 1 : DRAIN_TIMEOUT);
	}
	if (!drained(end))
		pr_err("%s %u: %u sends and %u receives never came back\n", side_names[end->side],
		       end->id, end->sq_used, end->rq_used);
	else if (end->cq != CQ_PLAIN)
		ib_drain_qp(end->qp);
}

void queue_close(struct end *end)
{
	if (end->qp) {
		if (end->rdma_id)
			rdma_destroy_qp(end->rdma_id);
		else
			ib_destroy_qp(end->qp);
		end->qp = NULL;
	}
	if (end->cq == CQ_PLAIN && end->scq)
		disable_work_sync(&end->poll);
	if (end->rcq && end->rcq != end->scq)
		put_cq(end, end->rcq);
	if (end->scq)
		put_cq(end, end->scq);
	end->scq = NULL;
	end->rcq = NULL;
	if (end->buf) {
		ib_dma_unmap_single(end->hca->device, end->dma, end->buf_len, DMA_BIDIRECTIONAL);
		kfree(end->buf);
		end->buf = NULL;
	}
}
