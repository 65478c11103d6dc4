//! Registered memory for programs that need much of it in pieces of many sizes.
//!
//! To register memory is slow, so a [`Pool`] registers a large region once and lends parts of it.
//! It is divided into partitions, one for each thread that allocates, and a partition into slabs. A
//! slab holds items of one size class while any of them is in use, and serves any class afterwards.
//! [`Pool::alloc`] and the drop of an item take constant time, with one lock, which is its thread's
//! own as long as each thread keeps to its partition.
//!
//! An item is a [`Loan`]: an owned guard that goes back when it is dropped, wherever that happens.
//! It can be moved into a work request, and is the NIC's then until its completion.
//!
//! # Fragmentation
//!
//! - Within items: an item is larger than what was asked for by less than the growth factor, except
//!   for those of the smallest class: [`Pool::waste_max`] is the bound, [`Usage::internal`] the
//!   present figure.
//! - Between items: a class holds only slabs in which an item is in use: those that it fills at the
//!   peak of its use at the most. [`Usage::external`] is the present figure.
//!
//! # Examples
//!
//! ```
//! # use roce::{device::{Context, Rc}, link::cable, nic::SoftNic, verbs::Connect, wire::Gid};
//! # let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
//! # let (a, b) = cable(gids[0], gids[1])?;
//! # let (context, other) = (Context::new(SoftNic::start(a)?), Context::new(SoftNic::start(b)?));
//! use roce::device::Memory;
//! use roce::pool::{Config, Pool};
//!
//! let pd = context.create_pd()?;
//! let pool = Pool::new(&pd, &Config::default().partitions(2))?;
//! let mut item = pool.alloc(0, 40)?;
//! item.write(0, b"hello")?;
//! assert_eq!((item.len(), pool.usage().items), (40, 1));
//! # let (b_pd, b_cq, cq) = (other.create_pd()?, other.create_cq(4)?, context.create_cq(4)?);
//! # let (qp, peer) = (pd.qp(&cq).build::<Rc>()?, b_pd.qp(&b_cq).build::<Rc>()?);
//! # peer.recv(1, b_pd.create_buf(64)?)?;
//! # let (end, peer_end) = (qp.endpoint()?, peer.endpoint()?);
//! # let (qp, _peer) = (qp.connect(&peer_end, &Connect::default())?, peer.connect(&end, &Connect::default())?);
//!
//! // It is the NIC's until the SEND completes, and the pool's once the completion is dropped.
//! qp.send(1, item)?;
//! let completion = cq.wait(None)?;
//! assert!(matches!(completion.memory, Memory::Lent(_)));
//! drop(completion);
//! assert_eq!(pool.usage().items, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod classes;
mod slabs;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::device::{Lender, Loan, Mr, MrSlice, Pd};
use crate::setters::setters;
use crate::verbs::{Access, KeyError};
use classes::{Classes, share};
use slabs::Slabs;

pub use classes::{ALIGN, CLASSES_MAX};

/// Maximum number of partitions of a pool.
pub const PARTITIONS_MAX: usize = 4096;

/// Layout of a [`Pool`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Number of partitions.
    pub partitions: usize,
    /// Bytes of each partition, a multiple of those of a slab.
    pub partition_bytes: usize,
    /// Bytes of a slab, and of the largest item.
    pub slab_bytes: usize,
    /// Bytes of the smallest item.
    pub item_min: usize,
    /// Factor by which the items of a size class are larger than those of the one before.
    pub growth: f64,
    /// Access rights of the NIC and peers.
    pub access: Access,
}

impl Default for Config {
    /// One partition of 16 MiB in slabs of 1 MiB, with classes that grow by a quarter, for local
    /// use.
    fn default() -> Self {
        Self {
            partitions: 1,
            partition_bytes: 16 << 20,
            slab_bytes: 1 << 20,
            item_min: ALIGN,
            growth: 1.25,
            access: Access::LOCAL_WRITE,
        }
    }
}

impl Config {
    setters! {
        partitions: usize,
        partition_bytes: usize,
        slab_bytes: usize,
        item_min: usize,
        growth: f64,
        access: Access,
    }
}

/// Error of creating a pool, or of allocating an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The configuration makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// The memory could not be registered.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// No item is that large.
    #[error("{len} bytes: the largest item has {max}")]
    TooLarge {
        /// Requested length.
        len: usize,
        /// The bytes of a slab.
        max: usize,
    },
    /// The partition has neither an item of the class nor a slab left.
    #[error("partition {partition} has no memory left for {len} bytes")]
    Exhausted {
        /// Index of the partition.
        partition: usize,
        /// Requested length.
        len: usize,
    },
    /// The index names no partition.
    #[error("there is no partition {0}")]
    NoPartition(usize),
}

