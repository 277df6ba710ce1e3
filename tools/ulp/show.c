// SPDX-License-Identifier: GPL-2.0-only
/*
 * debugfs: commands go in, state comes out.
 */
#define pr_fmt(fmt) "apm-test-ulp: " fmt

#include <linux/debugfs.h>
#include <linux/ktime.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "ulp.h"

#define LINE_MAX	512

const char *const state_names[STATES + 1] = {
	"connecting", "established", "disconnecting", "dead"
};

static const char *const counter_names[COUNTERS] = {
	[CONNECTED] = "connected", [CONNECT_FAILED] = "connect_failed", [ENDED] = "ended",
	[REQUESTS] = "requests", [ANSWERS] = "answers", [LOST] = "lost",
	[DUPLICATE] = "duplicate", [REORDERED] = "reordered", [CORRUPT] = "corrupt",
	[WC_ERROR] = "wc_error", [WC_FLUSH] = "wc_flush", [WC_UNKNOWN] = "wc_unknown",
	[POST_ERROR] = "post_error", [FILLED] = "filled", [FILL_DONE] = "fill_done",
	[REJ_RECEIVED] = "rej_received", [UNREACHABLE] = "unreachable",
	[ROUTE_ERROR] = "route_error", [DREQ_RECEIVED] = "dreq_received",
	[DREP_RECEIVED] = "drep_received", [DREQ_TIMEOUT] = "dreq_timeout",
	[TIMEWAIT_EXIT] = "timewait_exit", [DEVICE_REMOVAL] = "device_removal",
	[CM_OTHER] = "cm_other", [QP_COMM_EST] = "qp_comm_est", [QP_PATH_MIG] = "qp_path_mig",
	[QP_PATH_MIG_ERR] = "qp_path_mig_err", [QP_OTHER] = "qp_other",
};

static struct dentry *dir;
/* One command at a time. */
static DEFINE_MUTEX(control_lock);

static ssize_t control_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	char *line;
	int ret;

	if (len > LINE_MAX)
		return -EINVAL;
	line = memdup_user_nul(from, len);
	if (IS_ERR(line))
		return PTR_ERR(line);
	mutex_lock(&control_lock);
	ret = control(line);
	mutex_unlock(&control_lock);
	kfree(line);
	return ret ?: len;
}

static const struct file_operations control_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = control_write,
};

