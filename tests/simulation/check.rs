//! Checks of the outcome of a story.

use roce::engine::{Event, Notify};
use roce::verbs::{QpState, QpType, SendFlags, Wc, WcStatus};

use super::model::{Model, Qp, Recv, takes_receive};
use super::plan::{Key, Link, Plan, Story};
use super::world::{Runner, World};
use super::{datagrams, lax, races};

/// Looks at everything that happened.
pub fn check(world: &World<'_>, label: &str) {
    let plan = world.plan;
    let model = tell(world);
    let mut expected = model.memory.clone();
    for (number, link) in plan.links.iter().enumerate() {
        let label = format!("{label}: link {number} ({} {:?})", link.kind, link.story);
        if link.is_exact(plan) {
            for side in [0, 1] {
                check_end(world, &model, number, side, &label);
            }
        } else if link.kind == QpType::Uc {
            lax::check_unreliable(world, number, &mut expected, &label);
        } else {
            let want = failure(&model, number, link);
            lax::check_reliable(world, number, want, &mut expected, &label);
        }
    }
    lax::excuse_shared(world, &mut expected);
    races::check(world, &mut expected, label);
    datagrams::check(world, &mut expected, label);
    check_memory(world, &expected, label);
}

/// Plays the story in the model.
fn tell(world: &World<'_>) -> Model {
    let plan = world.plan;
    let mut model = Model::default();
    for key in &plan.keys {
        match key {
            Key::Region { nic, rights, bytes } => model.add_region(*nic, *rights, bytes.clone()),
            Key::Window { nic, kind } => model.add_window(*nic, *kind),
        };
    }
    for (number, link) in plan.links.iter().enumerate() {
        for side in [0, 1] {
            let end = &link.ends[side];
            let queue = model.add_queue();
            let qp = Qp::new(link.kind, end.nic, number * 2 + 1 - side, queue);
            model.add_qp(Qp {
                // Who cannot be reached does not answer.
                state: if end.cut_off { QpState::Init } else { QpState::Rts },
                rights: end.rights,
                mtu: link.mtu.bytes(),
                shared: end.srq.is_some(),
                sig_all: end.sig_all,
                patient: end.rnr_retry == 7,
                ..qp
            });
        }
    }
    let told = |link: &Link| link.is_exact(plan) || matches!(link.story, Story::Fault { .. });
    for (number, link) in plan.links.iter().enumerate().filter(|(_, link)| told(link)) {
        tell_link(world, &mut model, number, link);
    }
    model
}

fn tell_link(world: &World<'_>, model: &mut Model, number: usize, link: &Link) {
    for side in [0, 1] {
        for recv in receives(world, number, side) {
            model.post_recv(number * 2 + side, recv);
        }
    }
    let mut next = [0, 0];
    loop {
        let before = next;
        for side in [0, 1] {
            let Some(post) = link.flows[side].posts.get(next[side]) else { continue };
            let done = |(side, op): (usize, usize)| {
                let sent = &model.qps[number * 2 + side].sent;
                sent.iter().any(|done| done.id == op as u64)
            };
            if post.after.is_none_or(done) {
                model.post(number * 2 + side, post.work.clone());
                next[side] += 1;
                model.run();
            }
        }
        if next == before {
            return;
        }
    }
}

/// The receives of an end in the order in which they are taken. Which of a shared queue fall to it
/// is up to chance.
fn receives(world: &World<'_>, number: usize, side: usize) -> Vec<Recv> {
    let link = &world.plan.links[number];
    let Some(srq) = link.ends[side].srq else {
        return link.flows[1 - side].recvs.iter().map(|(_, recv)| recv.clone()).collect();
    };
    let shared = &world.plan.srqs[srq].recvs;
    let find = |wc: &Wc| shared.iter().find(|(_, recv)| recv.id == wc.id.0);
    let got = &world.runners[number][side].got;
    got.iter().filter_map(find).map(|(_, recv)| recv.clone()).collect()
}

