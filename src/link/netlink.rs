//! Questions to the kernel's routing tables over a netlink socket.
//!
//! The socket stays in the network namespace in which it was opened, whichever thread asks.

use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use socket2::{Domain, Protocol, Socket, Type};

/// The longest datagram of an answer; the kernel fills at most this much at once.
const ANSWER_MAX: usize = 32 << 10;

/// Maximum number of datagrams of one answer.
const DATAGRAMS_MAX: usize = 4096;

/// The length of `nlmsghdr`.
const HEADER: usize = 16;

// Numbers of `linux/netlink.h`.
const REQUEST: u16 = 0x1;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Maximum number of announcements that are discarded at once; the rest keeps the descriptor
/// readable.
const ANNOUNCEMENTS_MAX: usize = 4096;

/// A socket on which the kernel announces changes. What it announces is not read: it may be lost
/// when many changes come at once.
#[derive(Debug)]
pub(super) struct Announcements(Socket);

impl Announcements {
    /// Listens to these groups in the network namespace of the calling thread.
    pub(super) fn open(groups: u32) -> io::Result<Self> {
        let socket = route_socket()?;
        socket.set_nonblocking(true)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self(socket))
    }

    /// Announcements that a test makes through the other socket.
    #[cfg(test)]
    pub(super) fn pair() -> (Self, Socket) {
        let (socket, kernel) = Socket::pair(Domain::UNIX, Type::DGRAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        (Self(socket), kernel)
    }

    /// Discards the announcements that wait; whether there were any.
    pub(super) fn discard(&self) -> bool {
        let mut announcement = [0; 512];
        for count in 0..ANNOUNCEMENTS_MAX {
            match (&self.0).read(&mut announcement) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return count > 0,
                // That announcements were lost is reported once, as an error.
                Ok(_) | Err(_) => {}
            }
        }
        true
    }
}

impl AsFd for Announcements {
    /// Readable while there are announcements.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn route_socket() -> io::Result<Socket> {
    let domain = Domain::from(libc::AF_NETLINK);
    Socket::new(domain, Type::RAW, Some(Protocol::from(libc::NETLINK_ROUTE)))
}

/// A netlink socket of `NETLINK_ROUTE`.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
    answer: Vec<u8>,
}

/// Scope of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// The one entry that the request names.
    One,
    /// The whole table.
    All,
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    pub(super) fn open() -> io::Result<Self> {
        let socket = route_socket()?;
        // The kernel answers within the request; this is for the day that it does not.
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        Ok(Self { socket, sequence: 0, answer: Vec::new() })
    }

    /// Sends a request of this kind, and calls `each` with the body of every answer of the kind
    /// `wanted`.
    pub(super) fn ask(
        &mut self,
        (kind, wanted): (u16, u16),
        ask: Ask,
        body: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.send(kind, ask, body)?;
        for _ in 0..DATAGRAMS_MAX {
            self.answer.try_reserve_exact(ANSWER_MAX.saturating_sub(self.answer.len()))?;
            self.answer.resize(ANSWER_MAX, 0);
            let len = (&self.socket).read(&mut self.answer)?;
            for message in messages(self.answer.get(..len).unwrap_or_default()) {
                // An answer that came too late for an earlier question is passed over.
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    DONE => return Ok(()),
                    ERROR => return refusal(message.body),
                    kind if kind == wanted => {
                        each(message.body);
                        if ask == Ask::One {
                            return Ok(());
                        }
                    }
                    _ => {}
                }
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn send(&mut self, kind: u16, ask: Ask, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = if ask == Ask::All { REQUEST | DUMP } else { REQUEST };
        let len = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
        let mut request = Vec::with_capacity(HEADER + body.len());
        request.extend(len.to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(flags.to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        request.extend(body);
        self.socket.send(&request).map(drop)
    }
}

/// Converts the body of an error message: the kernel has no such device, or is done (no answer), or
/// could not answer.
fn refusal(body: &[u8]) -> io::Result<()> {
    match word(body, 0).map(|code| code.cast_signed().wrapping_neg()) {
        Some(0 | libc::ENODEV) => Ok(()),
        Some(code) if code > 0 => Err(io::Error::from_raw_os_error(code)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message<'a> {
    kind: u16,
    sequence: u32,
    body: &'a [u8],
}

/// The messages of a datagram, as far as they are whole.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = word(datagram, 0)? as usize;
        let message = datagram.get(..len)?;
        let next = Message {
            kind: half(message, 4)?,
            sequence: word(message, 8)?,
            body: message.get(HEADER..)?,
        };
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(next)
    })
}

/// The number of 32 bits at an offset.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(bytes))
}

/// The number of 16 bits at an offset.
pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_ne_bytes(bytes))
}

