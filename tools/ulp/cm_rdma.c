// SPDX-License-Identifier: GPL-2.0-only
/*
 * Connections by way of rdma_cm: addresses are IP addresses, those of IPoIB.
 */
#define pr_fmt(fmt) "apm-test-ulp: " fmt

#include <linux/slab.h>
#include <net/net_namespace.h>
#include "ulp.h"

#define RESOLVE_MS	20000
#define BACKLOG		1024

static int on_event(struct rdma_cm_id *id, struct rdma_cm_event *event);

void hello_fill(struct hello *hello, const struct end *end)
{
	u64 area = end->dma + 2 * (u64)end->rq_depth * end->size;

	*hello = (struct hello) {
		.magic = cpu_to_be32(HELLO_MAGIC),
		.id = cpu_to_be32(end->id),
		.size = cpu_to_be32(end->size),
		.window = cpu_to_be32(end->window),
		.rkey = cpu_to_be32(end->rkey),
		.addr = cpu_to_be64(area),
	};
}

/* The passive end's answer. */
int hello_take(struct end *end, const void *data, u32 len)
{
	const struct hello *hello = data;

	if (!data || len < sizeof(*hello) || hello->magic != cpu_to_be32(HELLO_MAGIC) ||
	    be32_to_cpu(hello->id) != end->id)
		return -EPROTO;
	end->peer_addr = be64_to_cpu(hello->addr);
	end->peer_rkey = be32_to_cpu(hello->rkey);
	return 0;
}

/* The passive end that an active one asks for. */
struct end *hello_new_end(const struct listener *l, const void *data, u32 len)
{
	const struct hello *hello = data;
	struct end *end;
	u32 window, size;

	if (!data || len < sizeof(*hello) || hello->magic != cpu_to_be32(HELLO_MAGIC))
		return ERR_PTR(-EPROTO);
	window = be32_to_cpu(hello->window);
	size = be32_to_cpu(hello->size);
	if (!options_fit(window, size))
		return ERR_PTR(-EPROTO);
	end = end_new(PASSIVE, be32_to_cpu(hello->id), &l->opt, window, size);
	if (!IS_ERR(end) && hello_take(end, data, len))
		pr_debug("cannot be: it is its own number\n");
	return end;
}

static int take_req(struct rdma_cm_id *id, const struct listener *l, const struct rdma_conn_param *req)
{
	struct hello hello;
	struct rdma_conn_param param = {
		.private_data = &hello,
		.private_data_len = sizeof(hello),
		.responder_resources = 1,
		.initiator_depth = 1,
		.rnr_retry_count = 7,
	};
	struct end *end = hello_new_end(l, req->private_data, req->private_data_len);
	struct hca *hca;
	int ret;

	if (IS_ERR(end))
		return PTR_ERR(end);
	kref_get(&end->ref);
	mutex_lock(&end->mutex);
	end->rdma_id = id;
	id->context = end;
	id->event_handler = on_event;
	ret = end_publish(end);
	hca = ret ? NULL : hca_get_device(id->device);
	if (!ret)
		ret = hca ? queue_open(end, hca, id) : -ENODEV;
	if (!ret)
		ret = wr_receives(end);
	if (!ret) {
		hello_fill(&hello, end);
		ret = rdma_accept(id, &param);
	}
	if (ret) {
		pr_err_ratelimited("passive %u: cannot accept: %pe\n", end->id, ERR_PTR(ret));
		end_abandon(end);
	}
	mutex_unlock(&end->mutex);
	end_put(end);
	return ret;
}

static int on_request(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		return 0;
	/* An id that is not accepted is destroyed by rdma_cm, with a REJ. */
	return take_req(id, id->context, &event->param.conn);
}

int cm_rdma_listen(struct listener *l)
{
	struct rdma_cm_id *id = rdma_create_id(&init_net, on_request, l, RDMA_PS_TCP, IB_QPT_RC);
	int ret;

	if (IS_ERR(id))
		return PTR_ERR(id);
	ret = rdma_bind_addr(id, (struct sockaddr *)&l->opt.addr);
	if (!ret)
		ret = rdma_listen(id, BACKLOG);
	if (ret)
		rdma_destroy_id(id);
	else
		l->rdma = id;
	return ret;
}

/* The route is known, and so is the HCA. */
static int ask(struct end *end, struct rdma_cm_id *id)
{
	struct hello hello;
	struct rdma_conn_param param = {
		.private_data = &hello,
		.private_data_len = sizeof(hello),
		.responder_resources = 1,
		.initiator_depth = 1,
		.retry_count = end->batch->opt.retry,
		.rnr_retry_count = 7,
	};
	struct hca *hca = hca_get_device(id->device);
	int ret;

	if (!hca)
		return -ENODEV;
	ret = queue_open(end, hca, id);
	if (!ret)
		ret = wr_receives(end);
	if (ret)
		return ret;
	hello_fill(&hello, end);
	return rdma_connect_locked(id, &param);
}

/* Says what an event means for the end: 0, or an error that ends it. */
static int take_event(struct end *end, struct rdma_cm_id *id, const struct rdma_cm_event *event)
{
	enum side side = end->side;
	int ret;

	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		return rdma_resolve_route(id, RESOLVE_MS);
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		return ask(end, id);
	case RDMA_CM_EVENT_ESTABLISHED:
		ret = side == ACTIVE ? hello_take(end, event->param.conn.private_data,
						  event->param.conn.private_data_len) : 0;
		if (!ret)
			end_established(end);
		return ret;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
		count(side, ROUTE_ERROR);
		return event->status ?: -EHOSTUNREACH;
	case RDMA_CM_EVENT_UNREACHABLE:
		count(side, UNREACHABLE);
		return event->status ?: -ETIMEDOUT;
	case RDMA_CM_EVENT_REJECTED:
		count(side, REJ_RECEIVED);
		pr_err_ratelimited("%u: rejected: %s\n", end->id, rdma_reject_msg(id, event->status));
		return -ECONNREFUSED;
	case RDMA_CM_EVENT_DISCONNECTED:
		if (event->status == -ETIMEDOUT) {
			count(side, DREQ_TIMEOUT);
		} else if (READ_ONCE(end->dreq_sent)) {
			count(side, DREP_RECEIVED);
		} else {
			count(side, DREQ_RECEIVED);
			end->dreq_received = true;
		}
		end_kick(end, TODO_CLOSE);
		return 0;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		count(side, TIMEWAIT_EXIT);
		return -ECONNRESET;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		count(side, DEVICE_REMOVAL);
		return -ENODEV;
	default:
		count(side, CM_OTHER);
		return 0;
	}
}

static int on_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct end *end = id->context;

	mutex_lock(&end->mutex);
	if (!end_in_state(end, DEAD) && take_event(end, id, event))
		end_kick(end, TODO_CLOSE);
	mutex_unlock(&end->mutex);
	/* Its work item destroys the id. */
	return 0;
}

int cm_rdma_start(struct end *end)
{
	struct rdma_cm_id *id = rdma_create_id(&init_net, on_event, end, RDMA_PS_TCP, IB_QPT_RC);

	if (IS_ERR(id))
		return PTR_ERR(id);
	end->rdma_id = id;
	return rdma_resolve_addr(id, NULL, (struct sockaddr *)&end->batch->opt.addr, RESOLVE_MS);
}

void cm_rdma_disconnect(struct end *end)
{
	if (rdma_disconnect(end->rdma_id))
		end_kick(end, TODO_CLOSE);
}