/// Registered memory that is lent in items. Cloning gives another handle to the same pool; see the
/// [module](self).
#[derive(Clone, Debug)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mr: Mr,
    classes: Classes,
    slab_bytes: usize,
    partitions: Box<[Arc<Partition>]>,
}

/// The items of one partition, which is their lender.
#[derive(Debug)]
struct Partition {
    /// Offset in the region.
    base: usize,
    slabs: Mutex<Slabs>,
}

impl Partition {
    fn lock(&self) -> MutexGuard<'_, Slabs> {
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lender for Partition {
    fn take_back(&self, slice: &MrSlice) {
        self.lock().free(slice.offset() - self.base, slice.len());
    }
}

impl Pool {
    /// Registers memory for a protection domain and divides it.
    pub fn new(pd: &Pd, config: &Config) -> Result<Self, PoolError> {
        let Config { partitions, partition_bytes, slab_bytes, item_min, growth, access } = *config;
        let classes = Classes::new(item_min, slab_bytes, growth)?;
        if partitions == 0 || partitions > PARTITIONS_MAX {
            return Err(PoolError::Invalid("a pool has between 1 and 4096 partitions"));
        }
        let slabs = partition_bytes / slab_bytes;
        if slabs == 0 || !partition_bytes.is_multiple_of(slab_bytes) {
            return Err(PoolError::Invalid("a partition is one slab or several"));
        }
        let too_long = PoolError::Key(KeyError::TooLong);
        let slabs = u32::try_from(slabs).map_err(|_| too_long)?;
        let mr = pd.allocate(partition_bytes.checked_mul(partitions).ok_or(too_long)?, access)?;
        let partition = |number: usize| {
            let slabs = Mutex::new(Slabs::new(slabs, slab_bytes, classes.sizes()));
            Arc::new(Partition { base: number * partition_bytes, slabs })
        };
        let partitions = (0..partitions).map(partition).collect();
        Ok(Self(Arc::new(Inner { mr, classes, slab_bytes, partitions })))
    }

    /// Returns an item of at least `len` bytes of a partition, whose length is `len`. What it holds
    /// is left over from its last use.
    pub fn alloc(&self, partition: usize, len: usize) -> Result<Loan, PoolError> {
        let inner = &*self.0;
        let max = inner.slab_bytes;
        let class = inner.classes.of(len).filter(|_| len <= max);
        let class = class.ok_or(PoolError::TooLarge { len, max })?;
        let home = inner.partitions.get(partition).ok_or(PoolError::NoPartition(partition))?;
        let taken = home.lock().take(class, len);
        let offset = home.base + taken.ok_or(PoolError::Exhausted { partition, len })?;
        let slice = inner.mr.slice(offset..offset + len).expect("items lie within the region");
        Ok(Loan::new(slice, Arc::<Partition>::clone(home)))
    }

    /// Returns the number of bytes of the item that `len` bytes are put into.
    pub fn item_bytes(&self, len: usize) -> Option<usize> {
        let classes = &self.0.classes;
        classes.of(len).and_then(|class| classes.sizes().get(class)).copied()
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> usize {
        self.0.partitions.len()
    }

    /// Returns the largest part of an item that is not used, of items that are larger than the
    /// smallest class.
    pub fn waste_max(&self) -> f64 {
        self.0.classes.waste_max()
    }

    /// Returns how all partitions are used.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::new(self);
        self.0.partitions.iter().for_each(|partition| usage.add(&partition.lock()));
        usage
    }

    /// Returns how one partition is used.
    pub fn partition_usage(&self, partition: usize) -> Option<Usage> {
        let partition = self.0.partitions.get(partition)?;
        let mut usage = Usage::new(self);
        usage.add(&partition.lock());
        Some(usage)
    }
}

/// Usage of a pool, or of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Number of slabs.
    pub slabs: usize,
    /// Number of slabs that belong to no class: any may take them.
    pub free_slabs: usize,
    /// Number of items in use.
    pub items: usize,
    /// Bytes that were asked for, of items in use.
    pub requested: usize,
    /// Bytes of items in use.
    pub reserved: usize,
    /// Bytes of the slabs that belong to a class.
    pub held: usize,
    /// Usage of each size class.
    pub classes: Vec<ClassUsage>,
}

/// Usage of a size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassUsage {
    /// Bytes of an item.
    pub item_bytes: usize,
    /// Number of slabs that it holds.
    pub slabs: usize,
    /// Number of items in use.
    pub items: usize,
}