/// The family of an address, as messages have it.
#[expect(clippy::cast_possible_truncation, reason = "they are 2 and 10")]
pub(super) fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

/// The bytes of an address.
pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Parses bytes as an address.
pub(super) fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// Appends an attribute, padded.
pub(super) fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).expect("an address is short");
    body.extend(len.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The value of the first attribute of a kind.
pub(super) fn find_attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(half(attributes, 0)?);
        let kind = half(attributes, 2)?;
        let value = attributes.get(4..len)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: u32, kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let header = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 2]].concat();
        [&header[..], &sequence.to_ne_bytes(), &[0; 4], body].concat()
    }

    #[test]
    fn messages_end_where_a_length_is_wrong() {
        let good = message(20, 16, 7, &[1, 2, 3, 4]);
        let expected = Message { kind: 16, sequence: 7, body: &[1, 2, 3, 4] };
        for wrong in [0, 15, 21, u32::MAX] {
            let datagram = [&good[..], &message(wrong, 16, 7, &[1, 2, 3, 4])].concat();
            assert_eq!(messages(&datagram).collect::<Vec<_>>(), [expected], "{wrong}");
        }
        for len in 0..good.len() {
            assert_eq!(messages(&good[..len]).count(), 0);
        }
    }

    #[test]
    fn only_a_missing_device_is_no_answer() {
        let refused = |code: i32| {
            let body = [&code.to_ne_bytes()[..], &[0; 16]].concat();
            refusal(&body).map_err(|error| error.raw_os_error())
        };
        assert_eq!(refused(0), Ok(()));
        assert_eq!(refused(-libc::ENODEV), Ok(()));
        for code in [libc::ENOMEM, libc::ENOBUFS, libc::EPERM, libc::EOPNOTSUPP] {
            assert_eq!(refused(-code), Err(Some(code)));
        }
        for code in [1, i32::MAX, i32::MIN] {
            assert_eq!(refused(code), Err(None));
        }
        assert_eq!(refusal(&[0; 3]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    /// The kernel says that there is no such interface.
    #[test]
    fn the_kernel_refuses_an_interface_that_does_not_exist() {
        const GET_LINK: (u16, u16) = (18, 16);
        let mut request = [0; 16];
        request[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
        let mut netlink = Netlink::open().unwrap();
        netlink.ask(GET_LINK, Ask::One, &request, |_| panic!("it is there")).unwrap();
    }

    #[test]
    fn attributes_end_where_a_length_is_wrong() {
        let mut body = Vec::new();
        push_attribute(&mut body, 1, &[9]);
        push_attribute(&mut body, 2, &[7, 8]);
        assert_eq!(find_attribute(&body, 2), Some(&[7, 8][..]));
        assert_eq!(find_attribute(&body, 3), None);
        body[0] = 3;
        assert_eq!(find_attribute(&body, 2), None);
        body[0] = 200;
        assert_eq!(find_attribute(&body, 2), None);
    }

    #[test]
    fn the_kernel_lists_the_loopback_address() {
        const GET_ADDRESS: (u16, u16) = (22, 20);
        let mut found = Vec::new();
        let body = [0; 8];
        let mut netlink = Netlink::open().unwrap();
        netlink
            .ask(GET_ADDRESS, Ask::All, &body, |body| {
                found.extend(find_attribute(&body[8..], 1).and_then(address));
            })
            .unwrap();
        assert!(found.contains(&[127, 0, 0, 1].into()), "{found:?}");
    }
}
