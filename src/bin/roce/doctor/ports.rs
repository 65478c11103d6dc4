//! Holders of the UDP port of RoCE, from the tables of `/proc`.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce::wire::ROCE_PORT;

/// A socket that has the port.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holder {
    address: IpAddr,
    /// Process of the socket, if this user may see it.
    pub(super) process: Option<u32>,
    name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(f, "{} (process {process})", self.name),
            None => write!(f, "{}", self.name),
        }
    }
}

/// Returns the sockets that keep an address from being bound: those at it, and those at all.
pub(super) fn holders(address: IpAddr) -> Vec<Holder> {
    let mut holders = Vec::new();
    for table in ["/proc/net/udp", "/proc/net/udp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        let in_the_way = |at: IpAddr| at == address || at.is_unspecified();
        for (at, inode) in sockets(&text).into_iter().filter(|(at, _)| in_the_way(*at)) {
            holders.push(holder(at, inode));
        }
    }
    holders
}

/// The sockets of a table that have the port: their addresses and inodes.
fn sockets(table: &str) -> Vec<(IpAddr, u64)> {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let (address, port) = words.nth(1)?.split_once(':')?;
        let is_roce = u16::from_str_radix(port, 16) == Ok(ROCE_PORT);
        // After the local address: remote address, state, queues, timer, retransmits, user,
        // timeout.
        let inode = words.nth(7)?.parse().ok()?;
        is_roce.then_some((parse_address(address)?, inode))
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

fn holder(address: IpAddr, inode: u64) -> Holder {
    // A socket of the kernel has no inode.
    if inode == 0 {
        return Holder { address, process: None, name: "the kernel (rdma_rxe)".to_owned() };
    }
    let wanted = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let Some(number) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let mut files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let has = files.any(|file| {
            fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str())
        });
        if has {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Holder { address, process: Some(number), name: name.trim().to_owned() };
        }
    }
    Holder { address, process: None, name: "a process of another user".to_owned() }
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
            14: 00000000000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 0:0 0:0 0 0 0 9 2 0 0\n\
            cut";
        let loopback = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(sockets(table), [(loopback("127.0.0.1"), 4242), (loopback("::1"), 9)]);
    }

    #[test]
    fn holder_is_this_process() {
        // An address that no other test has.
        let address = IpAddr::from([127, 66, 30, 1]);
        let Ok(socket) = UdpSocket::bind((address, ROCE_PORT)) else { return };
        let held = holders(address);
        let own = held.iter().find(|holder| holder.address == address).unwrap();
        assert_eq!(own.process, Some(std::process::id()), "{held:?}");
        drop(socket);
    }
}
