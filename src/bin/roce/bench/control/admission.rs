//! Limits of a server: how much all clients together, and those of one address, may take.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{bail, ensure};

use super::layout;
use super::plan::{Plan, QPS_MAX};

/// What a refusal ends with that does not hold once other clients have ended.
pub(crate) const LATER: &str = "try again later";

/// What a server gives at most. One address gets [`SHARE`] of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Clients at once.
    pub(crate) clients: u64,
    /// Queue pairs at once.
    pub(crate) qps: u64,
    /// Bytes of memory at once.
    pub(crate) memory: u64,
    /// The longest session of a client, in seconds.
    pub(crate) seconds: u64,
}

/// One address gets one part in so many.
pub(crate) const SHARE: u64 = 4;

impl Default for Limits {
    fn default() -> Self {
        Self { clients: 64, qps: 8 * u64::from(QPS_MAX), memory: 512 << 20, seconds: 3600 }
    }
}

/// What is taken of a [`Limits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) clients: u64,
    pub(crate) qps: u64,
    pub(crate) memory: u64,
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

/// Keeps account of what clients take.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    in_all: Use,
    /// By [`owner`]. An address that takes nothing has no entry.
    by_owner: BTreeMap<IpAddr, Use>,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, taken: Mutex::default() }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns what all clients take now.
    pub(crate) fn in_all(&self) -> Use {
        self.taken().in_all
    }

    /// Takes in a client that has sent nothing yet.
    pub(crate) fn enter(&self, address: IpAddr) -> anyhow::Result<Ticket<'_>> {
        let mut ticket = Ticket { admission: self, owner: owner(address), taken: Use::default() };
        ticket.take(Use { clients: 1, ..Use::default() })?;
        Ok(ticket)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of the limits that one client takes, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    admission: &'a Admission,
    owner: IpAddr,
    taken: Use,
}

impl Ticket<'_> {
    /// Takes what a plan needs, or refuses it and names the limit.
    pub(crate) fn admit(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let limits = &self.admission.limits;
        let (memory, seconds) = (layout::memory(plan)?, plan.seconds().unwrap_or(0));
        ensure!(
            seconds <= limits.seconds,
            "this server serves a client for at most {} seconds, and all sizes together take {seconds} \
             (roce serve --max-duration)",
            limits.seconds
        );
        let alone = limits.memory / SHARE;
        ensure!(
            memory <= alone,
            "the test needs {} MiB at the server, which gives a client at most {} MiB: use fewer queue pairs (-q), a \
             smaller -t or -s, or roce serve --max-memory",
            memory.div_ceil(1 << 20),
            alone >> 20
        );
        self.take(Use { clients: 0, qps: plan.qps.into(), memory })
    }

    /// Takes some more bytes and queue pairs, or says that the server is busy.
    pub(crate) fn take(&mut self, more: Use) -> anyhow::Result<()> {
        let (limits, mut taken) = (&self.admission.limits, self.admission.taken());
        let in_all = taken.in_all.plus(more);
        let own = taken.by_owner.get(&self.owner).copied().unwrap_or_default().plus(more);
        if !own.fits(limits, SHARE) {
            bail!("clients of {} take all that one address gets: {LATER}", self.owner);
        }
        if !in_all.fits(limits, 1) {
            bail!("the server is busy: {LATER}");
        }
        taken.in_all = in_all;
        taken.by_owner.insert(self.owner, own);
        self.taken = self.taken.plus(more);
        Ok(())
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut taken = self.admission.taken();
        taken.in_all = taken.in_all.minus(self.taken);
        let own = taken.by_owner.get(&self.owner).copied().unwrap_or_default().minus(self.taken);
        if own == Use::default() {
            taken.by_owner.remove(&self.owner);
        } else {
            taken.by_owner.insert(self.owner, own);
        }
    }
}

