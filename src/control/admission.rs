//! Limits of a server: the share of all clients together, and of those of one address.
//!
//! A client that has only connected is half-open: when the server is full, a newcomer takes the
//! place of one. Of those, first goes one of the address with the most, and of these the one that
//! has been silent for longest. So strangers that stay silent keep no honest client out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;

/// End of a refusal that does not hold once other clients have ended.
pub const LATER: &str = "try again later";

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of clients at once.
    pub clients: u64,
    /// Maximum number of queue pairs at once.
    pub qps: u64,
    /// Maximum number of bytes of memory at once.
    pub memory: u64,
    /// Longest session of a client, in seconds.
    pub seconds: u64,
    /// Number by which each limit is divided for one address.
    pub share: u64,
    /// Whether a newcomer takes the place of a silent client that was welcomed, too, if all were.
    pub displaces_welcomed: bool,
}

/// Use of the limits by one client, one address or all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Clients.
    pub clients: u64,
    /// Queue pairs.
    pub qps: u64,
    /// Bytes of memory.
    pub memory: u64,
}

impl Use {
    fn plus(self, more: Self) -> Self {
        Self {
            clients: self.clients.saturating_add(more.clients),
            qps: self.qps.saturating_add(more.qps),
            memory: self.memory.saturating_add(more.memory),
        }
    }

    fn minus(self, less: Self) -> Self {
        Self {
            clients: self.clients.saturating_sub(less.clients),
            qps: self.qps.saturating_sub(less.qps),
            memory: self.memory.saturating_sub(less.memory),
        }
    }

    fn fits(self, limits: &Limits, share: u64) -> bool {
        self.clients <= (limits.clients / share).max(1)
            && self.qps <= limits.qps / share
            && self.memory <= limits.memory / share
    }
}

/// Reason that a client is refused for now.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// One address takes its whole share.
    #[error("clients of {0} take all that one address gets: try again later")]
    Share(IpAddr),
    /// All clients together take everything.
    #[error("the server is busy: try again later")]
    Busy,
}

/// Closes the connection of a client that loses its place. Its thread then finds it closed.
pub type Close = Box<dyn FnOnce() + Send>;

/// A client that may lose its place.
struct Client {
    owner: IpAddr,
    is_welcome: bool,
    /// Number of the last sign of life, in the order of all signs.
    heard: u64,
    close: Close,
}

#[derive(Default)]
struct State {
    in_all: Use,
    /// Uses by [`owner`]. An address that takes nothing has no entry.
    by_owner: BTreeMap<IpAddr, Use>,
    /// Clients that may lose their place, by number.
    clients: BTreeMap<u64, Client>,
    /// Clients that lost their place, and whose threads have not ended.
    displaced: u64,
    /// Signs of life so far; also the numbers of clients.
    signs: u64,
}

/// Account of what clients take.
pub struct Admission {
    limits: Limits,
    state: Mutex<State>,
    /// Notified when a client ends.
    ended: Condvar,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").field("in_all", &self.in_all()).finish_non_exhaustive()
    }
}

