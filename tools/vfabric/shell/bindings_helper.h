/* SPDX-License-Identifier: GPL-2.0-only */
/* What the shell sees of the kernel beyond kernel::bindings. */
#include <linux/module.h>
#include <rdma/ib_verbs.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_pma.h>
#include <rdma/ib_smi.h>
#include "helpers.h"
