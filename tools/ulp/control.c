// SPDX-License-Identifier: GPL-2.0-only
/*
 * The commands; README.md says what they mean.
 */
#define pr_fmt(fmt) "apm-test-ulp: " fmt

#include <linux/inet.h>
#include <linux/string.h>
#include <linux/string_helpers.h>
#include <rdma/ib_cache.h>
#include "ulp.h"

#define MAX_CONNECTIONS	65536
#define MAX_WINDOW	256
#define MAX_SIZE	4096
#define MIN_SIZE	24
#define MAX_SQ_DEPTH	1024
#define IP_PORT		7471
#define SERVICE_ID	0x41504d5465737431ULL

/* A command in pieces: its numbers, its words, its key=value. */
struct args {
	u32 number[2];
	int numbers;
	bool busy;
	/* Faults of `inject`. */
	bool corrupt, skip, repeat;
	enum side side;
	bool side_given;
	const char *dev, *to;
	u32 ip_port;
	struct options opt;
};

const char *const side_names[SIDES + 1] = { "active", "passive" };
const char *const cm_names[CM_KINDS + 1] = { "rdma", "ib" };
const char *const cq_names[CQ_KINDS + 1] = { "pool", "softirq", "workqueue", "direct", "plain" };
const char *const op_names[OPS + 1] = { "send", "write", "read" };

bool options_fit(u32 window, u32 size)
{
	return window >= 1 && window <= MAX_WINDOW &&
	       size >= MIN_SIZE && size <= MAX_SIZE && size % 8 == 0;
}

static int to_one_of(const char *key, const char *value, const char *const *names, u32 *into)
{
	int i = match_string(names, -1, value);

	if (i < 0)
		return complain("%s=%s: unknown", key, value);
	*into = i;
	return 0;
}

static int to_number(const char *key, const char *value, u32 max, u32 *into)
{
	if (kstrtou32(value, 0, into) || *into > max)
		return complain("%s=%s: not a number up to %u", key, value, max);
	return 0;
}

static int key_value(struct args *a, const char *key, char *value)
{
	u32 n;
	int ret;

	if (!strcmp(key, "cm")) {
		ret = to_one_of(key, value, cm_names, &n);
		a->opt.cm = ret ? 0 : n;
	} else if (!strcmp(key, "cq")) {
		ret = to_one_of(key, value, cq_names, &n);
		a->opt.cq = ret ? 0 : n;
	} else if (!strcmp(key, "op")) {
		ret = to_one_of(key, value, op_names, &n);
		a->opt.op = ret ? 0 : n;
	} else if (!strcmp(key, "from") || !strcmp(key, "side")) {
		ret = to_one_of(key, value, side_names, &n);
		a->side = ret ? 0 : n;
		a->side_given = true;
	} else if (!strcmp(key, "window")) {
		ret = to_number(key, value, MAX_WINDOW, &a->opt.window);
	} else if (!strcmp(key, "size")) {
		ret = to_number(key, value, MAX_SIZE, &a->opt.size);
	} else if (!strcmp(key, "sq_depth")) {
		ret = to_number(key, value, MAX_SQ_DEPTH, &a->opt.sq_depth);
	} else if (!strcmp(key, "parallel")) {
		ret = to_number(key, value, MAX_CONNECTIONS, &a->opt.parallel);
	} else if (!strcmp(key, "every")) {
		ret = to_number(key, value, 3600000, &a->opt.every);
	} else if (!strcmp(key, "retry")) {
		ret = to_number(key, value, 7, &n);
		a->opt.retry = n;
	} else if (!strcmp(key, "port")) {
		ret = to_number(key, value, U16_MAX, &a->ip_port);
	} else if (!strcmp(key, "service")) {
		ret = kstrtou64(value, 0, &a->opt.service_id);
		if (ret)
			ret = complain("service=%s: not a number", value);
	} else if (!strcmp(key, "dev")) {
		a->dev = value;
		ret = 0;
	} else if (!strcmp(key, "to")) {
		a->to = value;
		ret = 0;
	} else {
		ret = complain("%s=: unknown", key);
	}
	return ret;
}

