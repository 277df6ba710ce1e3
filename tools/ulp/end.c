// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ends of connections: how they begin, change their state and go.
 *
 * The table holds a reference, a queued work item another; who looks one up gets
 * one. State changes happen in set_state() alone.
 */
#define pr_fmt(fmt) "apm-test-ulp: " fmt

#include <linux/slab.h>
#include "ulp.h"

struct xarray ends[SIDES] = {
	XARRAY_INIT(ends[ACTIVE], 0),
	XARRAY_INIT(ends[PASSIVE], 0),
};
struct totals totals[SIDES];
atomic64_t counters[SIDES][COUNTERS];

/* Those that are not taken apart yet. */
static atomic_t left;
static DECLARE_WAIT_QUEUE_HEAD(none_left);

static void end_work(struct work_struct *work);

static void release(struct kref *ref)
{
	struct end *end = container_of(ref, struct end, ref);

	kfree(end->answer);
	kfree(end->rx);
	kfree(end->tx);
	kfree(end);
}

void end_put(struct end *end)
{
	kref_put(&end->ref, release);
}

static void set_state(struct end *end, enum state state)
{
	lockdep_assert_held(&end->lock);
	atomic_dec(&totals[end->side].state[end->state]);
	atomic_inc(&totals[end->side].state[state]);
	end->state = state;
	if (state != ESTABLISHED && end->busy) {
		end->busy = false;
		atomic_dec(&totals[end->side].busy);
	}
}

bool end_in_state(struct end *end, enum state state)
{
	guard(spinlock_bh)(&end->lock);
	return end->state == state;
}

struct end *end_new(enum side side, u32 id, const struct options *opt, u32 window, u32 size)
{
	struct end *end = kzalloc_obj(*end);

	if (!end)
		return ERR_PTR(-ENOMEM);
	kref_init(&end->ref);
	end->id = id;
	end->side = side;
	end->cm = opt->cm;
	end->cq = opt->cq;
	end->window = window;
	end->size = size;
	/* A request may take two work requests, and may be sent twice. */
	end->sq_depth = opt->sq_depth ?: 2 * (window + 1);
	end->rq_depth = window + 1;
	end->rx = kzalloc_objs(*end->rx, end->rq_depth);
	end->tx = kzalloc_objs(*end->tx, end->rq_depth);
	end->answer = kzalloc_objs(*end->answer, end->rq_depth);
	mutex_init(&end->mutex);
	spin_lock_init(&end->poll_lock);
	spin_lock_init(&end->lock);
	init_waitqueue_head(&end->wait);
	INIT_WORK(&end->work, end_work);
	timer_setup(&end->timer, traffic_timer, 0);
	if (!end->rx || !end->tx || !end->answer) {
		release(&end->ref);
		return ERR_PTR(-ENOMEM);
	}
	atomic_inc(&totals[side].state[end->state]);
	atomic_inc(&left);
	return end;
}

/* Makes it known; from here on a command may end it. */
int end_publish(struct end *end)
{
	return xa_insert(&ends[end->side], end->id, end, GFP_KERNEL);
}

struct end *end_get(enum side side, u32 id)
{
	struct end *end;

	xa_lock(&ends[side]);
	end = xa_load(&ends[side], id);
	if (end)
		kref_get(&end->ref);
	xa_unlock(&ends[side]);
	return end;
}

/* The first one from *id on. */
struct end *end_next(enum side side, unsigned long *id)
{
	struct end *end;

	xa_lock(&ends[side]);
	end = xa_find(&ends[side], id, U32_MAX, XA_PRESENT);
	if (end)
		kref_get(&end->ref);
	xa_unlock(&ends[side]);
	return end;
}

/* Has its work item do something. From any context. */
void end_kick(struct end *end, enum todo what)
{
	set_bit(what, &end->todo);
	kref_get(&end->ref);
	if (!queue_work(ulp_wq, &end->work))
		end_put(end);
}

/* A CM handler has learned that the connection is there. */
void end_established(struct end *end)
{
	struct batch *b = end->batch;

	lockdep_assert_held(&end->mutex);
	spin_lock_bh(&end->lock);
	if (end->state != CONNECTING) {
		spin_unlock_bh(&end->lock);
		return;
	}
	set_state(end, ESTABLISHED);
	spin_unlock_bh(&end->lock);
	count(end->side, CONNECTED);
	if (b && b->opt.busy)
		traffic_busy(end, b->opt.every, b->opt.op);
	batch_done(end);
	/* Requests may have been faster than the RTU. */
	traffic_pump(end);
}

