// SPDX-License-Identifier: GPL-2.0-only
/*
 * Connections by way of ib_cm: GIDs and a service id, no IP.
 */
#define pr_fmt(fmt) "apm-test-ulp: " fmt

#include <linux/random.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>
#include "ulp.h"

#define PATH_MS		5000
#define PATH_TRIES	4
/* 4.096 us x 2^20: 4.3 s. As rdma_cm has it. */
#define RESPONSE_TIMEOUT 20
#define CM_RETRIES	15
#define PSN_MASK	0xffffff
#define P_KEY		0xffff

struct path_query {
	struct completion done;
	struct sa_path_rec *path;
	int status;
};

static void path_found(int status, struct sa_path_rec *path, unsigned int n, void *context)
{
	struct path_query *q = context;

	if (!status)
		*q->path = *path;
	q->status = status;
	complete(&q->done);
}

static int query_path(struct options *opt)
{
	struct path_query q = { .path = &opt->path };
	struct ib_sa_query *query;
	int ret;

	init_completion(&q.done);
	ret = ib_sa_path_rec_get(&sa_client, opt->hca->device, opt->port, &opt->path,
				 IB_SA_PATH_REC_SERVICE_ID | IB_SA_PATH_REC_DGID |
				 IB_SA_PATH_REC_SGID | IB_SA_PATH_REC_NUMB_PATH |
				 IB_SA_PATH_REC_PKEY,
				 PATH_MS, GFP_KERNEL, path_found, &q, &query);
	if (ret < 0)
		return ret;
	/* It ends in any case. */
	wait_for_completion(&q.done);
	return q.status;
}

/* One path for all connections of a command. */
int cm_ib_path(struct options *opt)
{
	int ret, tries;

	for (tries = 0; tries < PATH_TRIES; tries++) {
		memset(&opt->path, 0, sizeof(opt->path));
		opt->path.rec_type = SA_PATH_REC_TYPE_IB;
		ret = rdma_query_gid(opt->hca->device, opt->port, 0, &opt->path.sgid);
		if (ret)
			return ret;
		opt->path.dgid = opt->dgid;
		opt->path.pkey = cpu_to_be16(P_KEY);
		opt->path.service_id = cpu_to_be64(opt->service_id);
		opt->path.numb_path = 1;
		ret = query_path(opt);
		if (ret != -ETIMEDOUT)
			break;
	}
	return ret;
}

static int to_init(struct end *end, u32 port, __be16 pkey)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.qp_access_flags = IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE,
		.port_num = port,
	};
	int ret = ib_find_cached_pkey(end->hca->device, port, be16_to_cpu(pkey), &attr.pkey_index);

	return ret ?: ib_modify_qp(end->qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX |
				   IB_QP_ACCESS_FLAGS | IB_QP_PORT);
}

/* As the CM has it, but for the PSN that the REP will carry: it is not known there yet. */
static int to_state(struct end *end, enum ib_qp_state state, const struct ib_cm_rep_param *rep)
{
	struct ib_qp_attr attr = { .qp_state = state };
	int mask, ret = ib_cm_init_qp_attr(end->ib_id, &attr, &mask);

	if (rep)
		attr.rq_psn = rep->starting_psn;
	return ret ?: ib_modify_qp(end->qp, &attr, mask);
}

static int open(struct end *end, struct hca *hca, u32 port, __be16 pkey)
{
	int ret = hca ? queue_open(end, hca, NULL) : -ENODEV;

	if (!ret)
		ret = to_init(end, port, pkey);
	return ret ?: wr_receives(end);
}

static int on_event(struct ib_cm_id *id, const struct ib_cm_event *event);

static int take_req(struct ib_cm_id *id, const struct ib_cm_event *event)
{
	const struct ib_cm_req_event_param *req = &event->param.req_rcvd;
	struct hello hello;
	struct ib_cm_rep_param rep = {
		.starting_psn = get_random_u32() & PSN_MASK,
		.private_data = &hello,
		.private_data_len = sizeof(hello),
		.responder_resources = 1,
		.initiator_depth = 1,
		.rnr_retry_count = 7,
	};
	struct listener *l = id->context;
	struct end *end = hello_new_end(l, event->private_data, IB_CM_REQ_PRIVATE_DATA_SIZE);
	int ret;

	if (IS_ERR(end))
		return PTR_ERR(end);
	kref_get(&end->ref);
	mutex_lock(&end->mutex);
	end->ib_id = id;
	id->context = end;
	id->cm_handler = on_event;
	ret = end_publish(end);
	if (!ret)
		ret = open(end, hca_get_device(id->device), req->port, req->primary_path->pkey);
	if (!ret)
		ret = to_state(end, IB_QPS_RTR, &rep);
	if (!ret)
		ret = to_state(end, IB_QPS_RTS, &rep);
	if (!ret) {
		hello_fill(&hello, end);
		rep.qp_num = end->qp->qp_num;
		ret = ib_send_cm_rep(id, &rep);
	}
	if (ret) {
		pr_err_ratelimited("passive %u: cannot accept: %pe\n", end->id, ERR_PTR(ret));
		end_abandon(end);
	}
	mutex_unlock(&end->mutex);
	end_put(end);
	return ret;
}

