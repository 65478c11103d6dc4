//! Selective repeat is used only between peers that agreed.

use roce::engine::{Config, Counter, ReceiveMode};

use super::line::{Line, Work, selective};

fn standard(_: &mut Config) {}

#[test]
fn sack_reaches_no_peer_that_did_not_agree() {
    let sides: [&dyn Fn(&mut Config); 2] = [&standard, &selective];
    for configure in [[0, 0], [0, 1], [1, 0], [1, 1]] {
        for agrees in [false, true] {
            let mut line = Line::new(configure.map(|at| sides[at]), agrees);
            line.loss = 5_000_000;
            line.stream(Work::Write, 100);
            line.stream(Work::Read, 100);
            let both = configure == [1, 1] && agrees;
            // A side that does not know of SACKs cannot have agreed: its peer would not be told so.
            if configure == [0, 1] || configure == [1, 0] {
                continue;
            }
            let sacks = line.sacks(0) + line.sacks(1);
            assert_eq!(sacks > 0, both, "{configure:?}, agreed {agrees}: {sacks} SACKs");
        }
    }
}

#[test]
fn agreement_needs_the_configuration_and_ends_with_reset() {
    use roce::verbs::{AttrMask, QpAttr, QpState};
    let mut line = Line::new([&standard, &selective], true);
    let is_selective = |line: &Line| {
        [0, 1].map(|at: usize| {
            let side = &line.sides[at];
            side.engine.is_selective(side.qp).unwrap()
        })
    };
    assert_eq!(is_selective(&line), [false, true]);
    let side = &mut line.sides[1];
    let attr = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
    side.engine.modify_qp(side.qp, &attr, AttrMask::STATE).unwrap();
    assert_eq!(is_selective(&line), [false, false]);
}

#[test]
fn default_sends_the_same_packets_whether_or_not_the_peer_holds_early_ones() {
    // Holding early packets changes no packet that a receiver sends.
    for mode in [ReceiveMode::Buffer, ReceiveMode::Place] {
        let holds = |config: &mut Config| config.receive = mode;
        let mut line = Line::new([&standard, &holds], false);
        line.loss = 5_000_000;
        line.stream(Work::Write, 100);
        assert!(line.counter(1, Counter::Reordered) > 0);
        assert_eq!(line.sacks(1), 0);
        assert!(line.sides[1].sent.keys().all(|opcode| *opcode == 0x11), "ACKs and NAKs");
    }
}
