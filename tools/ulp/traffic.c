// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requests and answers.
 *
 * The active end asks, the passive end answers with the request's number. A request
 * may follow an RDMA WRITE, whose data the passive end checks, and an answer may be
 * followed by an RDMA READ of what the passive end has prepared.
 */
#define pr_fmt(fmt) "apm-test-ulp: " fmt

#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/random.h>
#include "ulp.h"

/* Tag of a message: who sends it, and for which operation. That of an RDMA area has one bit more. */
#define TAG(side, op)	((u32)(side) | (u32)(op) << 4)
#define TAG_AREA	BIT(8)

static u8 *rx_buf(struct end *end, u32 slot)
{
	return end->buf + (size_t)slot * end->size;
}

static u8 *tx_buf(struct end *end, u32 slot)
{
	return rx_buf(end, end->rq_depth + slot);
}

static u8 *public_area(struct end *end)
{
	return rx_buf(end, 2 * end->rq_depth);
}

static u8 *private_area(struct end *end)
{
	return rx_buf(end, 2 * end->rq_depth + 1);
}

static u64 buf_dma(struct end *end, const u8 *buf)
{
	return end->dma + (buf - end->buf);
}

static void sync_for_cpu(struct end *end, const u8 *buf)
{
	ib_dma_sync_single_for_cpu(end->hca->device, buf_dma(end, buf), end->size,
				   DMA_BIDIRECTIONAL);
}

/* Room for so many work requests; remembers that there was none. */
static bool room(struct end *end, u32 n)
{
	if (end->sq_used + n <= end->sq_depth)
		return true;
	end->starved = true;
	return false;
}

static int free_slot(struct end *end)
{
	u32 i;

	for (i = 0; i < end->rq_depth; i++)
		if (!end->tx[i].used)
			return i;
	end->starved = true;
	return -EBUSY;
}

static bool send_message(struct end *end, enum op op, u64 seq)
{
	int slot = free_slot(end);
	u8 *buf;

	if (slot < 0)
		return false;
	buf = tx_buf(end, slot);
	message_write(buf, end->size, end->id, TAG(end->side, op), seq);
	if (end->corrupt) {
		buf[end->size - 1] ^= 0x10;
		end->corrupt = false;
	}
	if (wr_send(end, slot)) {
		end_kick(end, TODO_DISCONNECT);
		return false;
	}
	return true;
}

/* Sends the next request, if there is a place for it. */
static bool request(struct end *end)
{
	u64 seq = end->next_request + end->skip;

	if (!room(end, end->op == OP_SEND ? 1 : 2))
		return false;
	if (end->op == OP_WRITE) {
		message_write(private_area(end), end->size, end->id, TAG_AREA | TAG(ACTIVE, OP_WRITE),
			      seq);
		if (wr_rdma(end, IB_WR_RDMA_WRITE))
			goto broken;
	}
	if (!send_message(end, end->op, seq))
		return false;
	end->next_request = seq + 1;
	end->skip = false;
	end->requests++;
	count(ACTIVE, REQUESTS);
	if (!end->outstanding++)
		end->since = ktime_get_ns();
	if (end->repeat && room(end, 1) && send_message(end, end->op, seq))
		end->repeat = false;
	return true;

broken:
	end_kick(end, TODO_DISCONNECT);
	return false;
}

/* Sends the answer that is due, if there is a place for it. */
static bool answer(struct end *end)
{
	u64 seq = end->answer[end->answer_first].seq;
	enum op op = end->answer[end->answer_first].op;

	if (!room(end, 1))
		return false;
	if (op == OP_READ)
		message_write(public_area(end), end->size, end->id, TAG_AREA | TAG(PASSIVE, OP_READ),
			      seq);
	if (end->skip)
		end->skip = false;
	else if (!send_message(end, op, seq))
		return false;
	if (end->repeat && room(end, 1) && send_message(end, op, seq))
		end->repeat = false;
	end->answer_first = (end->answer_first + 1) % end->rq_depth;
	end->answer_count--;
	end->answers++;
	count(PASSIVE, ANSWERS);
	return true;
}

/* Is it time for the next request? If it will be, the timer is set. */
static bool may_ask(struct end *end)
{
	if (!end->busy || end->outstanding >= end->window)
		return false;
	if (time_after_eq(jiffies, end->due))
		return true;
	mod_timer(&end->timer, end->due);
	return false;
}

/* Sends what can be sent now. */
void traffic_pump(struct end *end)
{
	queue_poll_direct(end);
	spin_lock_bh(&end->lock);
	end->starved = false;
	if (end->state == ESTABLISHED && !end->drained) {
		if (end->side == PASSIVE)
			while (end->answer_count && answer(end))
				;
		else
			while (may_ask(end) && request(end))
				;
		/* Nobody tells of what comes out of a directly polled CQ. */
		if ((end->starved || end->reading) && end->cq == CQ_DIRECT)
			mod_timer(&end->timer, jiffies + 1);
	}
	spin_unlock_bh(&end->lock);
}

void traffic_timer(struct timer_list *timer)
{
	struct end *end = timer_container_of(end, timer, timer);

	traffic_pump(end);
}

/* A place in the send queue has become free. Directly polled, it is seen by who polls. */
void traffic_sent(struct end *end)
{
	if (READ_ONCE(end->starved) && end->cq != CQ_DIRECT)
		traffic_pump(end);
}

