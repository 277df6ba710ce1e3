// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs the tests when it is loaded, one line each in the kernel's log:
 * "verbs: ok NAME" or "verbs: FAIL NAME". Loading fails when one of them does.
 * With pairs=N it makes so many connections instead, and says what they take.
 */
#define pr_fmt(fmt) "verbs: " fmt

#include <linux/module.h>
#include <linux/slab.h>
#include "verbs.h"

static char *devices = "vhca0,vhca1";
module_param(devices, charp, 0);
MODULE_PARM_DESC(devices, "The requesting and the responding HCA; port 1 of each is used");

static unsigned int pairs;
module_param(pairs, uint, 0);
MODULE_PARM_DESC(pairs, "Instead of the tests: so many connections at once");

struct ib_device *verbs_device[2];

static int add_device(struct ib_device *device)
{
	char name[2][IB_DEVICE_NAME_MAX] = {};
	int i;

	if (sscanf(devices, "%63[^,],%63s", name[0], name[1]) != 2)
		return -EINVAL;
	for (i = 0; i < 2; i++)
		if (!strcmp(dev_name(&device->dev), name[i]))
			verbs_device[i] = device;
	return 0;
}

static void remove_device(struct ib_device *device, void *data)
{
}

/* Devices that are there are added while it registers, and stay while it is registered. */
static struct ib_client client = {
	.name = "verbs",
	.add = add_device,
	.remove = remove_device,
};

static int run(const struct test *t)
{
	struct pair *p;
	int failed = 0;

	for (; t->name; t++) {
		int ret;

		p = kzalloc_obj(*p);
		if (!p)
			return -ENOMEM;
		ret = t->run(p);
		pair_close(p);
		kfree(p);
		pr_info("%s %s\n", ret ? "FAIL" : "ok", t->name);
		failed += !!ret;
	}
	return failed;
}

static int __init verbs_init(void)
{
	int ret = ib_register_client(&client);

	if (ret)
		return ret;
	if (!verbs_device[0] || !verbs_device[1]) {
		pr_err("devices=%s: not two devices that are there\n", devices);
		ret = -ENODEV;
	} else if (pairs) {
		ret = run_many(pairs);
	} else if (run(memory_tests) | run(queue_tests) | run(srq_tests)) {
		ret = -EIO;
	}
	ib_unregister_client(&client);
	return ret;
}

static void __exit verbs_exit(void)
{
}

module_init(verbs_init);
module_exit(verbs_exit);
MODULE_DESCRIPTION("Tests of an HCA by way of kernel verbs");
MODULE_AUTHOR("The ib_cm_apm authors");
MODULE_LICENSE("GPL");
