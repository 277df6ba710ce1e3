/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A test ULP: many RC connections, both of their ends in this kernel or one of
 * them elsewhere, which ask and answer with data that both check.
 *
 * An end of a connection is touched by its work item, by CM handlers, by
 * completions, by its timer and by readers of debugfs:
 *
 * - its work item alone disconnects it and takes it apart, one run at a time;
 * - end->mutex: QP, CQs and CM id come and go; CM handlers take it first and leave
 *   everything alone once the state is DEAD;
 * - end->poll_lock: who polls a directly polled CQ;
 * - end->lock: state, work queues, traffic.
 *
 * Lock order: control_lock, a CM id's handler lock, end->mutex, end->poll_lock,
 * end->lock, the table's lock.
 */
#ifndef ULP_H
#define ULP_H

#include <linux/completion.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/refcount.h>
#include <linux/seq_file.h>
#include <linux/socket.h>
#include <linux/spinlock.h>
#include <linux/timer.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_cm.h>
#include <rdma/ib_sa.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

enum side { ACTIVE, PASSIVE, SIDES };
enum cm_kind { CM_RDMA, CM_IB, CM_KINDS };
enum cq_kind { CQ_POOL, CQ_SOFTIRQ, CQ_WORKQUEUE, CQ_DIRECT, CQ_PLAIN, CQ_KINDS };
enum op { OP_SEND, OP_WRITE, OP_READ, OPS };

/* In this order; DEAD ends are not in the table any more, or will not be for long. */
enum state { CONNECTING, ESTABLISHED, DISCONNECTING, DEAD, STATES };

extern const char *const side_names[SIDES + 1], *const cm_names[CM_KINDS + 1],
		  *const cq_names[CQ_KINDS + 1], *const op_names[OPS + 1],
		  *const state_names[STATES + 1];

/* What is counted for each side. The names are in show.c. */
enum counter {
	CONNECTED, CONNECT_FAILED, ENDED,
	REQUESTS, ANSWERS, LOST, DUPLICATE, REORDERED, CORRUPT,
	WC_ERROR, WC_FLUSH, WC_UNKNOWN, POST_ERROR, FILLED, FILL_DONE,
	REJ_RECEIVED, UNREACHABLE, ROUTE_ERROR,
	DREQ_RECEIVED, DREP_RECEIVED, DREQ_TIMEOUT, TIMEWAIT_EXIT, DEVICE_REMOVAL, CM_OTHER,
	QP_COMM_EST, QP_PATH_MIG, QP_PATH_MIG_ERR, QP_OTHER,
	COUNTERS
};

extern atomic64_t counters[SIDES][COUNTERS];

/* Sum over all ends of a side. */
struct totals {
	atomic_t state[STATES];
	atomic_t busy;
	/* Number of the last `mark` << 32 | busy active ends that had an answer since then. */
	atomic64_t progressed;
	/* Longest time, in ns, that an end waited for its next answer since then. */
	atomic64_t pause;
};

extern struct totals totals[SIDES];

/* A device, for as long as somebody uses it. */
struct hca {
	struct list_head list;
	struct ib_device *device;
	struct ib_pd *pd;
	/* Listeners and ends, and one until it is removed. */
	refcount_t users;
	struct completion unused;
	bool gone;
};

/* What `listen` and `connect` were told. */
struct options {
	enum cm_kind cm;
	enum cq_kind cq;
	/* Requests under way at most. */
	u32 window;
	/* Bytes of a message. */
	u32 size;
	/* 0: as much as the window needs. */
	u32 sq_depth;
	u8 retry;
	u32 parallel;
	/* Busy from the start. */
	bool busy;
	/* Milliseconds between an answer and the next request. */
	u32 every;
	enum op op;
	/* CM_RDMA */
	struct sockaddr_storage addr;
	/* CM_IB */
	struct hca *hca;
	u32 port;
	union ib_gid dgid;
	u64 service_id;
	struct sa_path_rec path;
};

struct listener {
	struct list_head list;
	struct options opt;
	struct rdma_cm_id *rdma;
	struct ib_cm_id *ib;
};

/* Connections that one `connect` asked for. */
struct batch {
	struct kref ref;
	struct work_struct work;
	struct options opt;
	u32 first, count, next;
	atomic_t in_flight;
};

/* What REQ and REP carry for us. All big endian. */
struct hello {
	__be32 magic;
	__be32 id;
	__be32 size;
	__be32 window;
	__be32 rkey;
	__be32 reserved;
	__be64 addr;
};

#define HELLO_MAGIC	0x41504d55

/* Receiver of numbered messages: each of them once, and in order. */
struct sequence {
	u64 next;
	/* Bit n: the number next - 1 - n was here. */
	u64 seen;
	u64 lost, duplicate, reordered, corrupt;
};

/* A buffer of one message, in flight or not. */
struct slot {
	struct ib_cqe cqe;
	bool used;
};

/* Bits of end->todo. */
enum todo { TODO_START, TODO_DISCONNECT, TODO_DRAIN, TODO_CLOSE };

struct end {
	struct kref ref;
	u32 id;
	enum side side;
	enum cm_kind cm;
	enum cq_kind cq;
	u32 window, size, sq_depth, rq_depth;