static int parse(struct args *a, char *rest)
{
	char *word;
	int ret;

	while ((word = strsep(&rest, " \t"))) {
		char *value = strchr(word, '=');

		if (!*word)
			continue;
		if (value) {
			*value++ = '\0';
			ret = key_value(a, word, value);
			if (ret)
				return ret;
		} else if (!strcmp(word, "busy")) {
			a->opt.busy = true;
		} else if (!strcmp(word, "corrupt")) {
			a->corrupt = true;
		} else if (!strcmp(word, "skip")) {
			a->skip = true;
		} else if (!strcmp(word, "repeat")) {
			a->repeat = true;
		} else if (a->numbers < ARRAY_SIZE(a->number) &&
			   !kstrtou32(word, 0, &a->number[a->numbers])) {
			a->numbers++;
		} else {
			return complain("%s: unknown", word);
		}
	}
	if (!options_fit(a->opt.window, a->opt.size))
		return complain("window=%u size=%u: does not go", a->opt.window, a->opt.size);
	if (a->opt.op != OP_SEND && a->opt.window != 1)
		return complain("op=%s: wants window=1", op_names[a->opt.op]);
	if (a->opt.sq_depth == 1)
		return complain("sq_depth=1: wants 2");
	return 0;
}

/* "vhca0/1", or "vhca0" for port 1. */
static int hca_port(char *text, struct hca **hca, u32 *port)
{
	char *slash = strchr(text, '/');

	*port = 1;
	if (slash)
		*slash = '\0';
	if (slash && kstrtou32(slash + 1, 0, port))
		return complain("%s: not a port", slash + 1);
	*hca = hca_get(text);
	if (!*hca)
		return complain("%s: no such InfiniBand HCA", text);
	if (!rdma_is_port_valid((*hca)->device, *port)) {
		hca_put(*hca);
		*hca = NULL;
		return complain("%s/%u: no such port", text, *port);
	}
	return 0;
}

static int to_address(struct args *a, const char *text)
{
	struct sockaddr_in *in = (struct sockaddr_in *)&a->opt.addr;

	in->sin_family = AF_INET;
	in->sin_port = htons(a->ip_port);
	if (!in4_pton(text, -1, (u8 *)&in->sin_addr, -1, NULL))
		return complain("%s: not an IPv4 address", text);
	return 0;
}

/* A GID, or a port of this host. */
static int to_gid(struct args *a, char *text)
{
	struct hca *hca;
	u32 port;
	int ret;

	if (strchr(text, ':')) {
		if (!in6_pton(text, -1, a->opt.dgid.raw, -1, NULL))
			return complain("%s: not a GID", text);
		return 0;
	}
	ret = hca_port(text, &hca, &port);
	if (ret)
		return ret;
	ret = rdma_query_gid(hca->device, port, 0, &a->opt.dgid);
	hca_put(hca);
	return ret;
}

static int do_listen(struct args *a)
{
	int ret;

	if (a->opt.cm == CM_IB) {
		if (!a->dev)
			return complain("listen cm=ib: wants dev=");
		ret = hca_port((char *)a->dev, &a->opt.hca, &a->opt.port);
	} else {
		ret = to_address(a, a->to ?: "0.0.0.0");
	}
	if (ret)
		return ret;
	ret = listen(&a->opt);
	if (ret) {
		hca_put(a->opt.hca);
		pr_err("listen: %pe\n", ERR_PTR(ret));
	}
	return ret;
}

static int do_connect(struct args *a)
{
	int ret;

	if (a->numbers != 2 || !a->number[1] || a->number[1] > MAX_CONNECTIONS ||
	    a->number[0] > U32_MAX - a->number[1])
		return complain("connect: wants FIRST and COUNT");
	if (!a->to)
		return complain("connect: wants to=");
	if (!a->opt.parallel)
		return complain("parallel=0: nothing would happen");
	if (a->opt.cm == CM_IB) {
		if (!a->dev)
			return complain("connect cm=ib: wants dev=");
		ret = to_gid(a, (char *)a->to);
		if (!ret)
			ret = hca_port((char *)a->dev, &a->opt.hca, &a->opt.port);
		if (!ret)
			ret = cm_ib_path(&a->opt);
	} else {
		ret = to_address(a, a->to);
	}
	if (!ret)
		ret = connect(a->number[0], a->number[1], &a->opt);
	if (ret) {
		hca_put(a->opt.hca);
		if (ret != -EINVAL)
			pr_err("connect: %pe\n", ERR_PTR(ret));
	}
	return ret;
}