/// Returns the address to which a client's part is counted. A host has 2^64 addresses of IPv6: its network counts.
pub(crate) fn owner(address: IpAddr) -> IpAddr {
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
    use roce::verbs::Mtu;

    use super::super::plan::{Connection, Extent, Metric, Op};
    use super::*;

    fn plan(qps: u32, tx_depth: u32, extent: Extent) -> Plan {
        Plan {
            op: Op::Send,
            metric: Metric::Bw,
            connection: Connection::Rc,
            sizes: vec![4096; 2],
            extent,
            qps,
            mtu: Mtu::M4096,
            tx_depth,
            bidirectional: false,
            verify: true,
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    const SOME: Extent = Extent::Iterations(1);

    #[test]
    fn one_address_gets_its_share_and_others_theirs() {
        let admission = Admission::new(Limits { clients: 8, ..Limits::default() });
        let near = address("192.0.2.1");
        let held = [admission.enter(near).unwrap(), admission.enter(near).unwrap()];
        let error = admission.enter(near).unwrap_err().to_string();
        assert!(error.contains("192.0.2.1"), "{error}");
        let others: Vec<_> =
            (2..8).map(|host| admission.enter(IpAddr::from([192, 0, 2, host]))).collect();
        assert!(others.iter().all(Result::is_ok));
        let error = admission.enter(address("192.0.2.9")).unwrap_err().to_string();
        assert!(error.contains("busy"), "{error}");
        drop((held, others));
        assert_eq!(admission.in_all(), Use::default());
        assert!(admission.taken().by_owner.is_empty());
        admission.enter(near).unwrap();
    }

    #[test]
    fn addresses_of_one_ipv6_network_share() {
        assert_eq!(owner(address("2001:db8::1")), owner(address("2001:db8::ffff:1")));
        assert_ne!(owner(address("2001:db8::1")), owner(address("2001:db8:0:1::1")));
        assert_eq!(owner(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }

    #[test]
    fn plan_beyond_the_limits_is_refused_and_named() {
        let admission = Admission::new(Limits::default());
        let mut ticket = admission.enter(address("192.0.2.1")).unwrap();
        let mut refused = |plan: Plan| {
            plan.check().unwrap();
            ticket.admit(&plan).unwrap_err().to_string()
        };
        assert!(refused(plan(256, 3583, SOME)).contains("--max-memory"));
        assert!(refused(plan(1, 16, Extent::Seconds(1801))).contains("--max-duration"));
        assert_eq!(admission.in_all(), Use { clients: 1, ..Use::default() });
    }

    #[test]
    fn honest_plans_are_admitted_by_default() {
        let thousand = Plan { sizes: vec![65536], verify: false, ..plan(1000, 128, SOME) };
        let all = Plan { sizes: (1..=23).map(|power| 1 << power).collect(), ..plan(1, 128, SOME) };
        let unverified = Plan { verify: false, ..all.clone() };
        for plan in [thousand, all, unverified, plan(16, 1024, Extent::Seconds(1800))] {
            let admission = Admission::new(Limits::default());
            let mut ticket = admission.enter(address("192.0.2.1")).unwrap();
            plan.check().unwrap();
            ticket.admit(&plan).unwrap();
            let taken = admission.in_all();
            assert_eq!(taken.qps, u64::from(plan.qps));
            assert!(taken.memory >= u64::from(plan.size_max()));
            drop(ticket);
            assert_eq!(admission.in_all(), Use::default());
        }
    }

    #[test]
    fn queue_pairs_and_memory_of_one_address_are_summed() {
        let admission = Admission::new(Limits::default());
        let mut tickets = Vec::new();
        let refused = loop {
            let mut ticket = admission.enter(address("192.0.2.1")).unwrap();
            match ticket.admit(&plan(256, 128, SOME)) {
                Ok(()) => tickets.push(ticket),
                Err(error) => break error.to_string(),
            }
        };
        assert!(refused.contains("192.0.2.1"), "{refused}");
        let taken = admission.in_all();
        assert!(taken.memory <= admission.limits().memory / SHARE && !tickets.is_empty());
        assert!(
            admission.enter(address("192.0.2.2")).unwrap().admit(&plan(256, 128, SOME)).is_ok()
        );
    }
}
