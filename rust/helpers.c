// SPDX-License-Identifier: GPL-2.0-only
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ftrace.h>
#include <linux/kmemleak.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/objtool.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>
#include <asm/ibt.h>
#include <asm/linkage.h>
#include <rdma/ib_verbs.h>
#include <rdma/ib_cm.h>
#include "helpers.h"

/*
 * A module that adds no type of its own to the kernel's BTF cannot be linked
 * (resolve_btfids of 7.3 refuses an empty set); this one is ours, and lets Rust
 * check at load that bindgen and the C compiler agree on the layouts.
 */
void rust_helper_apm_layout(struct apm_layout *l)
{
	l->ib_cm_id = sizeof(struct ib_cm_id);
	l->ib_qp = sizeof(struct ib_qp);
	l->ib_qp_attr = sizeof(struct ib_qp_attr);
	l->ib_cm_event = sizeof(struct ib_cm_event);
	l->ib_cm_req_param = sizeof(struct ib_cm_req_param);
	l->ftrace_ops = sizeof(struct ftrace_ops);
	l->ib_cq = sizeof(struct ib_cq);
	l->ib_qp_init_attr = sizeof(struct ib_qp_init_attr);
}

void rust_helper_apm_synchronize_rcu_tasks(void)
{
	synchronize_rcu_tasks();
}

void rust_helper_apm_cond_resched(void)
{
	cond_resched();
}

bool rust_helper_apm_in_module(unsigned long addr)
{
	return within_module(addr, THIS_MODULE);
}

bool rust_helper_apm_within(unsigned long addr, const struct module *mod)
{
	return within_module(addr, mod);
}

void rust_helper_apm_set_ip(struct ftrace_regs *regs, unsigned long ip)
{
	ftrace_regs_set_instruction_pointer(regs, ip);
}

unsigned long rust_helper_apm_arg(struct ftrace_regs *regs, unsigned int n)
{
	return ftrace_regs_get_argument(regs, n);
}

/*
 * The entry of a function whose kprobe lies at @addr: a kprobe skips an ENDBR, an
 * indirect call must not.
 */
static unsigned long apm_entry(unsigned long addr)
{
#ifdef CONFIG_X86_KERNEL_IBT
	u32 before;

	/* In front of a function without ENDBR there is padding. */
	if (!copy_from_kernel_nofault(&before, (void *)(addr - sizeof(before)), sizeof(before)) &&
	    __is_endbr(before))
		return addr - sizeof(before);
#endif
	return addr;
}

/*
 * The address of a function that is not exported, 0 where there is none or more
 * than one of that name. A kprobe is the one way that is open to a module.
 */
unsigned long rust_helper_apm_symbol(const char *name)
{
	/* Never armed: disarming may fail, and would leave the kernel with a pointer to our stack. */
	struct kprobe kp = { .symbol_name = name, .flags = KPROBE_FLAG_DISABLED };
	unsigned long addr;

	if (register_kprobe(&kp))
		return 0;
	addr = apm_entry((unsigned long)kp.addr);
	unregister_kprobe(&kp);
	return addr;
}

/*
 * Calls cm_destroy_id(id, err) at @fn. That function is static and only ever
 * called directly, so it has no ENDBR: an indirect call to it is a fault on a
 * machine with indirect branch tracking. A return is not tracked.
 */
#define APM_CALL_DESTROY "rust_helper_apm_call_destroy"
asm(".pushsection .text, \"ax\"\n\t"
	".globl " APM_CALL_DESTROY "\n\t"
	".type " APM_CALL_DESTROY ", @function\n"
	APM_CALL_DESTROY ":\n\t"
	"push %rdx\n\t"
	ASM_RET
	".size " APM_CALL_DESTROY ", . - " APM_CALL_DESTROY "\n\t"
	".popsection\n");
STACK_FRAME_NON_STANDARD(rust_helper_apm_call_destroy);

const char *rust_helper_apm_driver(const struct ib_device *dev)
{
	return dev->ops.owner ? dev->ops.owner->name : "";
}

/* Posts a zero-length RDMA WRITE whose completion goes to @cqe. */
int rust_helper_apm_post_nudge(struct ib_qp *qp, struct ib_cqe *cqe)
{
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_cqe = cqe,
			.opcode = IB_WR_RDMA_WRITE,
			.send_flags = IB_SEND_SIGNALED,
		},
	};

	return ib_post_send(qp, &wr.wr, NULL);
}

