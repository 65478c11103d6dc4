//! `roce ping`, `roce bench` and `roce bench pingpong` against servers that lie.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use serde_json::json;

use super::harness::{ThirdParty, address, run, text};
use super::liar::{Behavior, Liar, responder};

#[test]
fn prober_sends_to_no_third_party() {
    let third = ThirdParty::new(310);
    let gid = third.address;
    let liar = Liar::start(311, Behavior::Alive, move |_| responder(gid));
    let (port, at, from) = (liar.port.to_string(), liar.address.to_string(), device(312));
    let args = ["ping", "-c", "50", "-i", "0.001", "-W", "0.1", "-d", &from, "-p", &port, &at];
    let output = run(&args, &[]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("queue pairs are on {gid}")), "{said}");
    assert!(said.contains("--any-gid"), "{said}");
    third.assert_untouched();
    // Who trusts the server can say so.
    let output = run(&[&args[..], &["--any-gid"]].concat(), &[]);
    assert!(third.received().packets > 0, "{}", text(&output));
}

#[test]
fn bench_sends_to_no_third_party() {
    let third = ThirdParty::new(320);
    let gid = third.address;
    let liar = Liar::start(321, Behavior::Silent, move |_| {
        let qp = json!({"gid": gid.to_ipv6_mapped().to_string(), "qpn": 0x11, "psn": 7});
        let server = json!({"qps": [qp], "addr": 0x1000, "rkey": 1, "link": "udp"});
        let answer = json!({"answer": {"mtu": 1024, "server": server}});
        let rendezvous = json!({"rendezvous": {"port": 7174, "key": vec![0; 16]}});
        format!("{answer}\n{rendezvous}\n\"ready\"\n")
    });
    let (port, at, from) = (liar.port.to_string(), liar.address.to_string(), device(322));
    for test in [
        &["send", "bw", "-c", "ud", "-s", "1024"][..],
        &["write", "bw", "-c", "uc"],
        &["send", "lat"],
        &["write", "bw", "-R"],
    ] {
        let args = [&["bench"], test, &["-n", "5", "-d", &from, "-p", &port, &at]].concat();
        let output = run(&args, &[]);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(2), "{test:?}: {said}");
        assert!(said.contains(&format!("queue pairs are on {gid}")), "{test:?}: {said}");
    }
    third.assert_untouched();
}

#[test]
fn pingpong_sends_to_no_third_party() {
    let third = ThirdParty::new(330);
    let listener = TcpListener::bind((address(331), 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let [a, b, c, d] = third.address.octets();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read_exact(&mut [0; 52]);
        let gid = format!("00000000000000000000ffff{a:02x}{b:02x}{c:02x}{d:02x}");
        let _ = stream.write_all(format!("0000:000011:000000:{gid}\0").as_bytes());
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let (at, from) = (address(331).to_string(), device(332));
    let args = ["bench", "pingpong", "-c", "ud", "-n", "5", "-d", &from, "-p", &port, &at];
    let output = run(&args, &[]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    third.assert_untouched();
}

#[test]
fn server_that_accepts_and_says_nothing_is_given_up() {
    let mute = Liar::start(340, Behavior::Mute, |_| String::new());
    let silent = Liar::start(341, Behavior::Silent, |_| String::new());
    for (server, from) in [(&mute, device(342)), (&silent, device(343))] {
        let (port, at) = (server.port.to_string(), server.address.to_string());
        let output = run(&["ping", "-c", "1", "-d", &from, "-p", &port, &at], &[]);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("waiting for the server: nothing came in time"), "{said}");
    }
}

fn device(number: u16) -> String {
    format!("udp:{}", address(number))
}
