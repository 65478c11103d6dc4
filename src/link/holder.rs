//! Holders of the UDP port of an address, from the tables of `/proc`.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::share::SLOTS;
use crate::wire::ROCE_PORT;

/// Holder of an address, for which a link cannot open it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A program that this user can see, and that does not share the address.
    Program {
        /// Number of the process.
        process: u32,
        /// Name of the process.
        name: String,
    },
    /// A program of another user.
    User(u32),
    /// The kernel: `rdma_rxe`.
    Kernel,
    /// As many programs of this user as can share it.
    Full,
    /// Programs of this user that admit no other one: they are stopped, or of another version.
    Silent,
    /// It cannot be known: a process of another network namespace or sandbox.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program { process, name } => write!(f, "{name} (process {process})"),
            Self::User(user) => write!(f, "a program of the user with the number {user}"),
            Self::Kernel => write!(f, "the kernel (rdma_rxe)"),
            Self::Full => write!(f, "{SLOTS} programs, which are as many as can share it"),
            Self::Silent => {
                write!(f, "programs that do not answer: they are stopped, or of another version")
            }
            Self::Unknown => write!(f, "a program that this user cannot see"),
        }
    }
}

impl Holder {
    /// Returns what makes the address free.
    pub fn cure(&self) -> String {
        match self {
            Self::Program { process, .. } => format!("kill {process}"),
            Self::User(_) => "run both as one user".to_owned(),
            Self::Kernel => "remove its device (rdma link delete NAME)".to_owned(),
            Self::Full => "end some of them".to_owned(),
            Self::Silent => "continue or end them".to_owned(),
            Self::Unknown => "end it".to_owned(),
        }
    }

    /// Finds who keeps an address from being bound: who is at it, or at all.
    pub(super) fn find(address: IpAddr) -> Self {
        for table in ["/proc/net/udp", "/proc/net/udp6"] {
            let text = fs::read_to_string(table).unwrap_or_default();
            let is_in_the_way = |at: IpAddr| at == address || at.is_unspecified();
            if let Some(row) = rows(&text).into_iter().find(|row| is_in_the_way(row.address)) {
                return holder(&row);
            }
        }
        Self::Unknown
    }
}

/// A socket that has the port.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    address: IpAddr,
    user: u32,
    inode: u64,
}

/// The sockets of a table that have the port.
fn rows(table: &str) -> Vec<Row> {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let (address, port) = words.nth(1)?.split_once(':')?;
        let is_roce = u16::from_str_radix(port, 16) == Ok(ROCE_PORT);
        // After the local address: remote address, state, queues, timer, retransmits, user,
        // timeout, inode.
        let user = words.nth(5)?.parse().ok()?;
        let inode = words.nth(1)?.parse().ok()?;
        is_roce.then_some(Row { address: parse_address(address)?, user, inode })
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// An address of a table: 32-bit words in the byte order of the host, in hexadecimal digits.
fn parse_address(digits: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(digits.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match digits.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let bytes: Vec<u8> = (0..4).map(word).collect::<Option<Vec<_>>>()?.concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into())
        }
        _ => None,
    }
}

fn holder(row: &Row) -> Holder {
    // A socket of the kernel has no inode.
    if row.inode == 0 {
        return Holder::Kernel;
    }
    let wanted = format!("socket:[{}]", row.inode);
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(number) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let mut files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let has = files.any(|file| {
            fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str())
        });
        if has {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Holder::Program { process: number, name: name.trim().to_owned() };
        }
    }
    Holder::User(row.user)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn sockets_with_the_port_are_found_in_tables() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            12: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4242 2 0 0\n\
            13: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 7 2 0 0\n\
            14: 00000000000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 0:0 0:0 0 5 0 9 2 0 0\n\
            cut";
        let row =
            |address: &str, user, inode| Row { address: address.parse().unwrap(), user, inode };
        assert_eq!(rows(table), [row("127.0.0.1", 1000, 4242), row("::1", 5, 9)]);
    }

    #[test]
    fn holder_is_this_process() {
        // An address that no other test has.
        let address = IpAddr::from([127, 66, 30, 1]);
        let socket = UdpSocket::bind((address, ROCE_PORT)).unwrap();
        let held = Holder::find(address);
        let process = std::process::id();
        assert!(matches!(held, Holder::Program { process: it, .. } if it == process), "{held:?}");
        drop(socket);
    }
}
