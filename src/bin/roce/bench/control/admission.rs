//! Limits of a server of benchmarks, and the admission of plans.

use anyhow::ensure;
use roce::control::{Limits, Ticket, Use};

use super::layout;
use super::plan::{Plan, QPS_MAX};

/// Default limits of a server. One address gets a quarter of each.
pub(crate) const LIMITS: Limits = Limits {
    clients: 64,
    qps: 8 * QPS_MAX as u64,
    memory: 512 << 20,
    seconds: 3600,
    share: 4,
    displaces_welcomed: false,
};

/// Reserves what a plan needs. The error of a plan that is refused names the limit.
pub(crate) fn admit(ticket: &mut Ticket, plan: &Plan) -> anyhow::Result<()> {
    let limits = *ticket.admission().limits();
    let (memory, seconds) = (layout::memory(plan)?, plan.seconds().unwrap_or(0));
    ensure!(
        seconds <= limits.seconds,
        "this server serves a client for at most {} seconds, and all sizes together take {seconds} \
         (roce serve --max-duration)",
        limits.seconds
    );
    let per_address = limits.memory / limits.share;
    ensure!(
        memory <= per_address,
        "the test needs {} MiB at the server, which gives a client at most {} MiB: use fewer queue pairs (-q), a \
         smaller -t or -s, or roce serve --max-memory",
        memory.div_ceil(1 << 20),
        per_address >> 20
    );
    Ok(ticket.take(Use { clients: 0, qps: plan.qps.into(), memory })?)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use roce::control::Admission;
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

    fn enter(admission: &Arc<Admission>, host: u8) -> Ticket {
        admission.enter(IpAddr::from([192, 0, 2, host]), Box::new(|| ())).unwrap()
    }

    const SOME: Extent = Extent::Iterations(1);

    #[test]
    fn plan_beyond_the_limits_is_refused_and_named() {
        let admission = Admission::new(LIMITS);
        let mut ticket = enter(&admission, 1);
        let mut refused = |plan: Plan| {
            plan.check().unwrap();
            admit(&mut ticket, &plan).unwrap_err().to_string()
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
            let admission = Admission::new(LIMITS);
            let mut ticket = enter(&admission, 1);
            plan.check().unwrap();
            admit(&mut ticket, &plan).unwrap();
            let taken = admission.in_all();
            assert_eq!(taken.qps, u64::from(plan.qps));
            assert!(taken.memory >= u64::from(plan.size_max()));
            drop(ticket);
            assert_eq!(admission.in_all(), Use::default());
        }
    }

    #[test]
    fn queue_pairs_and_memory_of_one_address_are_summed() {
        let admission = Admission::new(LIMITS);
        let mut tickets = Vec::new();
        let refused = loop {
            let mut ticket = enter(&admission, 1);
            match admit(&mut ticket, &plan(256, 128, SOME)) {
                Ok(()) => tickets.push(ticket),
                Err(error) => break error.to_string(),
            }
        };
        assert!(refused.contains("192.0.2.1"), "{refused}");
        assert!(admission.in_all().memory <= LIMITS.memory / LIMITS.share && !tickets.is_empty());
        assert!(admit(&mut enter(&admission, 2), &plan(256, 128, SOME)).is_ok());
    }
}
