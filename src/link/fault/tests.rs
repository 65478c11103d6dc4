//! Packets that leave a link with faults, and faults as text.

use super::sender::corrupted_bit;
use super::*;
use crate::link::testing::{PATH, Recorder, Sent, batch_of, link_to, sound};
use crate::time::Instant;
use crate::wire::Batch;

fn spec(text: &str) -> Spec {
    text.parse().unwrap()
}

/// Returns the packets that leave a link with these faults when `psns` are sent at microseconds 0,
/// 1, 2 …, until all have left.
fn run(text: &str, psns: u32) -> (Vec<Sent>, Vec<(&'static str, u64)>) {
    let recorder = Recorder::default();
    let mut link = inject(link_to(&recorder), &spec(text));
    let at = |micros: u64| Instant::from_nanos(micros * 1000);
    for psn in 0..psns {
        let mut batch = batch_of(&PATH, &[psn]);
        link.sender.send(at(psn.into()), &mut batch).unwrap();
    }
    while let Some(time) = link.sender.poll_timeout() {
        link.sender.send(time, &mut Batch::new(1)).unwrap();
    }
    (recorder.take(), link.sender.counters())
}

fn psns(text: &str, count: u32) -> Vec<u32> {
    run(text, count).0.into_iter().map(|(_, psn, _)| psn).collect()
}

#[test]
fn without_faults_everything_passes_at_once_and_sound() {
    let (sent, _) = run("", 5);
    let times: Vec<_> = sent.iter().map(|(time, psn, _)| (*time, *psn)).collect();
    assert_eq!(times, [(0, 0), (1000, 1), (2000, 2), (3000, 3), (4000, 4)]);
    assert!(sent.iter().all(|(.., packet)| sound(packet)));
}

#[test]
fn rules_hit_their_packets() {
    assert_eq!(psns("drop=7:2:1", 4), [0, 1, 3]);
    assert_eq!(psns("dup=0x7:2", 4), [0, 1, 2, 2, 3]);
    assert_eq!(psns("delay=7:1:1:2us", 4), [0, 2, 1, 3]);
    assert_eq!(psns("drop=8:2:1,drop=7:3:2", 4), [0, 1, 2, 3], "another queue pair, a second time");
}

#[test]
fn rules_name_packets_by_opcode_message_and_direction() {
    assert_eq!(psns("drop=*:2", 4), [0, 1, 3]);
    assert_eq!(psns("drop=op=send-only:nth=3", 4), [0, 1, 3]);
    assert_eq!(psns("drop=*:*:2", 4), [0, 2, 3]);
    assert_eq!(psns("drop=*:op=SEND:nth=*", 4), [0_u32; 0]);
    assert_eq!(psns("drop=8+7:*:*:msg=3", 4), [0, 1, 3]);
    assert_eq!(psns("drop=op=ACKNOWLEDGE:nth=*", 2), [0, 1]);
    assert_eq!(psns("drop=*:1:dir=in", 2), [0, 1]);
    assert_eq!(psns("delay=op=SEND:nth=2:2us", 4), [0, 2, 1, 3]);
}

#[test]
fn swapped_packet_goes_behind_the_next_or_after_a_while() {
    assert_eq!(psns("reorder=7:1:1", 4), [0, 2, 1, 3]);
    let (sent, counters) = run("reorder=7:3:1", 4);
    let (time, psn, _) = *sent.last().unwrap();
    let swap_timeout = u64::try_from(SWAP_TIMEOUT.as_nanos()).unwrap();
    assert_eq!((time, psn), (3000 + swap_timeout, 3));
    assert!(counters.contains(&("fault_reordered", 1)));
}

/// PSNs that arrive when packets 1 to 3 did, and those that arrive until nothing is held back.
fn arriving(text: &str) -> (Vec<u32>, Vec<u32>) {
    let recorder = Recorder::default();
    let mut link = inject(link_to(&recorder), &spec(text));
    link.sender.send(Instant::ZERO, &mut batch_of(&PATH, &[1, 2, 3])).unwrap();
    let psns = |link: &Link| {
        let mut psns = Vec::new();
        let psn = |packet: &[u8]| u32::from_be_bytes([0, packet[9], packet[10], packet[11]]);
        link.receiver.for_each(&mut |received| psns.push(psn(received.packet)));
        psns
    };
    let count = link.receiver.receive(Instant::ZERO).unwrap();
    let at_once = psns(&link);
    assert_eq!(count, at_once.len());
    recorder.take();
    let mut later = Vec::new();
    while let Some(time) = link.receiver.poll_timeout() {
        link.receiver.receive(time).unwrap();
        later.extend(psns(&link));
    }
    (at_once, later)
}

#[test]
fn rules_meet_packets_that_arrive() {
    assert_eq!(arriving("drop=7:2:dir=in"), (vec![1, 3], vec![]));
    assert_eq!(arriving("corrupt=7:2:dir=in"), (vec![1, 3], vec![]));
    assert_eq!(arriving("dup=7:2:dir=in"), (vec![1, 2, 2, 3], vec![]));
    assert_eq!(arriving("reorder=7:2:dir=in"), (vec![1, 3, 2], vec![]));
    assert_eq!(arriving("delay=7:2:dir=in:1ms"), (vec![1, 3], vec![2]));
    assert_eq!(arriving("drop=7:2"), (vec![1, 3], vec![]), "it was not sent");
}

#[test]
fn rules_can_be_changed_and_tell_how_often_they_did_something() {
    let recorder = Recorder::default();
    let injector = Injector::new(&Spec::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observer = Arc::clone(&seen);
    injector.observe(move |direction, packet, effect| {
        observer.lock().unwrap().push((direction, packet.len(), effect));
    });
    let mut link = injector.wrap(link_to(&recorder));
    let mut send = || link.sender.send(Instant::ZERO, &mut batch_of(&PATH, &[1, 2])).unwrap();
    send();
    injector.set_rules([Rule::new(Action::Drop).every_time(), Rule::new(Action::Drop).inbound()]);
    send();
    assert_eq!(injector.fired(), [2, 0]);
    assert_eq!(link.receiver.receive(Instant::ZERO).unwrap(), 1);
    assert_eq!(injector.fired(), [2, 1]);
    let seen: Vec<_> = seen.lock().unwrap().clone();
    let (out, into) = (Direction::Outbound, Direction::Inbound);
    let dropped = Some(Effect::Dropped);
    let expected =
        [[(out, 12, None); 2], [(out, 12, dropped); 2], [(into, 12, dropped), (into, 12, None)]];
    assert_eq!(seen, expected.concat());
}

#[test]
fn corruption_is_done_after_sealing() {
    let (sent, counters) = run("corrupt=7:1:1", 3);
    let good: Vec<bool> = sent.iter().map(|(.., packet)| sound(packet)).collect();
    assert_eq!(good, [true, false, true]);
    assert!(counters.contains(&("fault_corrupted", 1)));
    // Whatever the dice say: no bit changes that the ICRC does not cover.
    let (sent, _) = run("corrupt=100%,seed=5", 400);
    assert!(sent.iter().all(|(.., packet)| !sound(packet)));
}

#[test]
fn any_bit_may_be_corrupted_but_those_without_an_icrc() {
    let bits: std::collections::BTreeSet<_> =
        (0..15 * 8).map(|n| corrupted_bit(n, 16).unwrap()).collect();
    assert_eq!(bits.len(), 15 * 8);
    assert!(bits.iter().all(|bit| *bit < 128 && !(32..40).contains(bit)));
    assert_eq!((corrupted_bit(3, 0), corrupted_bit(3, 1)), (None, None));
}

#[test]
fn marks_are_in_the_path() {
    let (sent, _) = run("mark=7:1:1,dup=7:1", 2);
    let classes: Vec<u8> = sent.iter().map(|(.., packet)| packet[1]).collect();
    assert_eq!(classes, [0, 3, 3]);
    assert!(sent.iter().all(|(.., packet)| sound(packet)));
}

#[test]
fn same_seed_gives_the_same_decisions() {
    let text = "loss=10%,dup=10%,reorder=10%,corrupt=5%,mark=5%,delay=3us,jitter=2us,seed=9";
    let (first, second) = (run(text, 300), run(text, 300));
    assert_eq!(first, second);
    assert_ne!(first.0, run(&text.replace("=9", "=10"), 300).0);
    assert!(
        first
            .1
            .iter()
            .filter(|(name, _)| *name != "fault_queue_full" && *name != "fault_overflow")
            .all(|(_, count)| *count > 0),
        "{:?}",
        first.1
    );
}

#[test]
fn reordering_needs_no_delay() {
    let order = psns("reorder=20%,seed=1", 200);
    assert_eq!(order.len(), 200);
    assert!(!order.is_sorted());
}

#[test]
fn a_rate_spaces_packets_and_a_queue_loses_them() {
    // 14 + 20 + 8 + 16 bytes are 464 bits: 464 ns at a gigabit.
    let recorder = Recorder::default();
    let mut link = inject(link_to(&recorder), &spec("rate=1G,queue=2"));
    let mut batch = batch_of(&PATH, &[0, 1, 2]);
    link.sender.send(Instant::ZERO, &mut batch).unwrap();
    while let Some(time) = link.sender.poll_timeout() {
        link.sender.send(time, &mut Batch::new(1)).unwrap();
    }
    let times: Vec<_> = recorder.take().iter().map(|(time, psn, _)| (*time, *psn)).collect();
    assert_eq!(times, [(464, 0), (928, 1)]);
    assert!(link.sender.counters().contains(&("fault_queue_full", 1)));
}

#[test]
fn what_is_written_is_read_again() {
    for text in [
        "",
        "loss=1%",
        "loss=0.0001%,dup=0.1%,reorder=2%,corrupt=100%,mark=12.5%",
        "delay=10us,jitter=1500ns",
        "rate=10G,queue=64",
        "rate=1500",
        "drop=0x11:7:1,dup=0xffffff:16777215:2,delay=0x1:0:1:3ms,corrupt=0x2:2:2,mark=0x3:1:1,seed=17",
        "drop=*:*:*:op=READ_RESPONSE:dir=in:msg=2,reorder=0x1+0x2:*:3,delay=*:7:1:dir=in:1us,keep=dropped",
    ] {
        assert_eq!(spec(text).to_string(), text);
    }
    assert_eq!(spec("drop=op=ack:nth=*:dir=out").to_string(), "drop=*:*:*:op=ACK");
    assert_eq!(spec("loss=250ppm").to_string(), "loss=0.025%");
    assert_eq!(spec(" loss = 1% , ,delay=1000us").to_string(), "loss=1%,delay=1ms");
}

#[test]
fn errors_teach() {
    let error = |text: &str| text.parse::<Spec>().unwrap_err().to_string();
    assert_eq!(error("loss"), "`loss` has no value: faults are written as `loss=1%,delay=10us`");
    assert!(error("lose=1%").starts_with("there is no fault `lose`: there are loss, dup,"));
    for wrong in ["loss=1", "loss=101%", "loss=0.00001%", "loss=%", "loss=1.-1%", "loss=2000000ppm"]
    {
        assert_eq!(
            error(wrong),
            format!("`{wrong}`: a chance is `0.1%` or `100ppm`, at most 100%")
        );
    }
    assert_eq!(
        error("delay=10"),
        "`delay=10`: a time is a whole number of ns, us, ms or s: `10us`"
    );
    assert!(error("rate=fast").starts_with("`rate=fast`: a rate is in bits a second"));
    assert_eq!(error("queue=-1"), "`queue=-1` is no whole number");
    assert!(error("delay=7:1:1").starts_with("`delay=1`: a time is"));
    assert!(error("drop=op=none").starts_with("`op=none`: no opcode has this in its name"));
    assert!(error("keep=all").starts_with("`keep=all`: `keep=dropped` writes"));
    for wrong in [
        "drop=7",
        "drop=7:1:0",
        "drop=7:1:1:1us",
        "dup=7:1:1:1",
        "drop=0x1000000:1",
        "drop=7:1:1:op=ack:5",
        "drop=*:msg=0",
        "drop=*:dir=up",
        "drop=*:time=1us",
        "drop=7+x:1",
    ] {
        assert!(
            error(wrong).starts_with(&format!("`{wrong}`: a packet is named `QPN:PSN:NTH`")),
            "{wrong}"
        );
    }
}