void rust_helper_apm_not_leak(const void *ptr)
{
	kmemleak_not_leak(ptr);
}

/* Whether ib_free_cq() will do nothing but warn. */
bool rust_helper_apm_cq_in_use(const struct ib_cq *cq)
{
	return atomic_read(&cq->usecnt) || READ_ONCE(cq->cqe_used);
}

struct workqueue_struct *rust_helper_apm_alloc_workqueue(void)
{
	return alloc_workqueue("ib_cm_apm", WQ_UNBOUND | WQ_MEM_RECLAIM, 64);
}

/* The one timer for connections that want to be looked at again later. */

static void apm_tick_work(struct work_struct *work)
{
	ib_cm_apm_tick();
}

static DECLARE_DELAYED_WORK(apm_ticker, apm_tick_work);

void rust_helper_apm_tick_in(struct workqueue_struct *wq, unsigned long ms)
{
	mod_delayed_work(wq, &apm_ticker, msecs_to_jiffies(ms));
}

void rust_helper_apm_tick_stop(void)
{
	cancel_delayed_work_sync(&apm_ticker);
}

/*
 * Parameters. They are here because the module macro of the kernel crate has
 * neither strings nor files in sysfs.
 */

static bool enable = true;
module_param(enable, bool, 0644);
MODULE_PARM_DESC(enable, "give new connections an alternate path (default 1)");

bool rust_helper_apm_enable(void)
{
	return READ_ONCE(enable);
}

static bool rearm = true;
module_param(rearm, bool, 0644);
MODULE_PARM_DESC(rearm, "look for another alternate path after a migration, and for connections that had none (default 1)");

bool rust_helper_apm_rearm(void)
{
	return READ_ONCE(rearm);
}

static bool timers = true;
module_param(timers, bool, 0644);
MODULE_PARM_DESC(timers, "set path lifetime and retry count in the REQ of a connection with an alternate path, so that its HCAs notice a lost path before the ULP gives up (default 1)");

bool rust_helper_apm_timers(void)
{
	return READ_ONCE(timers);
}

static bool proactive = true;
module_param(proactive, bool, 0644);
MODULE_PARM_DESC(proactive, "when a local port goes down, move its connections at once instead of waiting for the HCA's retries (default 1)");

bool rust_helper_apm_proactive(void)
{
	return READ_ONCE(proactive);
}

/* In the order of Mode::ALL in rust/apm/failback.rs. */
static const char * const apm_failback_words[] = { "off", "manual", "automatic" };
static int failback = 1;

static int apm_failback_set(const char *val, const struct kernel_param *kp)
{
	int mode = sysfs_match_string(apm_failback_words, val);

	if (mode < 0) {
		pr_err("%s: not off, manual or automatic\n", kp->name);
		return -EINVAL;
	}
	WRITE_ONCE(failback, mode);
	return 0;
}

static int apm_failback_get(char *buf, const struct kernel_param *kp)
{
	return sysfs_emit(buf, "%s\n", apm_failback_words[READ_ONCE(failback)]);
}

static const struct kernel_param_ops apm_failback_ops = {
	.set = apm_failback_set,
	.get = apm_failback_get,
};
module_param_cb(failback, &apm_failback_ops, NULL, 0644);
MODULE_PARM_DESC(failback, "whether connections return to the path that they began with: off, manual (by failback_now) or automatic (after failback_hold_ms) (default manual)");

int rust_helper_apm_failback(void)
{
	return READ_ONCE(failback);
}

#define APM_FAILBACK_HOLD_MIN 1000
#define APM_FAILBACK_HOLD_MAX 3600000

static unsigned int failback_hold_ms = 10000;

static int apm_failback_hold_set(const char *val, const struct kernel_param *kp)
{
	return param_set_uint_minmax(val, kp, APM_FAILBACK_HOLD_MIN, APM_FAILBACK_HOLD_MAX);
}

static const struct kernel_param_ops apm_failback_hold_ops = {
	.set = apm_failback_hold_set,
	.get = param_get_uint,
};
module_param_cb(failback_hold_ms, &apm_failback_hold_ops, &failback_hold_ms, 0644);
MODULE_PARM_DESC(failback_hold_ms, "how long a path must have been good before automatic failback returns to it, in ms, 1000 to 3600000 (default 10000)");

unsigned int rust_helper_apm_failback_hold_ms(void)
{
	return READ_ONCE(failback_hold_ms);
}