/// Returns the status of the model for the request that fails.
fn failure(model: &Model, number: usize, link: &Link) -> Option<WcStatus> {
    let Story::Fault { flow, .. } = link.story else { return None };
    let sent = &model.qps[number * 2 + flow].sent;
    sent.iter().map(|done| done.status).find(|status| *status != WcStatus::Success)
}

/// Completions and state are those of the model.
fn check_end(world: &World<'_>, model: &Model, number: usize, side: usize, label: &str) {
    let (runner, qp) = (&world.runners[number][side], &model.qps[number * 2 + side]);
    let end = &world.plan.links[number].ends[side];
    for (what, want, got) in
        [("sends", &qp.sent, &runner.sent), ("receives", &qp.received, &runner.got)]
    {
        let differs = (0..want.len().max(got.len())).find(|&at| {
            let pair = want.get(at).zip(got.get(at));
            pair.is_none_or(|(done, wc)| !world.names.agree(done, wc))
        });
        if let Some(at) = differs {
            let (want, got) = (want.get(at), got.get(at));
            panic!("{label}: {what} of end {side}, number {at}: {got:?} instead of {want:?}");
        }
    }
    if end.cut_off {
        return;
    }
    let target = world.plan.links[number].kind == QpType::XrcSend && side == 1;
    let state = world.state(number, side);
    // A target has nothing to send, and goes no further than it must.
    let same = state == Some(qp.state) || (target && qp.state == QpState::Rts);
    assert!(same, "{label}: end {side} is in {state:?} instead of {:?}", qp.state);
    if !target {
        check_event(world, number, side, label);
    }
}

/// The event that was asked for came, once, if and only if there was reason.
fn check_event(world: &World<'_>, number: usize, side: usize, label: &str) {
    let link = &world.plan.links[number];
    let runner = &world.runners[number][side];
    let Some(notify) = link.ends[side].notify else { return };
    let sends = if runner.send_cq == runner.recv_cq { &runner.sent[..] } else { &[] };
    let failed = |wc: &Wc| wc.status != WcStatus::Success;
    let due = match notify {
        Notify::Next => !runner.got.is_empty() || !sends.is_empty(),
        Notify::Solicited => {
            runner.got.iter().chain(sends).any(failed) || is_solicited(link, side, runner)
        }
    };
    let events = &world.net.hosts[runner.nic].events;
    let came = events.iter().filter(|event| **event == Event::Completion(runner.recv_cq)).count();
    assert_eq!(came, usize::from(due), "{label}: end {side}, events for {notify:?}");
}

/// Whether a message that was received asked for an event.
fn is_solicited(link: &Link, side: usize, runner: &Runner) -> bool {
    let messages = link.flows[1 - side].posts.iter().map(|post| &post.work);
    let mut messages = messages.filter(|work| takes_receive(&work.request)).take(runner.got.len());
    messages.any(|work| work.flags.contains(SendFlags::SOLICITED))
}

/// Every byte of every region is what it should be, those between the pieces too.
fn check_memory(world: &World<'_>, expected: &[Vec<u8>], label: &str) {
    for (key, (want, buffer)) in expected.iter().zip(&world.buffers).enumerate() {
        let got = buffer.to_vec();
        if *want == got {
            continue;
        }
        let at = want.iter().zip(&got).position(|(x, y)| x != y);
        panic!("{label}: region {key} differs at {at:?}, {}", owner(world.plan, key));
    }
}

fn owner(plan: &Plan, key: usize) -> String {
    let of_link = |link: &Link| link.ends.iter().position(|end| end.home == key);
    let mut links = plan.links.iter().enumerate();
    match links.find_map(|(number, link)| Some((number, of_link(link)?))) {
        Some((number, side)) => format!("memory of link {number}, end {side}"),
        None => "memory of no link alone".into(),
    }
}
