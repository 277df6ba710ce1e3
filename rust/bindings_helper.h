/* SPDX-License-Identifier: GPL-2.0-only */
/* What rust/rdma sees of the kernel beyond kernel::bindings. */
#include <linux/ftrace.h>
#include <linux/module.h>
#include <rdma/ib_verbs.h>
#include <rdma/ib_cm.h>
#include <rdma/ib_sa.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_cache.h>
#include <rdma/rdma_cm.h>
#include <rdma/restrack.h>
#include "helpers.h"