static int on_request(struct ib_cm_id *id, const struct ib_cm_event *event)
{
	if (event->event != IB_CM_REQ_RECEIVED)
		return 0;
	/* An id that is not accepted is destroyed by ib_cm, with a REJ. */
	return take_req(id, event);
}

int cm_ib_listen(struct listener *l)
{
	struct ib_cm_id *id = ib_create_cm_id(l->opt.hca->device, on_request, l);
	int ret;

	if (IS_ERR(id))
		return PTR_ERR(id);
	ret = ib_cm_listen(id, cpu_to_be64(l->opt.service_id));
	if (ret)
		ib_destroy_cm_id(id);
	else
		l->ib = id;
	return ret;
}

static int established(struct end *end, const struct ib_cm_event *event)
{
	int ret = hello_take(end, event->private_data, IB_CM_REP_PRIVATE_DATA_SIZE);

	if (!ret)
		ret = to_state(end, IB_QPS_RTR, NULL);
	if (!ret)
		ret = to_state(end, IB_QPS_RTS, NULL);
	if (!ret)
		ret = ib_send_cm_rtu(end->ib_id, NULL, 0);
	if (!ret)
		end_established(end);
	return ret;
}

/* Says what an event means for the end: 0, or an error that ends it. */
static int take_event(struct end *end, const struct ib_cm_event *event)
{
	enum side side = end->side;

	switch (event->event) {
	case IB_CM_REP_RECEIVED:
		return established(end, event);
	case IB_CM_RTU_RECEIVED:
	case IB_CM_USER_ESTABLISHED:
		end_established(end);
		return 0;
	case IB_CM_MRA_RECEIVED:
		return 0;
	case IB_CM_REQ_ERROR:
	case IB_CM_REP_ERROR:
		count(side, UNREACHABLE);
		return -ETIMEDOUT;
	case IB_CM_REJ_RECEIVED:
		count(side, REJ_RECEIVED);
		pr_err_ratelimited("%u: rejected: %s\n", end->id,
				   ibcm_reject_msg(event->param.rej_rcvd.reason));
		return -ECONNREFUSED;
	case IB_CM_DREQ_RECEIVED:
		count(side, DREQ_RECEIVED);
		end->dreq_received = true;
		ib_send_cm_drep(end->ib_id, NULL, 0);
		return -ECONNRESET;
	case IB_CM_DREP_RECEIVED:
		count(side, DREP_RECEIVED);
		return -ECONNRESET;
	case IB_CM_DREQ_ERROR:
		count(side, DREQ_TIMEOUT);
		return -ECONNRESET;
	case IB_CM_TIMEWAIT_EXIT:
		count(side, TIMEWAIT_EXIT);
		return -ECONNRESET;
	default:
		count(side, CM_OTHER);
		return 0;
	}
}

static int on_event(struct ib_cm_id *id, const struct ib_cm_event *event)
{
	struct end *end = id->context;

	mutex_lock(&end->mutex);
	if (!end_in_state(end, DEAD) && take_event(end, event))
		end_kick(end, TODO_CLOSE);
	mutex_unlock(&end->mutex);
	/* Its work item destroys the id. */
	return 0;
}

int cm_ib_start(struct end *end)
{
	struct options *opt = &end->batch->opt;
	struct hello hello;
	struct ib_cm_req_param req = {
		.primary_path = &opt->path,
		.service_id = cpu_to_be64(opt->service_id),
		.qp_type = IB_QPT_RC,
		.starting_psn = get_random_u32() & PSN_MASK,
		.private_data = &hello,
		.private_data_len = sizeof(hello),
		.responder_resources = 1,
		.initiator_depth = 1,
		.remote_cm_response_timeout = RESPONSE_TIMEOUT,
		.local_cm_response_timeout = RESPONSE_TIMEOUT,
		.retry_count = opt->retry,
		.rnr_retry_count = 7,
		.max_cm_retries = CM_RETRIES,
	};
	struct hca *hca = hca_get_device(opt->hca->device);
	struct ib_cm_id *id;
	int ret;

	if (!hca)
		return -ENODEV;
	ret = open(end, hca, opt->port, opt->path.pkey);
	if (ret)
		return ret;
	id = ib_create_cm_id(hca->device, on_event, end);
	if (IS_ERR(id))
		return PTR_ERR(id);
	end->ib_id = id;
	hello_fill(&hello, end);
	req.qp_num = end->qp->qp_num;
	return ib_send_cm_req(id, &req);
}

void cm_ib_disconnect(struct end *end)
{
	if (ib_send_cm_dreq(end->ib_id, NULL, 0))
		end_kick(end, TODO_CLOSE);
}
