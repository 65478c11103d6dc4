//! The GID table that verbs programs see of a soft NIC.
//!
//! A soft NIC numbers its GIDs from 0. Real RoCE NICs list every address twice, as RoCE v1 and as
//! RoCE v2, and many programs have an index of such a table written into them. The table has the
//! port's main address, its first IPv4 one, at each index that is common:
//!
//! | index | row | who expects it there |
//! |---|---|---|
//! | 0 | the NIC's first GID, v2 | programs that take the default, `-g 0`, libfabric |
//! | 1 | the main address, v2 | programs written for Linux' software RoCE, which has the default GID at 0 and no v1 |
//! | 2 | the main address, v1 | none can use it: a soft NIC speaks v2 only |
//! | 3 | the main address, v2 | programs written for mlx5: default GID v1 and v2 at 0 and 1, IPv4 v1 and v2 at 2 and 3 |
//! | 4, 5, … | each further address, v1 and v2 | |
//!
//! ```
//! use std::net::Ipv4Addr;
//!
//! use roce::link::GidTable;
//! use roce::verbs::GidType;
//!
//! let table = GidTable::new(&[Ipv4Addr::new(192, 0, 2, 1).into()]);
//! assert_eq!([0, 1, 3].map(|index| table.source(index)), [Some(0); 3]);
//! assert_eq!(table.row(2).map(|row| row.kind), Some(GidType::RoceV1));
//! ```

use crate::verbs::GidType;
use crate::wire::Gid;

/// One entry of a [`GidTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidRow {
    /// The GID.
    pub gid: Gid,
    /// Encapsulation of packets from it. Rows of RoCE v1 are listed, and refused for use.
    pub kind: GidType,
    /// The index of the GID in the soft NIC's own list.
    pub source: usize,
}

/// The GID table of a port, made of a soft NIC's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidTable {
    /// `None` where an address was removed.
    rows: Vec<Option<GidRow>>,
}

impl GidTable {
    /// Number of entries that every table has room for; those without a row are empty.
    pub const LEN_MIN: usize = 16;

    /// Lays out the GIDs of a soft NIC. A GID of zeros is an empty slot.
    pub fn new(gids: &[Gid]) -> Self {
        let main = main_address(gids);
        let row = |source: usize, kind| {
            let gid = *gids.get(source).filter(|gid| **gid != Gid::default())?;
            Some(GidRow { gid, kind, source })
        };
        let both = |source| [row(source, GidType::RoceV1), row(source, GidType::RoceV2)];
        let mut rows = vec![row(0, GidType::RoceV2), row(main, GidType::RoceV2)];
        rows.extend(both(main));
        let others = (1..gids.len()).filter(|source| *source != main);
        rows.extend(others.flat_map(both));
        Self { rows }
    }

    /// The entry with this index, unless it is empty.
    pub fn row(&self, index: usize) -> Option<GidRow> {
        self.rows.get(index).copied().flatten()
    }

    /// The index in the soft NIC's own list of a row that can be used.
    pub fn source(&self, index: usize) -> Option<usize> {
        self.row(index).filter(|row| row.kind == GidType::RoceV2).map(|row| row.source)
    }

    /// The first index of a GID of the soft NIC's own list that can be used.
    pub fn index_of(&self, source: usize) -> Option<usize> {
        (0..self.rows.len()).find(|index| self.source(*index) == Some(source))
    }

    /// The entries that are not empty, with their indexes.
    pub fn rows(&self) -> impl Iterator<Item = (usize, GidRow)> {
        self.rows.iter().enumerate().filter_map(|(index, row)| row.map(|row| (index, row)))
    }

    /// Number of entries, the empty ones included.
    #[expect(clippy::len_without_is_empty, reason = "no table is empty")]
    pub fn len(&self) -> usize {
        self.rows.len().max(Self::LEN_MIN)
    }
}

/// The position of the main address: the first IPv4 one, else the first that is not link-local,
/// else the first.
fn main_address(gids: &[Gid]) -> usize {
    let find = |is: fn(&Gid) -> bool| gids.iter().position(is);
    let is_global = |gid: &Gid| *gid != Gid::default() && !gid.0.starts_with(&[0xfe, 0x80]);
    find(|gid| gid.to_ipv4().is_some()).or_else(|| find(is_global)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(gids: &[&str]) -> GidTable {
        let gid = |text: &&str| text.parse::<std::net::IpAddr>().unwrap();
        let gids = gids.iter().map(gid).map(crate::link::interface::gid);
        GidTable::new(&gids.collect::<Vec<_>>())
    }

    fn listed(table: &GidTable) -> Vec<(usize, String, GidType)> {
        table.rows().map(|(index, row)| (index, row.gid.to_string(), row.kind)).collect()
    }

    #[test]
    fn one_address_is_at_every_common_index() {
        use GidType::{RoceV1, RoceV2};
        let own = || "::ffff:192.0.2.1".to_owned();
        let table = table(&["192.0.2.1"]);
        let rows = [(0, own(), RoceV2), (1, own(), RoceV2), (2, own(), RoceV1), (3, own(), RoceV2)];
        assert_eq!(listed(&table), rows);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|index| table.source(index)),
            [Some(0), Some(0), None, Some(0), None]
        );
        assert_eq!((table.index_of(0), table.len()), (Some(0), GidTable::LEN_MIN));
    }

    #[test]
    fn default_gid_comes_first_and_ipv4_second_and_fourth() {
        let table = table(&["fe80::1", "2001:db8::1", "192.0.2.1", "192.0.2.2"]);
        let sources: Vec<Option<usize>> = (0..9).map(|index| table.source(index)).collect();
        let (ip, v6, second) = (Some(2), Some(1), Some(3));
        assert_eq!(sources, [Some(0), ip, None, ip, None, v6, None, second, None]);
        assert_eq!([0, 1, 2, 3].map(|source| table.index_of(source)), [0, 5, 1, 7].map(Some));
    }

    #[test]
    fn removed_address_leaves_its_entries_empty() {
        let table = table(&["fe80::1", "::", "2001:db8::1"]);
        assert_eq!([0, 1, 3].map(|index| table.source(index)), [Some(0), Some(2), Some(2)]);
        assert_eq!((table.row(4), table.row(5), table.index_of(1)), (None, None, None));
        assert_eq!(GidTable::new(&[]).rows().count(), 0);
        assert_eq!(GidTable::new(&[Gid::default()]).rows().count(), 0);
    }
}
