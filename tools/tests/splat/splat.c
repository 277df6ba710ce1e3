// SPDX-License-Identifier: GPL-2.0-only
/*
 * Plants what the dmesg gate of the scenarios must find. For a throwaway guest only.
 */

#include <linux/delay.h>
#include <linux/kfence.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/preempt.h>
#include <linux/slab.h>

static char *plant = "";
module_param(plant, charp, 0);
MODULE_PARM_DESC(plant, "What to plant: warn, use-after-free, panic; for a debug kernel also kasan, leak, atomic-sleep, inversion");

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

/* The same for KASAN, which watches every object. */
static void plant_kasan(void)
{
	char *object = kmalloc(64, GFP_KERNEL);

	kfree(object);
	/* The compiler would see through it otherwise. */
	OPTIMIZER_HIDE_VAR(object);
	if (object)
		(void)READ_ONCE(*object);
}

/*
 * Objects that nobody refers to: many, for the slab allocator's own arrays keep stale pointers to the last few that it
 * handed out, and kmemleak believes them.
 */
#define LEAKS	512

static void plant_leak(void)
{
	int i;

	for (i = 0; i < LEAKS; i++) {
		char *object = kmalloc(1000, GFP_KERNEL);

		OPTIMIZER_HIDE_VAR(object);
	}
}

static void plant_atomic_sleep(void)
{
	preempt_disable();
	might_sleep();
	preempt_enable();
}

static DEFINE_MUTEX(first);
static DEFINE_MUTEX(second);

/* Never at the same time, so it blocks nothing: it is the order that lockdep must object to. */
static void plant_inversion(void)
{
	mutex_lock(&first);
	mutex_lock(&second);
	mutex_unlock(&second);
	mutex_unlock(&first);

	mutex_lock(&second);
	mutex_lock(&first);
	mutex_unlock(&first);
	mutex_unlock(&second);
}

static const struct {
	const char *name;
	void (*plant)(void);
} debug_plants[] = {
	{ "kasan", plant_kasan },
	{ "leak", plant_leak },
	{ "atomic-sleep", plant_atomic_sleep },
	{ "inversion", plant_inversion },
};

static int __init splat_init(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(debug_plants); i++) {
		if (!strcmp(plant, debug_plants[i].name)) {
			debug_plants[i].plant();
			return 0;
		}
	}
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
