/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tests of an RC transport by way of kernel verbs: two queue pairs on two HCAs,
 * connected by hand, and what must and must not happen between them.
 */
#ifndef VERBS_H
#define VERBS_H

#include <rdma/ib_verbs.h>

/* A buffer of each side, page aligned. */
#define BUF_SIZE	(64 * 1024)
/* No completion within this time counts as none at all. */
#define WAIT_MS		5000
/* Depth of the queues. */
#define DEPTH		16

/* One end of a connection. */
struct side {
	struct ib_device *device;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_qp *qp;
	/* Where the options ask for one. */
	struct ib_srq *srq;
	/* Fast registration of the buffer. */
	struct ib_mr *mr;
	char *buf;
	struct scatterlist sg[BUF_SIZE / PAGE_SIZE];
	/* Events the QP had, one bit each. */
	unsigned long events;
	/* How often the completion handler was called. */
	atomic_t told;
	u16 lid;
};

/* A connection: work is requested at @a, @b responds. */
struct pair {
	struct side a, b;
};

/* How a pair differs from the usual one. */
struct options {
	/* qp_access_flags of @b, instead of all. */
	int access;
	bool no_access;
	/* 4.096 us x 2^timeout, instead of 14 (67 ms). */
	u8 timeout;
	/* @b takes its receives from a shared queue of four. */
	bool srq;
	/* Size of the completion queues, instead of what one pair needs. */
	unsigned int cqe;
};

struct test {
	const char *name;
	int (*run)(struct pair *p);
};

extern struct ib_device *verbs_device[2];
extern const struct test memory_tests[], queue_tests[], srq_tests[];

int pair_open(struct pair *p, const struct options *o);
void pair_close(struct pair *p);
int side_make_qp(struct side *s);
int side_connect(struct side *s, const struct side *peer, int access, u8 timeout);
int side_to_error(struct side *s);

int run_many(unsigned int pairs);

int post_recv(struct side *s, size_t offset, size_t len);
int post_send(struct side *s, size_t offset, size_t len, int flags);
int post_rdma(struct side *s, enum ib_wr_opcode op, u64 va, u32 rkey, size_t len);
int post_inv(struct side *s, enum ib_wr_opcode op, u32 rkey);
int wait_wc(struct side *s, struct ib_wc *wc);
int expect_wc(struct side *s, enum ib_wc_status status);
int expect_none(struct side *s);
int register_as(struct side *s, int access, u32 *key, enum ib_wc_status status);
int register_buf(struct side *s, int access, u32 *key);
bool await_event(struct side *s, enum ib_event_type event);

/* Says where and what, unless @cond holds; a test goes on only while it does. */
#define check(cond)	check_that(cond, #cond, __func__, __LINE__)

static inline bool check_that(bool ok, const char *what, const char *func, int line)
{
	if (!ok)
		pr_err("%s:%d: %s\n", func, line, what);
	return ok;
}

#endif