/* It is DEAD and its queues are gone; nobody finds it any more. */
static void forget(struct end *end)
{
	if (xa_cmpxchg(&ends[end->side], end->id, end, NULL, GFP_KERNEL) != end)
		pr_debug("%s %u was never published\n", side_names[end->side], end->id);
	atomic_dec(&totals[end->side].state[DEAD]);
	end_put(end);
	if (atomic_dec_and_test(&left))
		wake_up_all(&none_left);
}

/* The connection did not come about. A CM id that it has belongs to the caller. */
void end_abandon(struct end *end)
{
	spin_lock_bh(&end->lock);
	if (end->state == DEAD) {
		spin_unlock_bh(&end->lock);
		return;
	}
	set_state(end, DEAD);
	spin_unlock_bh(&end->lock);
	timer_shutdown_sync(&end->timer);
	count(end->side, CONNECT_FAILED);
	batch_done(end);
	queue_close(end);
	hca_put(end->hca);
	forget(end);
}

static void start(struct end *end)
{
	int ret = 0;

	mutex_lock(&end->mutex);
	if (end_in_state(end, CONNECTING))
		ret = end->cm == CM_RDMA ? cm_rdma_start(end) : cm_ib_start(end);
	mutex_unlock(&end->mutex);
	if (ret) {
		pr_err_ratelimited("%u: cannot connect: %pe\n", end->id, ERR_PTR(ret));
		set_bit(TODO_CLOSE, &end->todo);
	}
}

static void disconnect(struct end *end)
{
	spin_lock_bh(&end->lock);
	if (end->state != ESTABLISHED) {
		spin_unlock_bh(&end->lock);
		return;
	}
	set_state(end, DISCONNECTING);
	end->dreq_sent = true;
	spin_unlock_bh(&end->lock);
	if (end->cm == CM_RDMA)
		cm_rdma_disconnect(end);
	else
		cm_ib_disconnect(end);
}

static void drain(struct end *end)
{
	mutex_lock(&end->mutex);
	if (end_in_state(end, ESTABLISHED) || end_in_state(end, DISCONNECTING))
		queue_drain(end);
	mutex_unlock(&end->mutex);
}

/*
 * QP first, CM id second, CQs last. A CM id that is destroyed sends what its state
 * asks for: a REJ, a DREQ.
 */
static void close(struct end *end)
{
	enum state was;

	mutex_lock(&end->mutex);
	spin_lock_bh(&end->lock);
	was = end->state;
	if (was != DEAD)
		set_state(end, DEAD);
	spin_unlock_bh(&end->lock);
	mutex_unlock(&end->mutex);
	if (was == DEAD)
		return;
	/* No handler does anything to it any more. */
	timer_shutdown_sync(&end->timer);
	count(end->side, was == CONNECTING ? CONNECT_FAILED : ENDED);
	batch_done(end);
	if (end->dreq_received && end->cm == CM_RDMA)
		rdma_disconnect(end->rdma_id);
	/* Once is enough, and a scenario wants the time between drain and destruction to last. */
	if (end->qp && !end->drained)
		queue_drain(end);
	queue_close(end);
	if (end->rdma_id)
		rdma_destroy_id(end->rdma_id);
	if (end->ib_id)
		ib_destroy_cm_id(end->ib_id);
	hca_put(end->hca);
	forget(end);
}

static void end_work(struct work_struct *work)
{
	struct end *end = container_of(work, struct end, work);

	if (test_and_clear_bit(TODO_START, &end->todo))
		start(end);
	if (test_and_clear_bit(TODO_DRAIN, &end->todo))
		drain(end);
	if (test_and_clear_bit(TODO_DISCONNECT, &end->todo))
		disconnect(end);
	if (test_and_clear_bit(TODO_CLOSE, &end->todo))
		close(end);
	end_put(end);
}

/* Those of an HCA, or all; without waiting for it. */
void ends_close(struct hca *hca)
{
	struct end *end;
	enum side side;

	for (side = ACTIVE; side < SIDES; side++) {
		unsigned long id = 0;

		for (; (end = end_next(side, &id)); id++) {
			mutex_lock(&end->mutex);
			if (!hca || end->hca == hca)
				end_kick(end, TODO_CLOSE);
			mutex_unlock(&end->mutex);
			end_put(end);
		}
	}
}

void ends_wait(void)
{
	wait_event(none_left, !atomic_read(&left));
}