impl Admission {
    /// Begins without a client.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default(), ended: Condvar::new() })
    }

    /// Returns the limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns what all clients take now.
    pub fn in_all(&self) -> Use {
        self.state().in_all
    }

    /// Waits until fewer clients have lost their place than there are places, so that a newcomer
    /// may take one. Returns whether it is so; until then newcomers stay in the backlog.
    pub fn wait_for_room(&self, at_most: Duration) -> bool {
        let is_crowded = |state: &mut State| state.displaced >= self.limits.clients;
        let waited = self.ended.wait_timeout_while(self.state(), at_most, is_crowded);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Takes in a client that has sent nothing yet, if need be in the place of another.
    pub fn enter(self: &Arc<Self>, address: IpAddr, close: Close) -> Result<Ticket, Refused> {
        let mut state = self.state();
        let (owner, one) = (owner(address), Use { clients: 1, ..Use::default() });
        if let Err(refused) = state.check(&self.limits, owner, one) {
            let from = matches!(refused, Refused::Share(_)).then_some(owner);
            let least = state.least(from, self.limits.displaces_welcomed).ok_or(refused)?;
            if state.displaced >= self.limits.clients {
                return Err(refused);
            }
            state.displace(least);
        }
        state.take(owner, one);
        state.signs += 1;
        let number = state.signs;
        let client = Client { owner, is_welcome: false, heard: number, close };
        state.clients.insert(number, client);
        let (admission, is_welcome) = (Arc::clone(self), AtomicBool::new(false));
        Ok(Ticket { admission, owner, number, taken: one, is_welcome })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check(&self, limits: &Limits, owner: IpAddr, more: Use) -> Result<(), Refused> {
        let own = self.by_owner.get(&owner).copied().unwrap_or_default().plus(more);
        if !own.fits(limits, limits.share) {
            return Err(Refused::Share(owner));
        }
        if !self.in_all.plus(more).fits(limits, 1) {
            return Err(Refused::Busy);
        }
        Ok(())
    }

    fn take(&mut self, owner: IpAddr, more: Use) {
        self.in_all = self.in_all.plus(more);
        let own = self.by_owner.entry(owner).or_default();
        *own = own.plus(more);
    }

    fn give_back(&mut self, owner: IpAddr, less: Use) {
        self.in_all = self.in_all.minus(less);
        let own = self.by_owner.get(&owner).copied().unwrap_or_default().minus(less);
        if own == Use::default() {
            self.by_owner.remove(&owner);
        } else {
            self.by_owner.insert(owner, own);
        }
    }

    /// Returns the client that is missed least, of one owner if that is given.
    fn least(&self, of: Option<IpAddr>, also_welcome: bool) -> Option<u64> {
        let crowd = |client: &Client| self.by_owner.get(&client.owner).map_or(0, |it| it.clients);
        let rank =
            |client: &Client| (client.is_welcome, std::cmp::Reverse(crowd(client)), client.heard);
        let may_go = |client: &Client| {
            (also_welcome || !client.is_welcome) && of.is_none_or(|of| of == client.owner)
        };
        let all = self.clients.iter().filter(|(_, client)| may_go(client));
        all.min_by_key(|(_, client)| rank(client)).map(|(number, _)| *number)
    }

    /// Takes the place of a client away, and closes its connection.
    fn displace(&mut self, number: u64) {
        if let Some(client) = self.clients.remove(&number) {
            self.give_back(client.owner, Use { clients: 1, ..Use::default() });
            self.displaced += 1;
            (client.close)();
        }
    }
}

/// The part of the limits that one client takes, until it is dropped.
#[derive(Debug)]
pub struct Ticket {
    admission: Arc<Admission>,
    owner: IpAddr,
    number: u64,
    taken: Use,
    is_welcome: AtomicBool,
}

impl Ticket {
    /// Returns the account.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Takes some more bytes and queue pairs.
    pub fn take(&mut self, more: Use) -> Result<(), Refused> {
        let mut state = self.admission.state();
        state.check(&self.admission.limits, self.owner, more)?;
        state.take(self.owner, more);
        self.taken = self.taken.plus(more);
        Ok(())
    }

    /// Notes that the client has been welcomed: unless the limits say otherwise, it keeps its
    /// place.
    pub fn welcome(&self) {
        self.is_welcome.store(true, Ordering::Relaxed);
        if let Some(client) = self.admission.state().clients.get_mut(&self.number) {
            client.is_welcome = true;
        }
    }

    /// Whether the client has been welcomed.
    pub fn is_welcome(&self) -> bool {
        self.is_welcome.load(Ordering::Relaxed)
    }

    /// Notes a sign of life.
    pub fn heard(&self) {
        let mut state = self.admission.state();
        state.signs += 1;
        let signs = state.signs;
        if let Some(client) = state.clients.get_mut(&self.number) {
            client.heard = signs;
        }
    }

    /// Whether another client has taken its place.
    pub fn is_displaced(&self) -> bool {
        !self.admission.state().clients.contains_key(&self.number)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        let mut taken = self.taken;
        if state.clients.remove(&self.number).is_none() {
            // The place itself was given back when another client took it.
            taken.clients = taken.clients.saturating_sub(1);
            state.displaced = state.displaced.saturating_sub(1);
        }
        state.give_back(self.owner, taken);
        self.admission.ended.notify_all();
    }
}

/// Returns the address to which a client's part is counted. A host has 2^64 addresses of IPv6: its
/// network counts.
pub fn owner(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            [a, b, c, d, 0, 0, 0, 0].into()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn limits(clients: u64) -> Limits {
        Limits { clients, qps: 100, memory: 1000, seconds: 60, share: 4, displaces_welcomed: false }
    }

    fn address(host: u8) -> IpAddr {
        [192, 0, 2, host].into()
    }

    /// Takes in a client that is welcome, and keeps its place.
    fn welcome(admission: &Arc<Admission>, host: u8) -> Result<Ticket, Refused> {
        let ticket = admission.enter(address(host), Box::new(|| ()))?;
        ticket.welcome();
        Ok(ticket)
    }

    #[test]
    fn one_address_gets_its_share_and_others_theirs() {
        let admission = Admission::new(limits(8));
        let held = [welcome(&admission, 1).unwrap(), welcome(&admission, 1).unwrap()];
        assert_eq!(welcome(&admission, 1).unwrap_err(), Refused::Share(address(1)));
        let others: Vec<_> = (2..8).map(|host| welcome(&admission, host)).collect();
        assert!(others.iter().all(Result::is_ok));
        assert_eq!(welcome(&admission, 9).unwrap_err(), Refused::Busy);
        for refused in [Refused::Busy, Refused::Share(address(1))] {
            assert!(refused.to_string().ends_with(LATER));
        }
        drop((held, others));
        assert_eq!(admission.in_all(), Use::default());
        assert!(admission.state().by_owner.is_empty());
        welcome(&admission, 1).unwrap();
    }

    #[test]
    fn addresses_of_one_ipv6_network_share() {
        let owner = |text: &str| owner(text.parse().unwrap());
        assert_eq!(owner("2001:db8::1"), owner("2001:db8::ffff:1"));
        assert_ne!(owner("2001:db8::1"), owner("2001:db8:0:1::1"));
        assert_eq!(owner("::ffff:192.0.2.1"), IpAddr::from([192, 0, 2, 1]));
    }

    #[test]
    fn queue_pairs_and_memory_of_one_address_are_summed() {
        let admission = Admission::new(limits(64));
        let more = Use { clients: 0, qps: 1, memory: 100 };
        let mut tickets: Vec<_> = (0..3).map(|_| welcome(&admission, 1).unwrap()).collect();
        assert_eq!(tickets[0].take(more), Ok(()));
        assert_eq!(tickets[1].take(more), Ok(()));
        assert_eq!(tickets[2].take(more), Err(Refused::Share(address(1))));
        assert_eq!(welcome(&admission, 2).unwrap().take(more), Ok(()));
        assert_eq!(admission.in_all(), Use { clients: 3, qps: 2, memory: 200 });
        drop(tickets);
        assert_eq!(admission.in_all(), Use::default());
    }

    /// Takes in half-open clients; returns their tickets and the number of closed connections.
    fn enter(admission: &Arc<Admission>, host: u8, closed: &Arc<AtomicU64>) -> Ticket {
        let closed = Arc::clone(closed);
        let close = Box::new(move || {
            closed.fetch_add(1, Ordering::SeqCst);
        });
        admission.enter(address(host), close).unwrap()
    }

    #[test]
    fn newcomer_takes_the_place_of_a_half_open_client_and_of_no_other() {
        let (admission, closed) = (Admission::new(limits(8)), Arc::new(AtomicU64::new(0)));
        let honest = welcome(&admission, 1).unwrap();
        // Two of one address: its share. The next of that address takes the place of the older one.
        let crowd = [enter(&admission, 2, &closed), enter(&admission, 2, &closed)];
        crowd[0].heard();
        let third = enter(&admission, 2, &closed);
        assert_eq!(crowd.each_ref().map(Ticket::is_displaced), [false, true]);
        // The server is full: one of the address with the most goes, the silent one first.
        let others: Vec<_> = (3..8).map(|host| enter(&admission, host, &closed)).collect();
        assert_eq!(admission.in_all().clients, 8);
        let newcomer = enter(&admission, 9, &closed);
        assert!(crowd[0].is_displaced() && !third.is_displaced() && !honest.is_displaced());
        assert!(!others.iter().any(Ticket::is_displaced));
        assert_eq!((admission.in_all().clients, closed.load(Ordering::SeqCst)), (8, 2));
        // Clients that are welcome keep their place.
        let all = others.iter().chain([&third, &newcomer]);
        all.for_each(Ticket::welcome);
        assert_eq!(welcome(&admission, 10).unwrap_err(), Refused::Busy);
        drop((honest, crowd, third, others, newcomer));
        assert_eq!(admission.in_all(), Use::default());
        assert_eq!(admission.state().displaced, 0);
        assert!(admission.state().by_owner.is_empty());
    }

    #[test]
    fn displaced_clients_are_bounded_until_their_threads_end() {
        let (admission, closed) = (Admission::new(limits(1)), Arc::new(AtomicU64::new(0)));
        let first = enter(&admission, 1, &closed);
        let _second = enter(&admission, 2, &closed);
        assert!(first.is_displaced() && !admission.wait_for_room(Duration::ZERO));
        let refused = admission.enter(address(3), Box::new(|| ()));
        assert_eq!(refused.unwrap_err(), Refused::Busy);
        // A thread that ends while a server waits makes room for a newcomer.
        let has_room = std::thread::scope(|scope| {
            let server = scope.spawn(|| admission.wait_for_room(Duration::from_secs(60)));
            drop(first);
            server.join().unwrap()
        });
        assert!(has_room);
        enter(&admission, 3, &closed);
    }

    #[test]
    fn silent_client_that_was_welcomed_goes_last_where_that_is_allowed() {
        let limits = Limits { share: 1, displaces_welcomed: true, ..limits(3) };
        let (admission, closed) = (Admission::new(limits), Arc::new(AtomicU64::new(0)));
        let clients = [1, 2, 3].map(|host| enter(&admission, host, &closed));
        clients[0].welcome();
        clients[2].welcome();
        let _fourth = enter(&admission, 4, &closed);
        assert_eq!(clients.each_ref().map(Ticket::is_displaced), [false, true, false]);
        _fourth.welcome();
        clients[0].heard();
        let _fifth = enter(&admission, 5, &closed);
        assert_eq!(clients.each_ref().map(Ticket::is_displaced), [false, true, true]);
    }
}