impl Usage {
    fn new(pool: &Pool) -> Self {
        let class = |size: &usize| ClassUsage { item_bytes: *size, ..ClassUsage::default() };
        Self { classes: pool.0.classes.sizes().iter().map(class).collect(), ..Self::default() }
    }

    fn add(&mut self, slabs: &Slabs) {
        let slab_bytes = slabs.slab_bytes();
        self.slabs += slabs.slabs();
        self.free_slabs += slabs.free_slabs();
        self.requested += slabs.requested;
        for (sum, class) in self.classes.iter_mut().zip(slabs.classes()) {
            sum.slabs += class.slabs;
            sum.items += class.used;
            self.items += class.used;
            self.reserved += class.used * class.size;
            self.held += class.slabs * slab_bytes;
        }
    }

    /// Returns the part of items in use that was not asked for.
    pub fn internal(&self) -> f64 {
        share(self.reserved - self.requested, self.reserved)
    }

    /// Returns the part of slabs of size classes that no item uses.
    pub fn external(&self) -> f64 {
        share(self.held - self.reserved, self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Context;
    use crate::link::cable;
    use crate::nic::SoftNic;
    use crate::wire::Gid;

    fn pd() -> Pd {
        let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
        let (link, _) = cable(gids[0], gids[1]).unwrap();
        Context::new(SoftNic::start(link).unwrap()).create_pd().unwrap()
    }

    fn small() -> Config {
        Config::default().partitions(2).partition_bytes(8192).slab_bytes(4096).growth(2.0)
    }

    #[test]
    fn items_return_when_they_are_dropped_by_any_thread() {
        let pool = Pool::new(&pd(), &small()).unwrap();
        let items: Vec<Loan> = (0..8).map(|_| pool.alloc(1, 1000).unwrap()).collect();
        let full = PoolError::Exhausted { partition: 1, len: 1 };
        assert_eq!(pool.alloc(1, 1).unwrap_err(), full);
        assert_eq!(pool.alloc(0, 4097).unwrap_err(), PoolError::TooLarge { len: 4097, max: 4096 });
        assert_eq!(pool.alloc(2, 1).unwrap_err(), PoolError::NoPartition(2));
        let usage = pool.usage();
        assert_eq!((usage.slabs, usage.free_slabs, usage.items), (4, 2, 8));
        assert_eq!((usage.requested, usage.reserved, usage.held), (8000, 8192, 8192));
        assert!(usage.internal() <= pool.waste_max() && usage.external() == 0.0);
        std::thread::spawn(move || drop(items)).join().unwrap();
        assert_eq!(pool.partition_usage(1).unwrap().free_slabs, 2);
        assert_eq!((pool.usage().requested, pool.usage().held), (0, 0));
    }

    #[test]
    fn items_hold_what_is_written_to_them_and_do_not_overlap() {
        let pool = Pool::new(&pd(), &small()).unwrap();
        let mut items = Vec::new();
        for (number, len) in (0_u8..).zip([1, 64, 65, 700, 128, 2000, 64, 300]) {
            let Ok(mut item) = pool.alloc(usize::from(number) % 2, len) else { continue };
            item.write(0, &vec![number; len]).unwrap();
            assert!(item.write(1, &vec![0; len]).is_err(), "not beyond its end");
            items.push((number, item));
        }
        assert!(items.len() >= 6);
        for (number, item) in &items {
            assert!(item.to_vec().iter().all(|byte| byte == number));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let pd = pd();
        for config in [
            Config::default().partitions(0),
            Config::default().partition_bytes(100),
            Config::default().slab_bytes(1000),
            Config::default().growth(0.5),
            Config::default().partitions(4096).partition_bytes((usize::MAX / 2) & !0xf_ffff),
        ] {
            Pool::new(&pd, &config).unwrap_err();
        }
    }

    #[test]
    fn threads_have_partitions_of_their_own() {
        let pool =
            Pool::new(&pd(), &Config::default().partitions(4).partition_bytes(1 << 20)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0_u8..4 {
                let pool = pool.clone();
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for round in 0..2000_usize {
                        let len = 1 + (round * 37 + usize::from(thread)) % 3000;
                        if let Ok(mut item) = pool.alloc(usize::from(thread), len) {
                            item.write(len - 1, &[thread]).unwrap();
                            kept.push(item);
                        }
                        if kept.len() > 50 {
                            let item = kept.swap_remove(round % 50);
                            assert_eq!(item.to_vec().last(), Some(&thread));
                        }
                    }
                });
            }
        });
        assert_eq!(pool.usage().items, 0);
        assert_eq!(pool.usage().free_slabs, 4);
    }
}
