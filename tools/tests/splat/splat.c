// SPDX-License-Identifier: GPL-2.0-only
/*
 * Plants what the dmesg gate of the scenarios must find. For a throwaway guest only.
 */

#include <linux/delay.h>
#include <linux/kfence.h>
#include <linux/module.h>
#include <linux/slab.h>

static char *plant = "";
module_param(plant, charp, 0);
MODULE_PARM_DESC(plant, "What to plant: warn, use-after-free or panic");

/* How often to try until KFENCE has taken an allocation of ours for its sample. */
#define TRIES	2000

static int plant_use_after_free(void)
{
	int i;

	for (i = 0; i < TRIES; i++) {
		char *object = kmalloc(64, GFP_KERNEL);
		bool sampled = is_kfence_address(object);

		kfree(object);
		if (sampled) {
			(void)READ_ONCE(*object);
			return 0;
		}
		usleep_range(500, 1000);
	}
	pr_err("KFENCE took none of %d allocations\n", TRIES);
	return -EAGAIN;
}

static int __init splat_init(void)
{
	if (!strcmp(plant, "warn")) {
		WARN(1, "planted\n");
		return 0;
	}
	if (!strcmp(plant, "use-after-free"))
		return plant_use_after_free();
	if (!strcmp(plant, "panic"))
		panic("planted");
	pr_err("nothing to plant is called \"%s\"\n", plant);
	return -EINVAL;
}

static void __exit splat_exit(void)
{
}

module_init(splat_init);
module_exit(splat_exit);
MODULE_DESCRIPTION("Plants kernel splats for the test of the dmesg gate");
MODULE_AUTHOR("The ib_cm_apm authors");
MODULE_LICENSE("GPL");
