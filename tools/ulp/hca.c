// SPDX-License-Identifier: GPL-2.0-only
/*
 * The HCAs there are.
 */
#define pr_fmt(fmt) "apm-test-ulp: " fmt

#include <linux/module.h>
#include <linux/slab.h>
#include "ulp.h"

struct ib_sa_client sa_client;

static LIST_HEAD(hcas);
/* The list, and that its members can still be got hold of. Innermost but for the table's lock. */
static DEFINE_MUTEX(hcas_lock);

static struct hca *get(const char *name, struct ib_device *device)
{
	struct hca *hca;

	guard(mutex)(&hcas_lock);
	list_for_each_entry(hca, &hcas, list) {
		if (device ? hca->device != device : strcmp(dev_name(&hca->device->dev), name))
			continue;
		refcount_inc(&hca->users);
		return hca;
	}
	return NULL;
}

struct hca *hca_get(const char *name)
{
	return get(name, NULL);
}

struct hca *hca_get_device(struct ib_device *device)
{
	return get(NULL, device);
}

void hca_put(struct hca *hca)
{
	if (hca && refcount_dec_and_test(&hca->users))
		complete(&hca->unused);
}

static int add(struct ib_device *device)
{
	struct hca *hca;

	if (device->node_type != RDMA_NODE_IB_CA || !rdma_cap_ib_cm(device, 1))
		return -EOPNOTSUPP;
	hca = kzalloc_obj(*hca);
	if (!hca)
		return -ENOMEM;
	/* One key for all memory: it is a test. */
	hca->pd = ib_alloc_pd(device, IB_PD_UNSAFE_GLOBAL_RKEY);
	if (IS_ERR(hca->pd)) {
		int ret = PTR_ERR(hca->pd);

		kfree(hca);
		return ret;
	}
	hca->device = device;
	refcount_set(&hca->users, 1);
	init_completion(&hca->unused);
	mutex_lock(&hcas_lock);
	list_add_tail(&hca->list, &hcas);
	mutex_unlock(&hcas_lock);
	return 0;
}

static struct ib_client client;

/* Nobody gets hold of it any more; whoever did lets go. */
static void remove(struct ib_device *device, void *data)
{
	struct hca *hca = NULL, *h;

	mutex_lock(&hcas_lock);
	list_for_each_entry(h, &hcas, list) {
		if (h->device == device) {
			hca = h;
			list_del(&h->list);
			break;
		}
	}
	mutex_unlock(&hcas_lock);
	if (!hca)
		return;
	WRITE_ONCE(hca->gone, true);
	unlisten(hca);
	ends_close(hca);
	hca_put(hca);
	wait_for_completion(&hca->unused);
	ib_dealloc_pd(hca->pd);
	kfree(hca);
}

static struct ib_client client = {
	.name = "apm_test_ulp",
	.add = add,
	.remove = remove,
};

int hca_init(void)
{
	int ret;

	ib_sa_register_client(&sa_client);
	ret = ib_register_client(&client);
	if (ret)
		ib_sa_unregister_client(&sa_client);
	return ret;
}

void hca_exit(void)
{
	ib_unregister_client(&client);
	ib_sa_unregister_client(&sa_client);
}
