// SPDX-License-Identifier: GPL-2.0-only

//! All connections: by cm_id, by QP, and by the communication id that the peer knows them by.
//!
//! Locks: `Table::inner`, a leaf; see `conn.rs`.

use super::bindings as rdma;
use super::conn::Connection;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::{new_mutex, Arc, Mutex};

/// A QP by device and number, as events name it.
pub(crate) fn qp_key(device: *mut rdma::ib_device, qpn: u32) -> u64 {
    // Devices lie far apart; 32 bits above the size of one tell them from each other, and a lookup by
    // this key is followed by one of the QP itself.
    ((device as u64 >> 6) << 32 | u64::from(qpn & 0xff_ffff) << 8) >> 8
}

struct Maps {
    by_id: RBTree<usize, Arc<Connection>>,
    by_qp: RBTree<u64, Arc<Connection>>,
    by_comm: RBTree<u32, Arc<Connection>>,
    closed: bool,
}

/// All connections.
#[pin_data]
pub(crate) struct Table {
    #[pin]
    inner: Mutex<Maps>,
}

impl Table {
    /// An empty one.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- new_mutex!(Maps {
                by_id: RBTree::new(),
                by_qp: RBTree::new(),
                by_comm: RBTree::new(),
                closed: false,
            }),
        })
    }

    /// The connection of a cm_id.
    pub(crate) fn find(&self, id: *mut rdma::ib_cm_id) -> Option<Arc<Connection>> {
        self.inner.lock().by_id.get(&(id as usize)).cloned()
    }

    /// The connection of a QP, by [`qp_key`].
    pub(crate) fn find_qp(&self, key: u64) -> Option<Arc<Connection>> {
        self.inner.lock().by_qp.get(&key).cloned()
    }

    /// The connection by the communication id that the peer knows it by.
    pub(crate) fn find_comm(&self, comm_id: u32) -> Option<Arc<Connection>> {
        self.inner.lock().by_comm.get(&comm_id).cloned()
    }

    /// Adds a connection, in the place of an earlier one of the same cm_id.
    ///
    /// ESHUTDOWN: the module is going.
    pub(crate) fn insert(&self, conn: &Arc<Connection>) -> Result {
        let by_id = RBTreeNode::new(conn.id, conn.clone(), GFP_KERNEL)?;
        let by_comm = RBTreeNode::new(conn.comm_id, conn.clone(), GFP_KERNEL)?;
        let mut maps = self.inner.lock();
        if maps.closed {
            return Err(ESHUTDOWN);
        }
        // One cm_id has one communication id as long as it lives.
        let old = (maps.by_id.insert(by_id), maps.by_comm.insert(by_comm));
        drop(maps);
        drop(old);
        Ok(())
    }

    /// Makes a connection known by its QP.
    pub(crate) fn insert_qp(&self, conn: &Arc<Connection>, qpn: u32) -> Result {
        let key = qp_key(conn.device(), qpn);
        let node = RBTreeNode::new(key, conn.clone(), GFP_KERNEL)?;
        let old = self.inner.lock().by_qp.insert(node);
        drop(old);
        Ok(())
    }

    /// Takes a connection out.
    pub(crate) fn remove(&self, id: *mut rdma::ib_cm_id) -> Option<Arc<Connection>> {
        let conn = self.inner.lock().by_id.remove(&(id as usize))?;
        let key = qp_key(conn.device(), conn.lock().qpn);
        let mut maps = self.inner.lock();
        // A later connection may have got the same QP number.
        let same = |c: &Arc<Connection>| Arc::ptr_eq(c, &conn);
        let by_qp = maps.by_qp.get(&key).is_some_and(same);
        let by_qp = by_qp.then(|| maps.by_qp.remove(&key));
        let by_comm = maps.by_comm.get(&conn.comm_id).is_some_and(same);
        let by_comm = by_comm.then(|| maps.by_comm.remove(&conn.comm_id));
        drop(maps);
        drop((by_qp, by_comm));
        Some(conn)
    }

    /// Number of connections.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().by_id.values().count()
    }

    /// Calls `f` for each connection, with no lock held. A connection that comes or goes meanwhile
    /// may or may not be among them.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Arc<Connection>)) {
        let mut from = 0;
        loop {
            let next = {
                let maps = self.inner.lock();
                maps.by_id
                    .cursor_lower_bound(&from)
                    .map(|cursor| cursor.current().1.clone())
            };
            let Some(conn) = next else { return };
            f(&conn);
            let Some(after) = conn.id.checked_add(1) else {
                return;
            };
            from = after;
        }
    }

    /// Lets go of the connections of a device that is being removed.
    pub(crate) fn forget_device(&self, device: *mut rdma::ib_device) {
        self.for_each(|conn| {
            if conn.device() == device {
                conn.kill();
            }
        });
    }

    /// Takes no more connections and lets go of all.
    pub(crate) fn close(&self) {
        self.inner.lock().closed = true;
        self.for_each(|conn| conn.kill());
    }
}