/* Counts an end once for each `mark`. */
static void count_progress(struct end *end)
{
	u64 now = atomic64_read(&totals[ACTIVE].progressed);

	do {
		if (now >> 32 == end->mark)
			return;
	} while (!atomic64_try_cmpxchg(&totals[ACTIVE].progressed, &now, now + 1));
	end->mark = now >> 32;
	end->pause = 0;
}

/* The active end has what it asked for. */
static void progress(struct end *end)
{
	u64 now = ktime_get_ns(), pause = now - end->since, longest;

	lockdep_assert_held(&end->lock);
	end->answers++;
	count(ACTIVE, ANSWERS);
	if (end->outstanding)
		end->outstanding--;
	end->since = now;
	end->due = jiffies + msecs_to_jiffies(end->every);
	if (end->busy)
		count_progress(end);
	if (pause <= end->pause)
		return;
	end->pause = pause;
	longest = atomic64_read(&totals[ACTIVE].pause);
	while (pause > longest &&
	       !atomic64_try_cmpxchg(&totals[ACTIVE].pause, &longest, pause))
		;
}

/* The data of an RDMA WRITE, or of an RDMA READ. */
static bool area_intact(struct end *end, const u8 *area, u32 tag, u64 seq)
{
	sync_for_cpu(end, area);
	return message_check(area, end->size, end->id) && message_tag(area) == tag &&
	       message_seq(area) == seq;
}

/* Returns whether there may be something to do now. */
static bool take_answer(struct end *end, bool intact, u64 seq, enum op op)
{
	if (!sequence_take(&end->in, end->side, intact, seq))
		return false;
	if (op == OP_READ && intact) {
		end->reading = true;
		if (wr_rdma(end, IB_WR_RDMA_READ))
			end_kick(end, TODO_DISCONNECT);
		return end->cq == CQ_DIRECT;
	}
	progress(end);
	return true;
}

static void take_request(struct end *end, bool intact, u64 seq, enum op op)
{
	u32 last;

	if (op == OP_WRITE && intact)
		intact = area_intact(end, public_area(end), TAG_AREA | TAG(ACTIVE, OP_WRITE), seq);
	if (!intact)
		seq = end->in.next;
	if (!sequence_take(&end->in, end->side, intact, seq))
		return;
	end->requests++;
	count(PASSIVE, REQUESTS);
	if (end->answer_count == end->rq_depth) {
		/* More requests than the window has. */
		end->in.duplicate++;
		count(PASSIVE, DUPLICATE);
		return;
	}
	last = (end->answer_first + end->answer_count++) % end->rq_depth;
	end->answer[last].seq = seq;
	end->answer[last].op = op;
}

void traffic_received(struct end *end, u32 slot, u32 len)
{
	const u8 *buf = rx_buf(end, slot);
	bool intact, more = end->side == PASSIVE;
	enum op op;
	u32 tag;

	sync_for_cpu(end, buf);
	tag = message_tag(buf);
	op = tag >> 4;
	intact = len == end->size && message_check(buf, len, end->id) && op < OPS &&
		 tag == TAG(!end->side, op);
	spin_lock_bh(&end->lock);
	if (end->side == ACTIVE)
		more = take_answer(end, intact, message_seq(buf), op);
	else
		take_request(end, intact, message_seq(buf), intact ? op : OP_SEND);
	/* Before the answer, and before the next request: the peer may rely on it. */
	if (!end->drained && wr_receive(end, slot) && end->state == ESTABLISHED)
		end_kick(end, TODO_DISCONNECT);
	spin_unlock_bh(&end->lock);
	if (more)
		traffic_pump(end);
}

/* What was asked for has been read. */
void traffic_read(struct end *end)
{
	spin_lock_bh(&end->lock);
	if (!area_intact(end, private_area(end), TAG_AREA | TAG(PASSIVE, OP_READ),
			 end->in.next - 1)) {
		end->in.corrupt++;
		count(ACTIVE, CORRUPT);
	}
	end->reading = false;
	progress(end);
	spin_unlock_bh(&end->lock);
	/* Directly polled, it is traffic_pump() that has polled. */
	if (end->cq != CQ_DIRECT)
		traffic_pump(end);
}

void traffic_busy(struct end *end, u32 every, enum op op)
{
	spin_lock_bh(&end->lock);
	if (end->state == ESTABLISHED) {
		if (!end->busy)
			atomic_inc(&totals[end->side].busy);
		end->busy = true;
		end->every = every;
		end->op = op;
		/* Not all at the same time. */
		end->due = jiffies + get_random_u32_below(msecs_to_jiffies(every) + 1);
		mod_timer(&end->timer, end->due);
	}
	spin_unlock_bh(&end->lock);
}

/* What is under way is still answered. */
void traffic_idle(struct end *end)
{
	spin_lock_bh(&end->lock);
	if (end->busy) {
		end->busy = false;
		atomic_dec(&totals[end->side].busy);
	}
	spin_unlock_bh(&end->lock);
}

/* From now on longest pauses and progress are counted anew. */
void traffic_mark(void)
{
	u64 now = atomic64_read(&totals[ACTIVE].progressed);

	while (!atomic64_try_cmpxchg(&totals[ACTIVE].progressed, &now, ((now >> 32) + 1) << 32))
		;
	atomic64_set(&totals[ACTIVE].pause, 0);
}