static int apm_failback_now_set(const char *val, const struct kernel_param *kp)
{
	bool now;
	int ret = kstrtobool(val, &now);

	if (ret)
		return ret;
	if (!now)
		return 0;
	return ib_cm_apm_failback_now() ? 0 : -EAGAIN;
}

static const struct kernel_param_ops apm_failback_now_ops = {
	.set = apm_failback_now_set,
};
module_param_cb(failback_now, &apm_failback_now_ops, NULL, 0200);
MODULE_PARM_DESC(failback_now, "write 1: connections whose first path is armed as their alternate return to it (not with failback=off)");

#define APM_KEEP_ALIVE_MAX 600000

static unsigned int keep_alive_ms = 7000;

static int apm_keep_alive_set(const char *val, const struct kernel_param *kp)
{
	return param_set_uint_minmax(val, kp, 1, APM_KEEP_ALIVE_MAX);
}

static const struct kernel_param_ops apm_keep_alive_ops = {
	.set = apm_keep_alive_set,
	.get = param_get_uint,
};
module_param_cb(keep_alive_ms, &apm_keep_alive_ops, &keep_alive_ms, 0644);
MODULE_PARM_DESC(keep_alive_ms, "how long ULPs wait for a sign of life, in ms, 1 to 600000; bounds the HCAs' retries, see timers (default 7000)");

unsigned int rust_helper_apm_keep_alive_ms(void)
{
	return READ_ONCE(keep_alive_ms);
}

#define APM_REQ_HOLD_MAX 10000

static unsigned int req_hold_ms = 100;

static int apm_req_hold_set(const char *val, const struct kernel_param *kp)
{
	return param_set_uint_minmax(val, kp, 0, APM_REQ_HOLD_MAX);
}

static const struct kernel_param_ops apm_req_hold_ops = {
	.set = apm_req_hold_set,
	.get = param_get_uint,
};
module_param_cb(req_hold_ms, &apm_req_hold_ops, &req_hold_ms, 0644);
MODULE_PARM_DESC(req_hold_ms, "longest wait for subnet administration before a REQ is sent without an alternate, in ms, 0 to 10000 (default 100)");

unsigned int rust_helper_apm_req_hold_ms(void)
{
	return READ_ONCE(req_hold_ms);
}

static DEFINE_MUTEX(apm_list_lock); /* protects apm_lists */
static char apm_lists[2][APM_LIST_MAX];

static int apm_list_set(const char *val, const struct kernel_param *kp)
{
	size_t len = strlen(val);
	char *list = kp->arg;

	if (len >= APM_LIST_MAX) {
		pr_err("%s: longer than %d characters\n", kp->name, APM_LIST_MAX - 1);
		return -EINVAL;
	}
	if (!ib_cm_apm_list_valid(val, len)) {
		pr_err("%s: not a list of names separated by commas\n", kp->name);
		return -EINVAL;
	}
	mutex_lock(&apm_list_lock);
	memcpy(list, val, len + 1);
	if (len && list[len - 1] == '\n')
		list[len - 1] = '\0';
	mutex_unlock(&apm_list_lock);
	return 0;
}

static int apm_list_get(char *buf, const struct kernel_param *kp)
{
	int len;

	mutex_lock(&apm_list_lock);
	len = sysfs_emit(buf, "%s\n", (char *)kp->arg);
	mutex_unlock(&apm_list_lock);
	return len;
}

static const struct kernel_param_ops apm_list_ops = {
	.set = apm_list_set,
	.get = apm_list_get,
};
module_param_cb(devices, &apm_list_ops, apm_lists[APM_LIST_DEVICES], 0644);
MODULE_PARM_DESC(devices, "names of the HCAs to serve, separated by commas (default: all)");
module_param_cb(drivers, &apm_list_ops, apm_lists[APM_LIST_DRIVERS], 0644);
MODULE_PARM_DESC(drivers, "driver modules to serve beside mlx5_ib, mlx4_ib and ib_mthca, separated by commas");

/* Copies a list parameter with its NUL; its length, 0 where @len is too short. */
size_t rust_helper_apm_list(enum apm_list which, char *buf, size_t len)
{
	ssize_t n;

	mutex_lock(&apm_list_lock);
	n = strscpy(buf, apm_lists[which], len);
	mutex_unlock(&apm_list_lock);
	return n < 0 ? 0 : n;
}