/* What one waits for: no walk over the connections. */
static int summary_show(struct seq_file *m, void *v)
{
	enum side side;
	enum state state;

	for (side = ACTIVE; side < SIDES; side++) {
		struct totals *t = &totals[side];

		seq_puts(m, side_names[side]);
		for (state = CONNECTING; state < STATES; state++)
			seq_printf(m, " %s=%d", state_names[state], atomic_read(&t->state[state]));
		if (side == ACTIVE)
			seq_printf(m, " busy=%d progressed=%u pause_us=%llu",
				   atomic_read(&t->busy), (u32)atomic64_read(&t->progressed),
				   div_u64(atomic64_read(&t->pause), NSEC_PER_USEC));
		seq_putc(m, '\n');
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(summary);

static int counters_show(struct seq_file *m, void *v)
{
	enum counter i;

	for (i = 0; i < COUNTERS; i++)
		seq_printf(m, "%s active=%lld passive=%lld\n", counter_names[i],
			   atomic64_read(&counters[ACTIVE][i]),
			   atomic64_read(&counters[PASSIVE][i]));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

/* Of the established connections, as ib_query_qp() tells. */
static int paths_show(struct seq_file *m, void *v)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	enum side side;

	for (side = ACTIVE; side < SIDES; side++) {
		u32 mig[3] = {}, port[3] = {}, apart = 0, failed = 0;
		unsigned long id = 0;
		struct end *end;

		for (; (end = end_next(side, &id)); id++) {
			mutex_lock(&end->mutex);
			if (end_in_state(end, ESTABLISHED)) {
				if (ib_query_qp(end->qp, &attr, IB_QP_PATH_MIG_STATE | IB_QP_PORT |
						IB_QP_ALT_PATH, &init) ||
				    attr.path_mig_state > IB_MIG_ARMED) {
					failed++;
				} else {
					mig[attr.path_mig_state]++;
					port[min(attr.port_num, 2)]++;
					if (attr.path_mig_state == IB_MIG_ARMED)
						apart += attr.port_num != attr.alt_port_num;
				}
			}
			mutex_unlock(&end->mutex);
			end_put(end);
			cond_resched();
		}
		seq_printf(m, "%s migrated=%u rearm=%u armed=%u apart=%u port1=%u port2=%u failed=%u\n",
			   side_names[side], mig[IB_MIG_MIGRATED], mig[IB_MIG_REARM],
			   mig[IB_MIG_ARMED], apart, port[1], port[2], failed);
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(paths);

/* Position: side << 32 | number. */
static void *find(loff_t *pos)
{
	enum side side = *pos >> 32;
	unsigned long id = (u32)*pos;

	for (; side < SIDES; side++, id = 0) {
		struct end *end = end_next(side, &id);

		if (end) {
			*pos = (loff_t)side << 32 | id;
			return end;
		}
	}
	return NULL;
}

static void *connections_start(struct seq_file *m, loff_t *pos)
{
	return find(pos);
}

static void *connections_next(struct seq_file *m, void *v, loff_t *pos)
{
	end_put(v);
	++*pos;
	return find(pos);
}

static void connections_stop(struct seq_file *m, void *v)
{
	if (v)
		end_put(v);
}

static int connections_show(struct seq_file *m, void *v)
{
	struct end *end = v;
	u64 waiting = 0;
	bool alive;

	mutex_lock(&end->mutex);
	spin_lock_bh(&end->lock);
	/* DEAD: HCA and QP are about to go. */
	alive = end->state != DEAD && end->qp;
	if (end->outstanding)
		waiting = ktime_get_ns() - end->since;
	seq_printf(m, "id=%u side=%s cm=%s cq=%s state=%s dev=%s qpn=%u", end->id,
		   side_names[end->side], cm_names[end->cm], cq_names[end->cq],
		   state_names[end->state], alive ? dev_name(&end->hca->device->dev) : "-",
		   alive ? end->qp->qp_num : 0);
	seq_printf(m, " busy=%d drained=%d requests=%llu answers=%llu outstanding=%u", end->busy,
		   end->drained, end->requests, end->answers, end->outstanding);
	seq_printf(m, " lost=%llu duplicate=%llu reordered=%llu corrupt=%llu", end->in.lost,
		   end->in.duplicate, end->in.reordered, end->in.corrupt);
	seq_printf(m, " sq_used=%u sq_depth=%u pause_us=%llu waiting_us=%llu\n", end->sq_used,
		   end->sq_depth, div_u64(end->pause, NSEC_PER_USEC), div_u64(waiting, NSEC_PER_USEC));
	spin_unlock_bh(&end->lock);
	mutex_unlock(&end->mutex);
	return 0;
}

static const struct seq_operations connections_sops = {
	.start = connections_start,
	.next = connections_next,
	.stop = connections_stop,
	.show = connections_show,
};
DEFINE_SEQ_ATTRIBUTE(connections);

int show_init(void)
{
	dir = debugfs_create_dir("apm_test_ulp", NULL);
	debugfs_create_file("summary", 0444, dir, NULL, &summary_fops);
	debugfs_create_file("counters", 0444, dir, NULL, &counters_fops);
	debugfs_create_file("paths", 0444, dir, NULL, &paths_fops);
	debugfs_create_file("connections", 0444, dir, NULL, &connections_fops);
	debugfs_create_file("control", 0200, dir, NULL, &control_fops);
	return PTR_ERR_OR_ZERO(dir);
}

/* When it returns nobody is in any of the files. */
void show_exit(void)
{
	debugfs_remove_recursive(dir);
}
