/* SPDX-License-Identifier: GPL-2.0-only */
/* C shims for what Rust cannot call: static inlines, macros, module parameters. */
#ifndef IB_CM_APM_HELPERS_H
#define IB_CM_APM_HELPERS_H

#include <linux/types.h>

struct apm_layout;
struct ftrace_regs;
struct ib_cm_id;
struct ib_cq;
struct ib_cqe;
struct ib_device;
struct ib_qp;
struct module;
struct workqueue_struct;

/* Longest value of a list parameter, with its NUL. */
#define APM_LIST_MAX 512

/* Sizes as the C compiler sees them. */
struct apm_layout {
	size_t ib_cm_id;
	size_t ib_qp;
	size_t ib_qp_attr;
	size_t ib_cm_event;
	size_t ib_cm_req_param;
	size_t ftrace_ops;
	size_t ib_cq;
	size_t ib_qp_init_attr;
};

/* Which list parameter. */
enum apm_list {
	APM_LIST_DEVICES,
	APM_LIST_DRIVERS,
};

void rust_helper_apm_layout(struct apm_layout *l);
void rust_helper_apm_synchronize_rcu_tasks(void);
void rust_helper_apm_cond_resched(void);

bool rust_helper_apm_in_module(unsigned long addr);
bool rust_helper_apm_within(unsigned long addr, const struct module *mod);
void rust_helper_apm_set_ip(struct ftrace_regs *regs, unsigned long ip);
unsigned long rust_helper_apm_arg(struct ftrace_regs *regs, unsigned int n);
unsigned long rust_helper_apm_symbol(const char *name);
void rust_helper_apm_call_destroy(struct ib_cm_id *id, int err, unsigned long fn);

const char *rust_helper_apm_driver(const struct ib_device *dev);
int rust_helper_apm_post_nudge(struct ib_qp *qp, struct ib_cqe *cqe);
void rust_helper_apm_not_leak(const void *ptr);
bool rust_helper_apm_cq_in_use(const struct ib_cq *cq);

struct workqueue_struct *rust_helper_apm_alloc_workqueue(void);

void rust_helper_apm_tick_in(struct workqueue_struct *wq, unsigned long ms);
void rust_helper_apm_tick_stop(void);

bool rust_helper_apm_enable(void);
bool rust_helper_apm_proactive(void);
bool rust_helper_apm_rearm(void);
bool rust_helper_apm_timers(void);
unsigned int rust_helper_apm_keep_alive_ms(void);
int rust_helper_apm_failback(void);
unsigned int rust_helper_apm_failback_hold_ms(void);
unsigned int rust_helper_apm_req_hold_ms(void);
size_t rust_helper_apm_list(enum apm_list which, char *buf, size_t len);

/* The operator wants connections to return; false where there is no state. Answered by Rust. */
bool ib_cm_apm_failback_now(void);

/* The timer has fired; answered by Rust. */
void ib_cm_apm_tick(void);

/* Answered by Rust: whether a list parameter is well-formed. */
bool ib_cm_apm_list_valid(const char *list, size_t len);

#endif
