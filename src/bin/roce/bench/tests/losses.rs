//! Runs that lose messages, are interrupted, or lose their server.

use super::*;

/// A client whose messages meet a fault on their way.
fn run_with_fault(plan: &Plan, fault: &str) -> (Notes, Counts) {
    let gid = |host| Gid::from(Ipv4Addr::new(192, 0, 2, host));
    let (a, b) = cable(gid(1), gid(2)).unwrap();
    let a = Nic::new(SoftNic::start(fault::inject(a, &fault.parse().unwrap())).unwrap());
    let b = Nic::new(SoftNic::start(b).unwrap());
    let (client, server) = tcp();
    std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(&b, server));
        let mut notes = Notes::default();
        let mut control = to_server(client);
        let counts = session::client(&a, &mut control, plan, options(), &mut notes).unwrap();
        served.join().unwrap().unwrap();
        (notes, counts)
    })
}

fn unreliable() -> [(Op, Connection); 3] {
    [(Op::Send, Connection::Uc), (Op::Send, Connection::Ud), (Op::Write, Connection::Uc)]
}

#[test]
fn total_loss_of_unreliable_messages_is_reported_as_zero_received() {
    for (op, connection) in unreliable() {
        let plan = Plan { verify: false, ..plan(op, Metric::Bw, connection) };
        let (notes, _) = run_with_fault(&plan, "loss=100%");
        let [step] = &notes.steps[..] else { panic!("{op:?}") };
        assert_eq!(step.outcome.own.messages, 300, "{op:?} {connection:?}");
        assert_eq!(step.lost(&plan), Some(300), "{op:?} {connection:?}");
        assert!(step.is_all_lost(&plan));
        let row = report::row(&plan, step, Unit::Megabytes);
        let columns: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(columns[5..], ["0.00", "300"], "{row}");
        let heading = report::heading(&plan, Unit::Megabytes);
        assert!(heading.ends_with("BW received[MB/sec]   Lost"), "{heading}");
        let remark = report::remark(&plan, step).unwrap();
        assert_eq!(remark, "64 bytes: all 300 messages were lost: nothing arrived");
        let setting = notes.setting.as_ref().unwrap();
        let text = report::to_json(setting, &notes.steps, &Counts::default(), &End::Whole).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let result = &json["results"][0];
        assert_eq!(
            (&result["lost_messages"], &result["received_messages"]),
            (&300.into(), &0.into())
        );
        assert_eq!(result["bw_received_MiB_per_s"].as_f64(), Some(0.0));
    }
}

#[test]
fn partial_loss_is_counted_by_the_receiver() {
    for (op, connection) in unreliable() {
        let plan = Plan { verify: false, ..plan(op, Metric::Bw, connection) };
        let (notes, counts) = run_with_fault(&plan, "loss=50%,seed=7");
        let [step] = &notes.steps[..] else { panic!("{op:?}") };
        let lost = step.lost(&plan).unwrap();
        assert!((1..300).contains(&lost), "{op:?} {connection:?}: {lost}");
        let [there, _] = step.arrived(&plan);
        assert_eq!(there.unwrap().messages + lost, 300);
        if op == Op::Write {
            let writes = counts.peer.iter().find(|(name, _)| name == "rx_write_requests").unwrap();
            // Nothing tells when the last write is there: one that comes after a long silence
            // counts as lost.
            assert!(writes.1 + lost >= 300, "{} came, {lost} were lost", writes.1);
        }
    }
}

#[test]
fn losses_without_a_count_of_messages_are_estimated_from_packets_or_unknown() {
    let plan = plan(Op::Write, Metric::Bw, Connection::Uc);
    let own = Done { messages: 100, nanos: 1000, peak: 0 };
    let seen = |packets| Seen { packets, ..Seen::default() };
    let step = |packets, sent| Step {
        size: 4096,
        outcome: Outcome { own, ..Outcome::default() },
        peer_saw: Some(seen(packets)),
        packets_sent: sent,
        latency: None,
    };
    assert_eq!(step(Some(300), Some(400)).lost(&plan), Some(25));
    assert_eq!(step(Some(0), Some(400)).lost(&plan), Some(100));
    assert_eq!(step(Some(500), Some(400)).lost(&plan), Some(0));
    assert_eq!((step(None, Some(400)).lost(&plan), step(None, None).lost(&plan)), (None, None));
    assert!(report::row(&plan, &step(None, None), Unit::Megabytes).ends_with(" -"));
}

/// An observer that gets to know the progress bar when the measurement of a size begins.
struct Then<F: FnMut(ProgressBar)>(Notes, F);

/// Waits until a progress bar shows messages.
fn wait_for_progress(bar: &ProgressBar) {
    while bar.position() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl<F: FnMut(ProgressBar)> Observer for Then<F> {
    fn begin(&mut self, setting: &Setting) -> anyhow::Result<()> {
        self.0.begin(setting)
    }

    fn bar(&mut self, plan: &Plan, size: u32) -> ProgressBar {
        let bar = self.0.bar(plan, size);
        (self.1)(bar.clone());
        bar
    }

    fn step(&mut self, plan: &Plan, step: &Step) -> anyhow::Result<()> {
        self.0.step(plan, step)
    }
}

#[test]
fn interrupt_ends_a_run_with_what_was_measured() {
    for (metric, bidirectional) in [(Metric::Bw, false), (Metric::Bw, true), (Metric::Lat, false)] {
        let plan = Plan {
            sizes: vec![64, 128],
            extent: Extent::Iterations(1 << 40),
            bidirectional,
            ..plan(Op::Send, metric, Connection::Rc)
        };
        let (a, b) = nics();
        let (client, server) = tcp();
        let interrupt = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve(&b, server));
            let interrupt = &interrupt;
            let mut observer = Then(Notes::default(), |bar| {
                scope.spawn(move || {
                    wait_for_progress(&bar);
                    interrupt.store(true, Ordering::SeqCst);
                });
            });
            let mut control = to_server(client);
            let options = ClientOptions { interrupt, ..options() };
            let counts = session::client(&a, &mut control, &plan, options, &mut observer).unwrap();
            let [step] = &observer.0.steps[..] else { panic!("{:?}", observer.0.steps) };
            assert!(step.outcome.own.messages > 0 && step.peer_saw.is_some(), "{step:?}");
            assert!(!counts.peer.is_empty(), "the server told its counters");
            served.join().unwrap().unwrap();
        });
    }
}

#[test]
fn death_of_the_server_leaves_what_was_measured() {
    for metric in Metric::ALL {
        let plan = Plan { extent: Extent::Seconds(600), ..plan(Op::Write, metric, Connection::Uc) };
        let (a, b) = nics();
        let (client, server) = tcp();
        let cut = server.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&b, server));
            let cut = &cut;
            let mut observer = Then(Notes::default(), |bar| {
                scope.spawn(move || {
                    wait_for_progress(&bar);
                    cut.shutdown(std::net::Shutdown::Both).unwrap();
                });
            });
            let mut control = to_server(client);
            session::client(&a, &mut control, &plan, options(), &mut observer).unwrap_err();
            let [step] = &observer.0.steps[..] else { panic!("{metric:?}") };
            assert!(step.outcome.own.messages > 0 && step.peer_saw.is_none(), "{metric:?}");
        });
    }
}