	struct work_struct work;
	unsigned long todo;
	/* Set until the connection is there, or failed. */
	struct batch *batch;

	struct mutex mutex;
	struct hca *hca;
	struct rdma_cm_id *rdma_id;
	struct ib_cm_id *ib_id;
	struct ib_qp *qp;
	struct ib_cq *scq, *rcq;
	u32 nr_cqe;
	/* A CQ without ib_cqe is polled here. */
	struct work_struct poll;
	wait_queue_head_t wait;

	spinlock_t poll_lock;
	spinlock_t lock;
	enum state state;
	/* It was this end that asked to disconnect. */
	bool dreq_sent, dreq_received, drained;

	u32 sq_used, rq_used;
	/* There was something to send and no place for it. */
	bool starved;
	struct slot *rx, *tx;
	struct ib_cqe write_cqe, read_cqe, fill_cqe;
	/* rq_depth messages received, as many to send, one the peer may access, one to read to and write from. */
	u8 *buf;
	size_t buf_len;
	u64 dma;
	u32 rkey;
	u64 peer_addr;
	u32 peer_rkey;

	struct timer_list timer;
	bool busy;
	/* An RDMA READ is under way. */
	bool reading;
	u32 every;
	/* The next request not before this time, in jiffies. */
	unsigned long due;
	/* The `mark` since which it has had an answer. */
	u32 mark;
	enum op op;
	/* Faults to inject into the next message. */
	bool corrupt, skip, repeat;
	/* Active: the number of the next request. */
	u64 next_request;
	u64 requests, answers;
	u32 outstanding;
	/* Since when it waits for an answer, and the longest that it did, in ns. */
	u64 since, pause;
	struct sequence in;
	/* Passive: numbers and operations of requests to be answered. */
	struct { u64 seq; enum op op; } *answer;
	u32 answer_first, answer_count;
};

extern struct workqueue_struct *ulp_wq, *poll_wq;
extern struct xarray ends[SIDES];
extern struct ib_sa_client sa_client;

static inline void count(enum side side, enum counter what)
{
	atomic64_inc(&counters[side][what]);
}

/* Says why, once in a command. */
#define complain(fmt, ...) (pr_err(fmt "\n", ##__VA_ARGS__), -EINVAL)

/* main.c */
extern bool stopping;

/* hca.c */
int hca_init(void);
void hca_exit(void);
struct hca *hca_get(const char *name);
struct hca *hca_get_device(struct ib_device *device);
void hca_put(struct hca *hca);

/* control.c */
bool options_fit(u32 window, u32 size);
int control(char *line);

/* batch.c */
int listen(const struct options *opt);
void unlisten(struct hca *hca);
int connect(u32 first, u32 count, const struct options *opt);
void batch_done(struct end *end);

/* end.c */
struct end *end_new(enum side side, u32 id, const struct options *opt, u32 window, u32 size);
int end_publish(struct end *end);
struct end *end_get(enum side side, u32 id);
struct end *end_next(enum side side, unsigned long *id);
void end_put(struct end *end);
bool end_in_state(struct end *end, enum state state);
void end_kick(struct end *end, enum todo what);
void end_established(struct end *end);
void end_abandon(struct end *end);
void ends_close(struct hca *hca);
void ends_wait(void);

/* queue.c */
int queue_open(struct end *end, struct hca *hca, struct rdma_cm_id *id);
void queue_drain(struct end *end);
void queue_close(struct end *end);
void queue_poll_direct(struct end *end);

/* wr.c */
void wr_init(struct end *end);
void wr_plain_completed(struct end *end, const struct ib_wc *wc);
int wr_receives(struct end *end);
int wr_send(struct end *end, u32 slot);
int wr_receive(struct end *end, u32 slot);
int wr_rdma(struct end *end, enum ib_wr_opcode op);
int wr_fill(struct end *end);

/* traffic.c */
void traffic_received(struct end *end, u32 slot, u32 len);
void traffic_sent(struct end *end);
void traffic_read(struct end *end);
void traffic_pump(struct end *end);
void traffic_timer(struct timer_list *timer);
void traffic_busy(struct end *end, u32 every, enum op op);
void traffic_idle(struct end *end);
void traffic_mark(void);

/* message.c */
void message_write(u8 *buf, u32 size, u32 id, u32 tag, u64 seq);
bool message_check(const u8 *buf, u32 size, u32 id);
u64 message_seq(const u8 *buf);
u32 message_tag(const u8 *buf);
bool sequence_take(struct sequence *s, enum side who, bool intact, u64 seq);

/* cm_rdma.c, cm_ib.c */
int cm_rdma_listen(struct listener *l);
int cm_rdma_start(struct end *end);
void cm_rdma_disconnect(struct end *end);
int cm_ib_listen(struct listener *l);
int cm_ib_path(struct options *opt);
int cm_ib_start(struct end *end);
void cm_ib_disconnect(struct end *end);
void hello_fill(struct hello *hello, const struct end *end);
int hello_take(struct end *end, const void *data, u32 len);
struct end *hello_new_end(const struct listener *l, const void *data, u32 len);

/* show.c */
int show_init(void);
void show_exit(void);

#endif
