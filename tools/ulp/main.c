// SPDX-License-Identifier: GPL-2.0-only
/*
 * Coming and going.
 */
#define pr_fmt(fmt) "apm-test-ulp: " fmt

#include <linux/module.h>
#include "ulp.h"

/* Takes ends apart, many at once: each waits for its queues to be drained. */
struct workqueue_struct *ulp_wq;
/* Polls CQs that are not polled by the RDMA core: what ulp_wq waits for must not wait for ulp_wq. */
struct workqueue_struct *poll_wq;
bool stopping;

static int __init ulp_init(void)
{
	int ret = -ENOMEM;

	ulp_wq = alloc_workqueue("apm_test_ulp", WQ_UNBOUND, 64);
	if (!ulp_wq)
		return -ENOMEM;
	poll_wq = alloc_workqueue("apm_test_ulp_poll", WQ_UNBOUND, 0);
	if (!poll_wq)
		goto no_poll;
	ret = hca_init();
	if (ret)
		goto no_hca;
	ret = show_init();
	if (ret)
		goto no_show;
	return 0;

no_show:
	hca_exit();
no_hca:
	destroy_workqueue(poll_wq);
no_poll:
	destroy_workqueue(ulp_wq);
	return ret;
}

/* No more commands, no more REQs, no more connects; then what there is. */
static void __exit ulp_exit(void)
{
	show_exit();
	WRITE_ONCE(stopping, true);
	unlisten(NULL);
	flush_workqueue(ulp_wq);
	ends_close(NULL);
	ends_wait();
	destroy_workqueue(ulp_wq);
	hca_exit();
	destroy_workqueue(poll_wq);
}

module_init(ulp_init);
module_exit(ulp_exit);
MODULE_DESCRIPTION("A ULP for tests of many RC connections");
MODULE_AUTHOR("The ib_cm_apm authors");
MODULE_LICENSE("GPL");