static int each_busy(struct end *end, struct args *a)
{
	if (a->opt.op != OP_SEND && end->window != 1)
		return complain("op=%s: wants window=1", op_names[a->opt.op]);
	traffic_busy(end, a->opt.every, a->opt.op);
	return 0;
}

static int each_idle(struct end *end, struct args *a)
{
	traffic_idle(end);
	return 0;
}

static int each_disconnect(struct end *end, struct args *a)
{
	end_kick(end, TODO_DISCONNECT);
	return 0;
}

static int each_drain(struct end *end, struct args *a)
{
	end_kick(end, TODO_DRAIN);
	return 0;
}

static int each_destroy(struct end *end, struct args *a)
{
	end_kick(end, TODO_CLOSE);
	return 0;
}

static int each_fill(struct end *end, struct args *a)
{
	int ret = -ENOTCONN;

	mutex_lock(&end->mutex);
	spin_lock_bh(&end->lock);
	if (end->state == ESTABLISHED && !end->drained)
		ret = wr_fill(end);
	spin_unlock_bh(&end->lock);
	mutex_unlock(&end->mutex);
	if (ret < 0)
		pr_err("fill %u: %pe\n", end->id, ERR_PTR(ret));
	return min(ret, 0);
}

static int each_inject(struct end *end, struct args *a)
{
	if (a->corrupt + a->skip + a->repeat != 1)
		return complain("inject: wants one of corrupt, skip, repeat");
	spin_lock_bh(&end->lock);
	end->corrupt |= a->corrupt;
	end->skip |= a->skip;
	end->repeat |= a->repeat;
	spin_unlock_bh(&end->lock);
	return 0;
}

/* @each for FIRST COUNT, or for one number; those of them that are there, and at least one. */
static int for_range(struct args *a, const char *name, int (*each)(struct end *end, struct args *a))
{
	u32 count = a->numbers == 2 ? a->number[1] : 1;
	unsigned long id = a->number[0];
	bool found = false;
	struct end *end;
	int ret = 0;

	if (!a->numbers)
		return complain("%s: wants a number, and may be how many", name);
	for (; !ret && (end = end_next(a->side, &id)); id++) {
		if (id - a->number[0] >= count) {
			end_put(end);
			break;
		}
		found = true;
		ret = each(end, a);
		end_put(end);
	}
	return ret ?: found ? 0 : complain("%s: no such connection at its %s end", name,
					   side_names[a->side]);
}

static const struct {
	const char *name;
	int (*each)(struct end *end, struct args *a);
} range_commands[] = {
	{ "busy", each_busy },
	{ "idle", each_idle },
	{ "disconnect", each_disconnect },
	{ "drain", each_drain },
	{ "destroy", each_destroy },
	{ "fill", each_fill },
	{ "inject", each_inject },
};

int control(char *line)
{
	char *rest = strim(line), *name = strsep(&rest, " \t");
	struct args *a __free(kfree) = kzalloc_obj(*a);
	int i, ret;

	if (!a)
		return -ENOMEM;
	a->ip_port = IP_PORT;
	a->opt.window = 1;
	a->opt.size = 64;
	a->opt.retry = 7;
	a->opt.parallel = 64;
	a->opt.every = 10;
	a->opt.service_id = SERVICE_ID;
	ret = parse(a, rest);
	if (ret)
		return ret;
	if (!strcmp(name, "listen"))
		return do_listen(a);
	if (!strcmp(name, "connect"))
		return do_connect(a);
	if (!strcmp(name, "unlisten")) {
		unlisten(NULL);
		return 0;
	}
	if (!strcmp(name, "mark")) {
		traffic_mark();
		return 0;
	}
	for (i = 0; i < ARRAY_SIZE(range_commands); i++)
		if (!strcmp(name, range_commands[i].name))
			return for_range(a, name, range_commands[i].each);
	return complain("%s: no such command", name);
}
